"""Elements taken and put along one dim, by an index with as many dims as the tensor: gather and scatter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Operand
from maniple.capture.torch.table.divide import floor_quotient
from maniple.capture.torch.table.views import padded, sliced
from maniple.ir.program import Value


def _last(x: Value, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of dims in which `dim` is last, and the order back."""
    perm = (*(d for d in range(x.type.rank) if d != dim), dim)
    return perm, tuple(perm.index(d) for d in range(x.type.rank))


def _with_dim(e: Emitter, *values: Value) -> list[Value]:
    """Return values with a dim at least."""
    return [value if value.type.rank else e.reshape(value, (1,)) for value in values]


def _corner(e: Emitter, x: Value, shape: tuple[int, ...]) -> Value:
    """Return the first elements of each dim, so many as `shape` says."""
    for d, n in enumerate(shape):
        x = sliced(e, x, d, 0, n)
    return x


def gather(e: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """Return `x[i, j, index[i, j, k]]` for `dim` 2, and so on; the index may be smaller than `x` in other dims."""
    shape = index.type.shape
    if not index.type.num_elements:
        return e.full(0, x.type.with_shape(shape))
    x, index = _with_dim(e, x, index)
    dim %= x.type.rank
    perm, back = _last(x, dim)
    index = e.transpose(index, perm)
    lead = index.type.shape[:-1]
    rows = _corner(e, e.transpose(x, perm), lead)
    return e.reshape(e.transpose(e("gather", rows, index, batch=len(lead)), back), shape)


class _Scatter:
    """A scatter with `dim` last: the part of the tensor that the index has to do with, and its rows."""

    def __init__(self, e: Emitter, x: Value, dim: int, index: Value, source: Operand) -> None:
        self.e, self.shape = e, x.type.shape
        if not isinstance(source, Value):
            source = e.full(source, x.type.with_shape(index.type.shape))
        x, index, source = _with_dim(e, x, index, source)
        self.perm, self.back = _last(x, dim % x.type.rank)
        self.x, self.index = e.transpose(x, self.perm), e.transpose(index, self.perm)
        self.rows = e.cast(_corner(e, e.transpose(source, self.perm), self.index.type.shape), x.type.dtype)
        lead = self.index.type.shape[:-1]
        self.batch = len(lead)
        self.part = _corner(e, self.x, lead)

    def sums(self, rows: Value) -> Value:
        """Return the sums of rows where the index points, in the part."""
        kind = TensorType(rows.type.dtype, self.part.type.shape)
        return self.e("scatter_sum", rows, self.index, like=kind, batch=self.batch)

    def counts(self) -> Value:
        """Return how many rows meet each place of the part, i64."""
        return self.sums(self.e.full(1, TensorType("i64", self.index.type.shape)))

    def put(self, part: Value, kind: str) -> Value:
        """Return the part with the rows put into it."""
        return self.e("scatter", part, self.rows, self.index, batch=self.batch, kind=kind)

    def whole(self, part: Value) -> Value:
        """Return the tensor with the part put back, in the order of dims and the shape that it had."""
        e = self.e
        for d in reversed(range(self.batch)):
            if part.type.shape[d] != self.x.type.shape[d]:
                others = sliced(e, _corner(e, self.x, part.type.shape[:d]), d, part.type.shape[d], self.x.type.shape[d])
                part = e("concatenate", part, others, dim=d)
        return e.reshape(e.transpose(part, self.back), self.shape)

    def added(self) -> Value:
        """Return the tensor with the sums of rows added."""
        total = self.sums(self.rows)
        for d, n in enumerate(self.x.type.shape[:-1]):
            total = padded(self.e, total, d, 0, n - total.type.shape[d])
        return self.e.reshape(self.e.transpose(self.e("add", self.x, total), self.back), self.shape)


def _scatter(e: Emitter, x: Value, dim: int, index: Value, source: Operand, *, reduce: str = "set") -> Value:
    if not index.type.num_elements:
        return x
    work = _Scatter(e, x, dim, index, source)
    return work.added() if reduce == "add" else work.whole(work.put(work.part, reduce))


def _scatter_add(e: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _Scatter(e, x, dim, index, source).added() if index.type.num_elements else x


_EXTREMES: Final = {"amax": "max", "amin": "min"}


def _scatter_reduce(e: Emitter, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True) -> Value:
    if not index.type.num_elements:
        return x
    work = _Scatter(e, x, dim, index, source)
    if reduce == "sum" and include_self:
        return work.added()
    return work.whole(_reduced(e, work.part, work.counts(), reduce, include_self, lambda: work.sums(work.rows), work.put))


def _reduced(
    e: Emitter, x: Value, counts: Value, reduce: str, include_self: bool, sums: Callable[[], Value], place: Callable[[Value, str], Value]
) -> Value:
    """Return `x` with rows reduced into it, given how many meet each place, their sums, and how they are put."""
    dtype, met = x.type.dtype, e.elementwise("compare_gt", counts, 0)
    if reduce in ("sum", "mean"):
        total = sums() if not include_self else e("add", x, sums())
        if reduce == "mean":
            number = e.elementwise("maximum", e.elementwise("add", counts, 1 if include_self else 0), 1)
            total = e.elementwise("divide", total, e.cast(number, dtype)) if x.type.is_float else floor_quotient(e, total, number, dtype)
        return e.select(met, total, x, dtype)
    kind = _EXTREMES.get(reduce, "multiply")
    if not include_self:
        x = e.select(met, _least(x.type, kind), x, dtype)
    return place(x, kind)


def _least(kind: TensorType, how: str) -> float:
    """Return what counts for nothing in a maximum, minimum or product."""
    if how == "multiply":
        return 1
    sign = -1 if how == "max" else 1
    if kind.is_float:
        return sign * float("inf")
    bits = 8 * kind.num_bytes // max(kind.num_elements, 1)
    greatest = 1 << (bits - 1)
    return -greatest if sign < 0 else greatest - 1


def _index_reduce(e: Emitter, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True) -> Value:
    shape = x.type.shape
    x, source, index = _with_dim(e, x, source, index)
    dim %= x.type.rank
    perm = (dim, *(d for d in range(x.type.rank) if d != dim))
    front, rows = e.transpose(x, perm), e.transpose(source, perm)
    kind = TensorType("i64", front.type.shape[:1])
    met = e("scatter_sum", e.full(1, TensorType("i64", index.type.shape)), index, like=kind, batch=0)
    counts = e.b.broadcast(met, front.type.shape, (0,))
    done = _reduced(
        e, front, counts, reduce, include_self,
        lambda: e("scatter_sum", rows, index, like=front.type, batch=0),
        lambda base, how: e("scatter", base, rows, index, batch=0, kind=how),
    )  # fmt: skip
    return e.reshape(e.transpose(done, [perm.index(d) for d in range(len(perm))]), shape)


def select_by_index(e: Emitter, g: Value, dim: int, index: Value, sizes: tuple[int, ...], keepdim: bool) -> Value:
    """Return zeros with `g` where `index` points along `dim`: the gradient of what picks elements."""
    if not sizes:
        return e.reshape(g, sizes)
    dim %= len(sizes)
    if not keepdim:
        shape = (*g.type.shape[:dim], 1, *g.type.shape[dim:])
        g, index = e.reshape(g, shape), e.reshape(index, shape)
    return _scatter_add(e, e.full(0, g.type.with_shape(tuple(sizes))), dim, index, g)


SCATTER: Final[dict[str, Callable[..., Any]]] = {
    "aten.gather.default": gather,
    "aten.scatter_add.default": _scatter_add,
    **{f"aten.scatter.{form}": _scatter for form in ("value", "src", "reduce", "value_reduce")},
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.index_reduce.default": _index_reduce,
    "aten.value_selecting_reduction_backward.default": select_by_index,
}
