"""Lookups by integer tensors, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Operand, broadcast_shape
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.views import sliced
from maniple.ir.program import Value


def _embedding(e: Emitter, table: Value, ids: Value, _padding: int = -1, _scale: bool = False, sparse: bool = False) -> Value:
    if sparse:
        raise NotImplementedError("sparse gradients")
    return e("embedding", table, ids)


def _embedding_grad(e: Emitter, g: Value, ids: Value, _size: int, padding: int, scale: bool) -> Value:
    if scale:  # each row's gradient is the mean over its uses
        ones = e.full(1, TensorType(g.type.dtype, ids.type.shape))
        uses = e("gather", e("scatter_sum", ones, ids, like=TensorType(g.type.dtype, e.out.shape[:1]), batch=0), ids, batch=0)
        g = e.elementwise("divide", g, e.reshape(uses, (*ids.type.shape, 1)))
    return e("embedding_grad", g, ids, like=e.out, padding_idx=padding)


def _positions(e: Emitter, index: Value, n: int) -> Value:
    """Return an index with negative ones counted from the end of a dim of `n`."""
    index = e.cast(index, "i64")
    return e.select(e.elementwise("compare_lt", index, 0), e.elementwise("add", index, n), index, "i64")


def _flat_index(e: Emitter, x: Value, dims: Sequence[int], indices: Sequence[Value]) -> Value:
    """Return one index into `dims` seen as one, major to minor."""
    if any(index.type.dtype in ("bool", "u8") for index in indices):
        raise NotImplementedError("index tensors that are masks")
    shape = broadcast_shape([index.type.shape for index in indices])
    flat: Value | None = None
    for dim, index in zip(dims, indices, strict=True):
        n = x.type.shape[dim]
        found = e.expand(_positions(e, index, n), shape)
        flat = found if flat is None else e("add", e.elementwise("multiply", flat, n), found)
    assert flat is not None, "there is an index"
    return flat


def _indexed(indices: Sequence[Value | None]) -> tuple[list[int], list[Value]]:
    """Return the dims that have an index, and these."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    return dims, [index for index in indices if index is not None]


def _index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    dims, found = _indexed(indices)
    return take(e, x, _flat_index(e, x, dims, found), dims)


def _front(x: Value, dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of dims in which `dims` come first, and the dims of the rest."""
    rest = tuple(d for d in range(x.type.rank) if d not in dims)
    return (*dims, *rest), rest


def _target(dims: Sequence[int], many: int, rank: int) -> tuple[int, ...]:
    """Return where indexed rows `[n..., rest...]` have their dims in the result: n stands for `dims`, or first if these stand apart."""
    first = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    total = many + rank - len(dims)
    return (*range(many, many + first), *range(many), *range(many + first, total))


def take(e: Emitter, x: Value, flat: Value, dims: Sequence[int]) -> Value:
    """Return the elements of `dims`, seen as one dim, that `flat` points to, in the place of those dims."""
    perm, rest = _front(x, dims)
    shape = x.type.shape
    table = e.reshape(e.transpose(x, perm), (math.prod(shape[d] for d in dims), *(shape[d] for d in rest)))
    rows = e("gather", table, flat, batch=0)
    return e.transpose(rows, _target(dims, flat.type.rank, x.type.rank))


def _index_select(e: Emitter, x: Value, dim: int, index: Value) -> Value:
    if not x.type.rank:
        return e.reshape(x, e.out.shape)
    return e.reshape(take(e, x, index, [dim % x.type.rank]), e.out.shape)


def _flip(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    for dim in (d % x.type.rank for d in dims if x.type.rank):
        n = x.type.shape[dim]
        backward = e.elementwise("subtract", n - 1, index_along(e, (n,), 0))
        x = take(e, x, backward, [dim])
    return x


def _index_put(
    e: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, _unsafe: bool = False
) -> Value:
    dims, found = _indexed(indices)
    if len(indices) == 1 and found and found[0].type.dtype == "bool":
        return _masked_put(e, x, found[0], values, accumulate=accumulate)
    return put(e, x, _flat_index(e, x, dims, found), values, dims, "add" if accumulate else "set")


def _masked_put(e: Emitter, x: Value, mask: Value, values: Value, *, accumulate: bool) -> Value:
    """Return `x` with `values`, the same for every place, where the mask of its first dims holds."""
    rest = x.type.rank - mask.type.rank
    if values.type.rank > rest and values.type.shape[: values.type.rank - rest] != (1,):
        raise NotImplementedError("a mask with one value for each place")
    new = e.expand(e.reshape(values, values.type.shape[max(values.type.rank - rest, 0) :]), x.type.shape)
    mask = e.expand(e.reshape(mask, (*mask.type.shape, *(1,) * rest)), x.type.shape)
    return e.select(mask, e("add", x, new) if accumulate else new, x, x.type.dtype)


def put(e: Emitter, x: Value, flat: Value, values: Value, dims: Sequence[int], kind: str) -> Value:
    """Return `x` with `values` where `flat` points in `dims`, seen as one dim: added up, or as `scatter` does it."""
    perm, rest = _front(x, dims)
    back = tuple(perm.index(d) for d in range(x.type.rank))
    shape, many = x.type.shape, flat.type.rank
    target = _target(dims, many, x.type.rank)
    rows = (*flat.type.shape, *(shape[d] for d in rest))
    spread = e.expand(e.cast(values, x.type.dtype), [rows[d] for d in target])
    spread = e.transpose(spread, [target.index(d) for d in range(len(target))])
    kept = e.transpose(x, perm)
    table = x.type.with_shape((math.prod(shape[d] for d in dims), *(shape[d] for d in rest)))
    if kind == "add":
        summed = e.reshape(e("scatter_sum", spread, flat, like=table, batch=0), kept.type.shape)
        return e("add", x, e.transpose(summed, back))
    made = e("scatter", e.reshape(kept, table.shape), spread, flat, batch=0, kind=kind)
    return e.transpose(e.reshape(made, kept.type.shape), back)


def _index_add(e: Emitter, x: Value, dim: int, index: Value, values: Value, *, alpha: Operand = 1) -> Value:
    if alpha != 1:
        values = e.elementwise("multiply", values, alpha, dtype=x.type.dtype)
    return _along(e, x, dim, index, values, "add")


def _along(e: Emitter, x: Value, dim: int, index: Value, values: Value, kind: str) -> Value:
    """Return `x` with the slices `values` where `index` points in `dim`."""
    shape = x.type.shape
    one = x if shape else e.reshape(x, (1,))
    index = e.reshape(index, (index.type.num_elements,))
    dim = dim % one.type.rank
    full = (*one.type.shape[:dim], index.type.num_elements, *one.type.shape[dim + 1 :])
    return e.reshape(put(e, one, index, e.reshape(values, full), [dim], kind), shape)


def _index_copy(e: Emitter, x: Value, dim: int, index: Value, values: Value) -> Value:
    return _along(e, x, dim, index, values, "set")


def _index_fill(e: Emitter, x: Value, dim: int, index: Value, value: Operand) -> Value:
    """Return `x` with one number where `index` points in `dim`."""
    one = x if x.type.rank else e.reshape(x, (1,))
    dim = dim % one.type.rank
    n = one.type.shape[dim]
    places = _positions(e, e.reshape(index, (index.type.num_elements,)), n)
    ones = e.full(1, TensorType("i64", places.type.shape))
    hit = e.elementwise("compare_gt", e("scatter_sum", ones, places, like=TensorType("i64", (n,)), batch=0), 0)
    mask = e.b.broadcast(hit, one.type.shape, (dim,))
    return e.reshape(e.select(mask, value, one, one.type.dtype), x.type.shape)


def _take(e: Emitter, x: Value, index: Value) -> Value:
    n = x.type.num_elements
    return e("gather", e.reshape(x, (n,)), _positions(e, index, n), batch=0)


def _put(e: Emitter, x: Value, index: Value, values: Value, accumulate: bool = False) -> Value:
    n, count = x.type.num_elements, index.type.num_elements
    flat = e.reshape(_positions(e, index, n), (count,))
    done = put(e, e.reshape(x, (n,)), flat, e.reshape(values, (count,)), [0], "add" if accumulate else "set")
    return e.reshape(done, x.type.shape)


def _masked_scatter(e: Emitter, x: Value, mask: Value, source: Value) -> Value:
    """Return `x` with the source's elements, in order, where the mask holds."""
    out = e.out.shape
    x, mask = e.expand(x, out), e.expand(mask, out)
    n, m = x.type.num_elements, source.type.num_elements
    if not m:
        return x
    flat = e.cast(e.reshape(mask, (n,)), "i64")
    nth = e.elementwise("subtract", e("cumsum", flat, dim=0), 1)
    nth = e.elementwise("minimum", e.elementwise("maximum", nth, 0), m - 1)
    found = e("gather", e.reshape(source, (m,)), nth, batch=0)
    return e.select(mask, e.reshape(found, out), x, x.type.dtype)


def _masked_scatter_backward(e: Emitter, g: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """Return the gradient of the source: the gradients at the mask's places, in order."""
    n, m = g.type.num_elements, math.prod(sizes)
    flat = e.reshape(e.expand(mask, g.type.shape), (n,))
    count = e("cumsum", e.cast(flat, "i64"), dim=0)
    nth = e.select(flat, e.elementwise("subtract", count, 1), m, "i64")
    nth = e.elementwise("minimum", nth, m)
    summed = e("scatter_sum", e.reshape(g, (n,)), nth, like=g.type.with_shape((m + 1,)), batch=0)
    return e.reshape(sliced(e, summed, 0, 0, m), sizes)


INDEXING: Final[dict[str, Callable[..., Any]]] = {
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_grad,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_select.default": _index_select,
    "aten.flip.default": _flip,
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_fill.int_Scalar": _index_fill,
    "aten.index_fill.int_Tensor": _index_fill,
    "aten.take.default": _take,
    "aten.put.default": _put,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.masked_scatter_backward.default": _masked_scatter_backward,
}
