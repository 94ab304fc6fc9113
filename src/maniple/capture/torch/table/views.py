"""ATen ops that move elements about: views, joins and pads, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter
from maniple.ir.program import Value


def sliced(e: Emitter, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
    """Return every `stride`-th index of [start, limit) of `dim`; all of it is `x` itself."""
    n = x.type.shape[dim]
    if (start, limit, stride) == (0, n, 1):
        return x
    return e("slice", x, dim=dim, start=start, limit=limit, stride=stride)


def padded(e: Emitter, x: Value, dim: int, low: int, high: int, value: float = 0) -> Value:
    """Return `x` with more elements in `dim` (fewer where negative)."""
    if not low and not high:
        return x
    fill = float(value) if x.type.is_float else bool(value) if x.type.dtype == "bool" else int(value)
    return e("pad", x, dim=dim, low=low, high=high, value=fill)


def _to_out(e: Emitter, x: Value, *_args: object, **_options: object) -> Value:
    """Return `x` in the shape that the ATen op gives it (view, squeeze, unsqueeze)."""
    return e.reshape(x, e.out.shape)


def _transpose(e: Emitter, x: Value, one: int, other: int) -> Value:
    perm = list(range(x.type.rank))
    if not perm:
        return x
    perm[one], perm[other] = perm[other], perm[one]
    return e.transpose(x, perm)


def _t(e: Emitter, x: Value) -> Value:
    return x if x.type.rank < 2 else _transpose(e, x, 0, 1)  # a matrix


def _permute(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    return e.transpose(x, [d % x.type.rank for d in dims])


def _expand(e: Emitter, x: Value, *_args: object, **_options: object) -> Value:
    return e.expand(x, e.out.shape)


def _repeat(e: Emitter, x: Value, repeats: Sequence[int]) -> Value:
    lead = len(repeats) - x.type.rank
    shape = (1,) * lead + x.type.shape
    split = [n for r, m in zip(repeats, shape, strict=True) for n in (1, m)]
    wide = [n for r, m in zip(repeats, shape, strict=True) for n in (r, m)]
    return e.reshape(e.expand(e.reshape(x, split), wide), e.out.shape)


def _bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    low, high, _ = slice(start, end).indices(n)
    return low, max(low, high)


def _slice(e: Emitter, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    dim %= x.type.rank
    return sliced(e, x, dim, *_bounds(x.type.shape[dim], start, end), step)


def _select(e: Emitter, x: Value, dim: int, index: int) -> Value:
    dim %= x.type.rank
    index %= x.type.shape[dim]
    return e.reshape(sliced(e, x, dim, index, index + 1), e.out.shape)


def _split_sizes(e: Emitter, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    dim %= x.type.rank
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(sliced(e, x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True))


def _split(e: Emitter, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    n = x.type.shape[dim]
    return _split_sizes(e, x, [min(size, n - start) for start in range(0, n, size)], dim)


def _unbind(e: Emitter, x: Value, dim: int = 0) -> tuple[Value, ...]:
    pieces = _split_sizes(e, x, [1] * x.type.shape[dim], dim)
    return tuple(e.reshape(piece, e.out.shape) for piece in pieces)


def _cat(e: Emitter, parts: Sequence[Value], dim: int = 0) -> Value:
    kept = [e.cast(part, e.out.dtype) for part in parts if part.type.shape != (0,)]
    if not kept:
        return e.cast(parts[0], e.out.dtype)
    return kept[0] if len(kept) == 1 else e("concatenate", *kept, dim=dim % e.out.rank)


def _stack(e: Emitter, parts: Sequence[Value], dim: int = 0) -> Value:
    dim %= e.out.rank
    shape = (*e.out.shape[:dim], 1, *e.out.shape[dim + 1 :])
    return _cat(e, [e.reshape(part, shape) for part in parts], dim)


def _roll(e: Emitter, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not x.type.rank:
        return x
    if not dims:
        flat = _roll(e, e.reshape(x, (x.type.num_elements,)), shifts, (0,))
        return e.reshape(flat, x.type.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= x.type.rank  # noqa: PLW2901  # counted from the front
        n = x.type.shape[dim]
        at = -shift % n if n else 0
        if at:
            x = e("concatenate", sliced(e, x, dim, at, n), sliced(e, x, dim, 0, at), dim=dim)
    return x


def _pad(e: Emitter, x: Value, pads: Sequence[int], value: float = 0) -> Value:
    for at in range(0, len(pads), 2):
        x = padded(e, x, x.type.rank - 1 - at // 2, pads[at], pads[at + 1], value)
    return x


def _slice_backward(e: Emitter, g: Value, shape: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    n = shape[dim]
    dim %= len(shape)
    low, _ = _bounds(n, start, end)
    length = g.type.shape[dim]
    if step > 1 and length:
        spread = e.reshape(g, (*g.type.shape[: dim + 1], 1, *g.type.shape[dim + 1 :]))
        spread = padded(e, spread, dim + 1, 0, step - 1)
        g = e.reshape(spread, (*g.type.shape[:dim], length * step, *g.type.shape[dim + 1 :]))
        length *= step
    return padded(e, g, dim, low, n - low - length)


def _select_backward(e: Emitter, g: Value, shape: Sequence[int], dim: int, index: int) -> Value:
    dim %= len(shape)
    index %= shape[dim]
    return padded(e, e.reshape(g, (*shape[:dim], 1, *shape[dim + 1 :])), dim, index, shape[dim] - index - 1)


def _slice_scatter(
    e: Emitter, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim %= x.type.rank
    n = x.type.shape[dim]
    low, high = _bounds(n, start, end)
    source = e.cast(source, x.type.dtype)
    if step != 1:
        spread = _slice_backward(e, source, x.type.shape, dim, low, high, step)
        ones = _slice_backward(e, e.full(True, TensorType("bool", source.type.shape)), x.type.shape, dim, low, high, step)
        return e("select", ones, spread, x)
    parts = [sliced(e, x, dim, 0, low), source, sliced(e, x, dim, high, n)]
    kept = [part for part in parts if part.type.shape[dim]]
    return kept[0] if len(kept) == 1 else e("concatenate", *kept, dim=dim)


def _select_scatter(e: Emitter, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.type.rank
    index %= x.type.shape[dim]
    shape = (*x.type.shape[:dim], 1, *x.type.shape[dim + 1 :])
    return _slice_scatter(e, x, e.reshape(source, shape), dim, index, index + 1)


def _diagonal(e: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Return the diagonal: of the two dims seen as one, every element that is one row and one column on."""
    rows, columns = dim1 % x.type.rank, dim2 % x.type.rank
    rest = [d for d in range(x.type.rank) if d not in (rows, columns)]
    flat = e.transpose(x, (*rest, rows, columns))
    *lead, n, m = flat.type.shape
    length = e.out.shape[-1]
    flat = e.reshape(flat, (*lead, n * m))
    start = offset if offset >= 0 else -offset * m
    if not length:
        return sliced(e, flat, len(lead), 0, 0)
    return sliced(e, flat, len(lead), start, start + (length - 1) * (m + 1) + 1, m + 1)


def _diagonal_scatter(e: Emitter, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Return `x` with its diagonal exchanged for `source`."""
    rank = x.type.rank
    rows, columns = dim1 % rank, dim2 % rank
    at = [e("iota", like=TensorType("i64", x.type.shape), dim=d) for d in (rows, columns)]
    mask = e.elementwise("compare_eq", e.elementwise("add", at[0], offset), at[1])
    along = rows if offset >= 0 else columns  # the index along the diagonal
    lead = source.type.rank - 1
    source = padded(e, e.cast(source, x.type.dtype), lead, 0, x.type.shape[along] - source.type.shape[lead])
    rest = [d for d in range(rank) if d not in (rows, columns)]
    order = sorted(range(len(rest) + 1), key=[*rest, along].__getitem__)
    spread = e.b.broadcast(e.transpose(source, order), x.type.shape, tuple(sorted((*rest, along))))
    return e.select(mask, spread, x, x.type.dtype)


def _diagonal_backward(e: Emitter, g: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    return _diagonal_scatter(e, e.full(0, g.type.with_shape(tuple(sizes))), g, offset, dim1, dim2)


def _flatten_sizes(e: Emitter, x: Value, *_args: object) -> Value:
    assert math.prod(e.out.shape) == x.type.num_elements, "a view"
    return e.reshape(x, e.out.shape)


VIEWS: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten.{name}.default": _to_out for name in ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze")},
    "aten.squeeze.dim": _to_out,
    "aten.squeeze.dims": _to_out,
    "aten.unflatten.int": _flatten_sizes,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.permute.default": _permute,
    "aten.expand.default": _expand,
    "aten.repeat.default": _repeat,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.unsafe_split.Tensor": _split,
    "aten.split_with_sizes.default": _split_sizes,
    "aten.unbind.int": _unbind,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.roll.default": _roll,
    "aten.constant_pad_nd.default": _pad,
    "aten.slice_backward.default": _slice_backward,
    "aten.select_backward.default": _select_backward,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.diagonal.default": _diagonal,
    "aten.diagonal_copy.default": _diagonal,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.diagonal_backward.default": _diagonal_backward,
}
