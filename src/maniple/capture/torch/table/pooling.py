"""Pooling: of windows of one size, and of windows that fill a given number of places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Operand
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.divide import floor_quotient
from maniple.capture.torch.table.indexing import take
from maniple.capture.torch.table.layers import spatial
from maniple.ir.program import Value


def _batched(e: Emitter, x: Value, space: int) -> Value:
    """Return `x` with a batch dim, which ATen lets images lack."""
    return e.reshape(x, (1, *x.type.shape)) if x.type.rank == space + 1 else x


def _pool_attrs(space: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool) -> dict[str, Any]:
    rank = space + 2
    return {
        "kernel": spatial(kernel, rank), "stride": spatial(stride or kernel, rank), "padding": spatial(padding, rank), "ceil_mode": ceil,
    }  # fmt: skip


def _max_pool(space: int) -> Callable[..., tuple[Value, ...]]:
    def row(
        e: Emitter, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,), ceil: bool = False,
    ) -> tuple[Value, ...]:  # fmt: skip
        attrs = {**_pool_attrs(space, kernel, stride, padding, ceil), "dilation": spatial(dilation, space + 2)}
        results = e.emit("max_pool", (_batched(e, x, space),), **attrs)
        return tuple(e.reshape(value, e.out_at(at).shape) for at, value in enumerate(results))

    return row


def _max_pool_backward(space: int) -> Callable[..., Value]:
    def row(
        e: Emitter, g: Value, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
        ceil: bool, indices: Value,
    ) -> Value:  # fmt: skip
        attrs = {**_pool_attrs(space, kernel, stride, padding, ceil), "dilation": spatial(dilation, space + 2)}
        dx = e("max_pool_grad", *(_batched(e, value, space) for value in (g, x, indices)), **attrs)
        return e.reshape(dx, x.type.shape)

    return row


def _is_tiled(shape: Sequence[int], attrs: dict[str, Any]) -> bool:
    """Return whether windows lie side by side and fill all of the space."""
    is_plain = attrs["kernel"] == attrs["stride"] and not any(attrs["padding"])
    return is_plain and all(n % k == 0 for n, k in zip(shape, attrs["kernel"], strict=True))


def _counts(n: int, m: int, kernel: int, stride: int, padding: int, *, with_padding: bool) -> list[int]:
    """Return how many elements count in each of `m` windows along a dim of `n`."""
    starts = [at * stride - padding for at in range(m)]
    ends = [min(start + kernel, n + padding) for start in starts]
    if with_padding:
        return [end - start for start, end in zip(starts, ends, strict=True)]
    return [min(end, n) - max(start, 0) for start, end in zip(starts, ends, strict=True)]


def _clamped(e: Emitter, x: Value, low: Operand, high: Operand) -> Value:
    return e.elementwise("minimum", e.elementwise("maximum", x, low), high)


def _divided(e: Emitter, y: Value, space: Sequence[int], attrs: dict[str, Any], with_padding: bool, divisor: int | None) -> Value:
    """Return sums of windows, or what is to be spread over these, divided by how many elements count in each."""
    if divisor is not None:
        return e.elementwise("multiply", y, 1 / divisor)
    factor, lead = 1.0, y.type.rank - len(space)
    for d, n in enumerate(space):
        m, kernel, stride, padding = y.type.shape[lead + d], *(attrs[name][d] for name in ("kernel", "stride", "padding"))
        counts = _counts(n, m, kernel, stride, padding, with_padding=with_padding)
        if len(set(counts)) < 2:
            factor /= counts[0] if counts else 1
            continue
        start = e.elementwise("subtract", e.elementwise("multiply", index_along(e, (m,), 0), stride), padding)
        end = e.elementwise("minimum", e.elementwise("add", start, kernel), n + padding)
        if not with_padding:
            start, end = _clamped(e, start, 0, n), _clamped(e, end, 0, n)
        count = e.cast(e("subtract", end, start), y.type.dtype)
        y = e("divide", y, e.b.broadcast(count, y.type.shape, (lead + d,)))
    return y if factor == 1 else e.elementwise("multiply", y, factor)


def _tile_sums(e: Emitter, x: Value, kernel: Sequence[int]) -> Value:
    lead, space = x.type.shape[: -len(kernel)], x.type.shape[-len(kernel) :]
    split = [size for n, k in zip(space, kernel, strict=True) for size in (n // k, k)]
    return e.sum(e.reshape(x, (*lead, *split)), [len(lead) + 2 * d + 1 for d in range(len(kernel))])


def _tile_spread(e: Emitter, g: Value, x: Value, kernel: Sequence[int]) -> Value:
    lead, space = g.type.shape[: -len(kernel)], g.type.shape[-len(kernel) :]
    ones = e.reshape(g, (*lead, *(size for n in space for size in (n, 1))))
    wide = e.expand(ones, (*lead, *(size for n, k in zip(space, kernel, strict=True) for size in (n, k))))
    return e.reshape(wide, x.type.shape)


def _average(space: int) -> Callable[..., Value]:
    def row(
        e: Emitter, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil: bool = False,
        with_padding: bool = True, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        attrs = _pool_attrs(space, kernel, stride, padding, ceil)
        shape = x.type.shape[-space:]
        if _is_tiled(shape, attrs):
            return _divided(e, _tile_sums(e, x, attrs["kernel"]), shape, attrs, with_padding, divisor)
        y = e("sum_pool", _batched(e, x, space), **attrs)
        return e.reshape(_divided(e, y, shape, attrs, with_padding, divisor), e.out.shape)

    return row


def _average_backward(space: int) -> Callable[..., Value]:
    def row(
        e: Emitter, g: Value, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool,
        with_padding: bool, divisor: int | None,
    ) -> Value:  # fmt: skip
        attrs = _pool_attrs(space, kernel, stride, padding, ceil)
        shape = x.type.shape[-space:]
        part = _divided(e, g, shape, attrs, with_padding, divisor)
        if _is_tiled(shape, attrs):
            return _tile_spread(e, part, x, attrs["kernel"])
        kind = x.type if x.type.rank == space + 2 else x.type.with_shape((1, *x.type.shape))
        return e.reshape(e("sum_pool_grad", _batched(e, part, space), like=kind, **attrs), x.type.shape)

    return row


def _bounds(e: Emitter, n: int, m: int) -> tuple[Value, Value]:
    """Return where each of `m` windows that fill a dim of `n` begins, and where it ends."""
    at = index_along(e, (m,), 0)
    start = floor_quotient(e, e.elementwise("multiply", at, n), m, "i64")
    end = e.elementwise("add", e.elementwise("multiply", e.elementwise("add", at, 1), n), m - 1)
    return start, floor_quotient(e, end, m, "i64")


def _adaptive_weights(e: Emitter, n: int, m: int, dtype: str) -> Value:
    """Return the matrix `[m, n]` of means over windows that fill a dim of `n`."""
    start, end = _bounds(e, n, m)
    column = index_along(e, (m, n), 1)
    rows = [e.b.broadcast(value, (m, n), (0,)) for value in (start, end)]
    inside = e("and", e("compare_ge", column, rows[0]), e("compare_lt", column, rows[1]))
    return e("divide", e.cast(inside, dtype), e.cast(e("subtract", rows[1], rows[0]), dtype))


def along(e: Emitter, x: Value, dim: int, weights: Value, *, back: bool = False) -> Value:
    """Return the product of a matrix `[m, n]` with a dim of `n`; with `back`, of its transpose with a dim of `m`."""
    y = e("dot_general", x, weights, lhs_contract=(dim,), rhs_contract=(0 if back else 1,), lhs_batch=(), rhs_batch=())
    rank = x.type.rank
    return e.transpose(y, (*range(dim), rank - 1, *range(dim, rank - 1)))


def _adaptive_average(space: int) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, _size: object) -> Value:
        out = e.out
        lead = x.type.rank - space
        even = all(m and n % m == 0 for n, m in zip(x.type.shape[lead:], out.shape[lead:], strict=True))
        if even:
            kernel = [n // m for n, m in zip(x.type.shape[lead:], out.shape[lead:], strict=True)]
            sums = _tile_sums(e, x, kernel)
            return e.elementwise("multiply", sums, sums.type.num_elements / max(x.type.num_elements, 1))
        for d in range(lead, x.type.rank):
            x = along(e, x, d, _adaptive_weights(e, x.type.shape[d], out.shape[d], x.type.dtype))
        return x

    return row


def _adaptive_average_backward(space: int) -> Callable[..., Value]:
    def row(e: Emitter, g: Value, x: Value) -> Value:
        lead = x.type.rank - space
        even = all(m and n % m == 0 for n, m in zip(x.type.shape[lead:], g.type.shape[lead:], strict=True))
        if even:
            kernel = [n // m for n, m in zip(x.type.shape[lead:], g.type.shape[lead:], strict=True)]
            return _tile_spread(e, e.elementwise("multiply", g, g.type.num_elements / max(x.type.num_elements, 1)), x, kernel)
        for d in range(lead, x.type.rank):
            g = along(e, g, d, _adaptive_weights(e, x.type.shape[d], g.type.shape[d], x.type.dtype), back=True)
        return g

    return row


def _windows(e: Emitter, x: Value, dim: int, m: int) -> tuple[Value, Value, Value]:
    """Return `x` with `dim` cut into `m` windows that fill it, `[..., m, longest, ...]`; each place's index, and whether it counts."""
    n = x.type.shape[dim]
    longest = max(-(-(at + 1) * n // m) - at * n // m for at in range(m))
    bounds = [e.b.broadcast(value, (m, longest), (0,)) for value in _bounds(e, n, m)]
    index = e("add", bounds[0], index_along(e, (m, longest), 1))
    inside = e("compare_lt", index, bounds[1])
    index = e.elementwise("minimum", index, n - 1)
    return take(e, x, index, [dim]), index, inside


def _adaptive_max(space: int) -> Callable[..., tuple[Value, ...]]:
    def row(e: Emitter, x: Value, _size: object) -> tuple[Value, ...]:
        out, lead = e.out.shape, x.type.rank - space
        sizes = list(zip(x.type.shape[lead:], out[lead:], strict=True))
        if all(m and n % m == 0 for n, m in sizes):
            return _max_pool(space)(e, x, [n // m for n, m in sizes])
        flat: Value | None = None
        inside: list[Value] = []
        for d, (n, m) in enumerate(sizes):
            x, index, counts = _windows(e, x, lead + 2 * d, m)
            shape = (*x.type.shape[lead : lead + 2 * d + 2],)
            index, counts = (e.b.broadcast(value, shape, (2 * d, 2 * d + 1)) for value in (index, counts))
            if flat is not None:
                wide = e.b.broadcast(flat, shape, tuple(range(2 * d)))
                index = e("add", e.elementwise("multiply", wide, n), index)
            flat = index
            inside = [e.b.broadcast(value, shape, tuple(range(2 * d))) for value in inside] + [counts]
        assert flat is not None, "there is a spatial dim"
        valid = inside[0]
        for value in inside[1:]:
            valid = e("and", valid, value)
        spread = tuple(range(lead, x.type.rank))
        valid, flat = (e.b.broadcast(value, x.type.shape, spread) for value in (valid, flat))
        dims = tuple(lead + 2 * d + 1 for d in range(space))
        shown = e.select(valid, x, float("-inf"), x.type.dtype)
        best = e.reduce("reduce_max", shown, dims, keep=True)
        hits = e("and", valid, e.elementwise("compare_eq", shown, best))
        where = e.reduce("reduce_min", e.select(hits, flat, 2**62, "i64"), dims)
        return e.reshape(best, out), e.reshape(where, out)

    return row


def _adaptive_max_backward(space: int) -> Callable[..., Value]:
    def row(e: Emitter, g: Value, x: Value, indices: Value) -> Value:
        lead = x.type.shape[: x.type.rank - space]
        n = x.type.num_elements // max(_product(lead), 1)
        flat = [e.reshape(value, (*lead, value.type.num_elements // max(_product(lead), 1))) for value in (g, indices)]
        return e.reshape(e("scatter_sum", *flat, like=TensorType(x.type.dtype, (*lead, n)), batch=len(lead)), x.type.shape)

    return row


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for n in sizes:
        result *= n
    return result


POOLING: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten.max_pool{space}d_with_indices.default": _max_pool(space) for space in (2, 3)},
    **{f"aten.max_pool{space}d_with_indices_backward.default": _max_pool_backward(space) for space in (2, 3)},
    **{f"aten.avg_pool{space}d.default": _average(space) for space in (2, 3)},
    **{f"aten.avg_pool{space}d_backward.default": _average_backward(space) for space in (2, 3)},
    **{f"aten._adaptive_avg_pool{space}d.default": _adaptive_average(space) for space in (2, 3)},
    **{f"aten._adaptive_avg_pool{space}d_backward.default": _adaptive_average_backward(space) for space in (2, 3)},
    **{f"aten.adaptive_max_pool{space}d.default": _adaptive_max(space) for space in (2, 3)},
    **{f"aten.adaptive_max_pool{space}d_backward.default": _adaptive_max_backward(space) for space in (2, 3)},
}
