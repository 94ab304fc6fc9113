"""Sorting, the largest few, order statistics, running reductions, searches, products and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Number, Operand
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.scatter import gather
from maniple.capture.torch.table.views import sliced
from maniple.ir.program import Value


def _with_dim(e: Emitter, x: Value, dim: int) -> tuple[Value, int]:
    """Return `x` with a dim at least, and `dim` counted from the front."""
    x = x if x.type.rank else e.reshape(x, (1,))
    return x, dim % x.type.rank


def _shaped(e: Emitter, *values: Value) -> tuple[Value, ...]:
    """Return results in the shapes that the ATen op gives them."""
    return tuple(e.reshape(value, e.out_at(at).shape) for at, value in enumerate(values))


def _sort(e: Emitter, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> tuple[Value, ...]:
    x, dim = _with_dim(e, x, dim)
    return _shaped(e, *e.emit("sort", (x,), dim=dim, descending=descending))


def _sort_stable(e: Emitter, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _sort(e, x, dim, descending)


def _top_k(e: Emitter, x: Value, k: int, dim: int = -1, largest: bool = True, _is_sorted: bool = True) -> tuple[Value, ...]:
    x, dim = _with_dim(e, x, dim)
    return _shaped(e, *e.emit("top_k", (x,), dim=dim, k=k, largest=largest))


def _kth(e: Emitter, x: Value, k: int, dim: int = -1, _keepdim: bool = False) -> tuple[Value, ...]:
    x, dim = _with_dim(e, x, dim)
    values = e.emit("sort", (x,), dim=dim, descending=False)
    return _shaped(e, *(sliced(e, value, dim, k - 1, k) for value in values))


def _median_dim(e: Emitter, x: Value, dim: int, _keepdim: bool = False) -> tuple[Value, ...]:
    """Return the lower median and where it stands; NaN if there is one."""
    x, dim = _with_dim(e, x, dim)
    values, places = e.emit("sort", (x,), dim=dim, descending=False)
    at = (x.type.shape[dim] - 1) // 2
    middle, place = (sliced(e, value, dim, at, at + 1) for value in (values, places))
    if x.type.is_float:  # NaN is sorted last
        n = x.type.shape[dim]
        last = sliced(e, values, dim, n - 1, n)
        has_nan = e("compare_ne", last, last)
        first = e.reduce("reduce_min", e.select(e("compare_ne", x, x), index_along(e, x.type.shape, dim), n, "i64"), (dim,), keep=True)
        middle, place = e.select(has_nan, last, middle, x.type.dtype), e.select(has_nan, first, place, "i64")
    return _shaped(e, middle, place)


def _nan_median_dim(e: Emitter, x: Value, dim: int, _keepdim: bool = False) -> tuple[Value, ...]:
    """Return the lower median of what is not NaN, and where it stands."""
    x, dim = _with_dim(e, x, dim)
    values, places = e.emit("sort", (x,), dim=dim, descending=False)
    count = e.sum(e.cast(e("compare_eq", x, x), "i64"), (dim,), keep=True)
    at = e.elementwise("maximum", e.elementwise("divide", e.elementwise("subtract", count, 1), 2, dtype="i64"), 0)
    return _shaped(e, gather(e, values, dim, at), gather(e, places, dim, at))


def _flat(row: Callable[..., tuple[Value, ...]]) -> Callable[..., Value]:
    def of_all(e: Emitter, x: Value) -> Value:
        out, e.outs = e.out, (TensorType(x.type.dtype), TensorType("i64"))
        return e.reshape(row(e, e.reshape(x, (x.type.num_elements,)), 0)[0], out.shape)

    return of_all


def _mode(e: Emitter, x: Value, dim: int = -1, _keepdim: bool = False) -> tuple[Value, ...]:
    """Return the commonest value, the least of several, and where it stands last."""
    x, dim = _with_dim(e, x, dim)
    n = x.type.shape[dim]
    values, places = e.emit("sort", (x,), dim=dim, descending=False)
    wide = (*x.type.shape[: dim + 1], n, *x.type.shape[dim + 1 :])
    others = tuple(d for d in range(len(wide)) if d != dim + 1)
    columns = tuple(d for d in range(len(wide)) if d != dim)
    same = e("compare_eq", e.b.broadcast(values, wide, others), e.b.broadcast(values, wide, columns))
    counts = e.sum(e.cast(same, "i64"), (dim + 1,))
    best = e.reduce("reduce_max", counts, (dim,), keep=True)
    index = index_along(e, x.type.shape, dim)
    first = e.reduce("reduce_min", e.select(e.elementwise("compare_eq", counts, best), index, n, "i64"), (dim,), keep=True)
    last = e.elementwise("subtract", e.elementwise("add", first, best), 1)
    return _shaped(e, gather(e, values, dim, last), gather(e, places, dim, last))


def _running(name: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, dim: int, *, dtype: object = None) -> Value:
        x = e.cast(x, e.out.dtype)
        return e(name, x, dim=dim % x.type.rank) if x.type.rank else x

    return row


def _running_extreme(name: str) -> Callable[..., tuple[Value, ...]]:
    def row(e: Emitter, x: Value, dim: int) -> tuple[Value, ...]:
        x, dim = _with_dim(e, x, dim)
        return _shaped(e, *e.emit(name, (x,), dim=dim))

    return row


def _product(e: Emitter, x: Value, dim: int | None = None, _keepdim: bool = False, *, dtype: object = None) -> Value:
    x = e.cast(x, e.out.dtype)
    dims = tuple(range(x.type.rank)) if dim is None else (dim % x.type.rank,) if x.type.rank else ()
    return e.reshape(e("reduce_prod", x, dims=dims) if dims else x, e.out.shape)


def _search(
    e: Emitter, bounds: Value, values: Operand, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Value | None = None,
) -> Value:  # fmt: skip
    if sorter is not None:
        bounds = gather(e, bounds, -1, sorter)
    out, is_right = e.out, right or side == "right"
    found = values if isinstance(values, Value) else e.value(values, bounds.type.dtype)
    dtype = e.common_dtype(bounds, found)
    bounds, found = e.cast(bounds, dtype), e.cast(found, dtype)
    if bounds.type.rank == 1:
        found = e.reshape(found, (found.type.num_elements,))
    return e.cast(e.reshape(e("searchsorted", bounds, found, right=is_right), out.shape), out.dtype)


def _bucketize(e: Emitter, values: Operand, bounds: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _search(e, bounds, values, out_int32=out_int32, right=right)


def _repeated_index(e: Emitter, repeats: Value, *, output_size: int | None = None) -> Value:
    """Return each index as often as `repeats` says; the sum of these is known."""
    ends = e("cumsum", e.cast(repeats, "i64"), dim=0)
    return e.cast(e("searchsorted", ends, index_along(e, e.out.shape, 0), right=True), e.out.dtype)


def _histogram(e: Emitter, x: Value, bins: int = 100, low: Number = 0, high: Number = 0) -> Value:
    """Return how many elements lie in each of `bins` equal parts of [low, high]; of their own range if both are equal."""
    n = x.type.num_elements
    x = e.cast(e.reshape(x, (n,)), e.out.dtype)
    if not n:
        return e.full(0, e.out)
    least: Operand = low
    most: Operand = high
    if low == high:
        least, most = (e.reduce(name, x, ()) for name in ("reduce_min", "reduce_max"))
        flat = e.elementwise("compare_eq", least, most)
        least = e.select(flat, e.elementwise("subtract", least, 1), least, x.type.dtype)
        most = e.select(flat, e.elementwise("add", most, 1), most, x.type.dtype)
    inside = e("and", e.elementwise("compare_ge", x, least), e.elementwise("compare_le", x, most))
    width = e.elementwise("subtract", most, least, dtype=x.type.dtype)
    where = e.elementwise("divide", e.elementwise("multiply", e.elementwise("subtract", x, least), bins), width)
    where = e.cast(e("floor", e.select(inside, where, 0, x.type.dtype)), "i64")
    where = e.elementwise("minimum", e.elementwise("maximum", where, 0), bins - 1)
    return e("scatter_sum", e.cast(inside, x.type.dtype), where, like=e.out, batch=0)


def _multinomial(e: Emitter, p: Value, count: int, replacement: bool = False, **_options: object) -> Value:
    """Return indices drawn with probabilities `p`.

    With replacement where uniform numbers fall in the running sums; without as the largest of log p plus Gumbel noise (Kool et al.,
    arXiv:1903.06059, section 2.3).
    """
    rank = p.type.rank
    if not replacement and count > 1:
        noise = e.random(p.type)
        noise = e("negate", e("log", e("negate", e("log", e.elementwise("maximum", noise, 1e-30)))))
        return e.emit("top_k", (e("add", e("log", p), noise),), dim=rank - 1, k=count, largest=True)[1]
    sums = e("cumsum", p, dim=rank - 1)
    n = p.type.shape[-1]
    total = sliced(e, sums, rank - 1, n - 1, n)
    at = e.elementwise("multiply", e.random(p.type.with_shape((*p.type.shape[:-1], count))), total)
    found = e("searchsorted", sums, at, right=True)
    return e.elementwise("minimum", found, n - 1)


def _randint(e: Emitter, *bounds: object, **_options: object) -> Value:
    """Return random integers in [low, high)."""
    numbers = [value for value in bounds if isinstance(value, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    drawn = e.random(TensorType("f64", e.out.shape))
    whole = e("floor", e.elementwise("multiply", drawn, float(high - low)))
    return e.cast(e.elementwise("add", whole, float(low)), e.out.dtype)


def _randperm(e: Emitter, n: int, **_options: object) -> Value:
    places = e.emit("sort", (e.random(TensorType("f64", (n,))),), dim=0, descending=False)[1]
    return e.cast(places, e.out.dtype)


def _exponential(e: Emitter, x: Value, rate: float = 1.0, **_options: object) -> Value:
    drawn = e("negate", e("log_plus_one", e("negate", e.random(x.type))))
    return e.elementwise("multiply", drawn, 1 / rate) if rate != math.inf else e.full(0, x.type)


ORDER: Final[dict[str, Callable[..., Any]]] = {
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort_stable,
    "aten.topk.default": _top_k,
    "aten.kthvalue.default": _kth,
    "aten.median.dim": _median_dim,
    "aten.median.default": _flat(_median_dim),
    "aten.nanmedian.dim": _nan_median_dim,
    "aten.nanmedian.default": _flat(_nan_median_dim),
    "aten.mode.default": _mode,
    "aten.cumsum.default": _running("cumsum"),
    "aten.cumprod.default": _running("cumprod"),
    "aten.logcumsumexp.default": _running("logcumsumexp"),
    "aten.cummax.default": _running_extreme("cummax"),
    "aten.cummin.default": _running_extreme("cummin"),
    "aten.prod.default": _product,
    "aten.prod.dim_int": _product,
    "aten.searchsorted.Tensor": _search,
    "aten.searchsorted.Scalar": _search,
    "aten.bucketize.Tensor": _bucketize,
    "aten.bucketize.Scalar": _bucketize,
    "aten.repeat_interleave.Tensor": _repeated_index,
    "aten.histc.default": _histogram,
    "aten.multinomial.default": _multinomial,
    **{f"aten.randint.{form}": _randint for form in ("default", "low")},
    **{f"aten.randint_like.{form}": lambda e, _x, *bounds, **options: _randint(e, *bounds, **options) for form in ("default", "low_dtype")},
    "aten.randperm.default": _randperm,
    "aten.exponential.default": _exponential,
}
