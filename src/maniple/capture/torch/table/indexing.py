"""Lookups by integer tensors, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Operand, broadcast_shape
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.views import padded, sliced
from maniple.ir.program import Value

NO_IGNORE: Final = -(2**62)
"""An ignore_index that no label has."""


def _embedding(e: Emitter, table: Value, ids: Value, _padding: int = -1, _scale: bool = False, sparse: bool = False) -> Value:
    if sparse:
        raise NotImplementedError("sparse gradients")
    return e("embedding", table, ids)


def _embedding_grad(e: Emitter, g: Value, ids: Value, _size: int, padding: int, scale: bool) -> Value:
    if scale:
        raise NotImplementedError("scale_grad_by_freq")
    return e("embedding_grad", g, ids, like=e.out, padding_idx=padding)


def _flat_index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> tuple[Value, int, int]:
    """Return one index into the flattened indexed dims, which must stand together, the first of them and their number."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    first, last = dims[0], dims[-1]
    found = [index for index in indices if index is not None]
    if len(dims) != last - first + 1 or any(index.type.dtype == "bool" for index in found):
        raise NotImplementedError("index tensors that do not stand side by side, or are masks")
    shape = broadcast_shape([index.type.shape for index in found])
    flat: Value | None = None
    for dim, index in zip(dims, found, strict=True):
        n = x.type.shape[dim]
        index = e.expand(e.cast(index, "i64"), shape)  # noqa: PLW2901  # the same index
        index = e.select(e.elementwise("compare_lt", index, 0), e.elementwise("add", index, n), index, "i64")  # noqa: PLW2901
        flat = index if flat is None else e("add", e.elementwise("multiply", flat, n), index)
    assert flat is not None, "there is an index"
    return flat, first, len(dims)


def _index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    flat, first, count = _flat_index(e, x, indices)
    return _take(e, x, flat, first, count)


def _take(e: Emitter, x: Value, flat: Value, first: int, count: int) -> Value:
    """Return rows of dims [first, first + count), seen as one, in the place of those dims."""
    rank, shape = x.type.rank, x.type.shape
    middle = tuple(range(first, first + count))
    rest = tuple(d for d in range(rank) if d not in middle)
    table = e.reshape(e.transpose(x, (*middle, *rest)), (math.prod(shape[d] for d in middle), math.prod(shape[d] for d in rest)))
    rows = e.reshape(e("embedding", table, flat), (*flat.type.shape, *(shape[d] for d in rest)))
    n = flat.type.rank
    return e.transpose(rows, (*range(n, n + first), *range(n), *range(n + first, rows.type.rank)))


def _index_select(e: Emitter, x: Value, dim: int, index: Value) -> Value:
    dim %= x.type.rank
    return _take(e, x, index, dim, 1)


def _flip(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    for dim in (d % x.type.rank for d in dims):
        n = x.type.shape[dim]
        backward = e.elementwise("subtract", n - 1, index_along(e, (n,), 0))
        x = _take(e, x, backward, dim, 1)
    return x


def _index_put(e: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if len(indices) == 1 and indices[0] is not None and indices[0].type.dtype == "bool":
        return _masked_put(e, x, indices[0], values, accumulate=accumulate)
    if not accumulate:
        raise NotImplementedError("index_put without accumulate")
    flat, first, count = _flat_index(e, x, indices)
    return e("add", x, _put(e, x, flat, values, first, count))


def _masked_put(e: Emitter, x: Value, mask: Value, values: Value, *, accumulate: bool) -> Value:
    """Return `x` with `values`, the same for every place, where the mask of its first dims holds."""
    rest = x.type.rank - mask.type.rank
    if values.type.rank > rest and values.type.shape[: values.type.rank - rest] != (1,):
        raise NotImplementedError("a mask with one value for each place")
    new = e.expand(e.reshape(values, values.type.shape[max(values.type.rank - rest, 0) :]), x.type.shape)
    mask = e.expand(e.reshape(mask, (*mask.type.shape, *(1,) * rest)), x.type.shape)
    return e.select(mask, e("add", x, new) if accumulate else new, x, x.type.dtype)


def _put(e: Emitter, x: Value, flat: Value, values: Value, first: int, count: int) -> Value:
    """Return a tensor like `x` that has the sums of `values` where `flat` points, 0 elsewhere."""
    rank, shape = x.type.rank, x.type.shape
    middle = tuple(range(first, first + count))
    rest = tuple(d for d in range(rank) if d not in middle)
    n = flat.type.rank
    full = (*(shape[d] for d in range(first)), *flat.type.shape, *(shape[d] for d in range(first + count, rank)))
    values = e.expand(values, full)
    values = e.transpose(values, (*range(first, first + n), *range(first), *range(first + n, values.type.rank)))
    width = math.prod(shape[d] for d in rest)
    like = x.type.with_shape((math.prod(shape[d] for d in middle), width))
    summed = e("embedding_grad", e.reshape(values, (*flat.type.shape, width)), flat, like=like, padding_idx=-1)
    perm = (*middle, *rest)
    summed = e.reshape(summed, tuple(shape[d] for d in perm))
    return e.transpose(summed, tuple(perm.index(d) for d in range(rank)))


def _index_add(e: Emitter, x: Value, dim: int, index: Value, values: Value, *, alpha: Operand = 1) -> Value:
    if alpha != 1:
        raise NotImplementedError("index_add with a factor")
    dim %= x.type.rank
    return e("add", x, _put(e, x, index, values, dim, 1))


def _last(x: Value, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of dims in which `dim` is last, and the order back."""
    perm = (*(d for d in range(x.type.rank) if d != dim), dim)
    return perm, tuple(perm.index(d) for d in range(x.type.rank))


def _labels(e: Emitter, x: Value, dim: int, index: Value) -> tuple[tuple[int, ...], Value]:
    """Return the order of dims in which `dim` is last, and the index as labels in that order: dims of `x`, then one of its own.

    The index may be smaller than `x` in other dims: it then stands for the first part.
    """
    perm, _ = _last(x, dim)
    if any(index.type.shape[d] > x.type.shape[d] for d in perm[:-1]):
        raise NotImplementedError(f"an index of shape {list(index.type.shape)} into {list(x.type.shape)}")
    return perm, e.transpose(index, perm)


def _gather(e: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    dim %= x.type.rank
    perm, labels = _labels(e, x, dim, index)
    rows = e.transpose(x, perm)
    for d, n in enumerate(labels.type.shape[:-1]):
        rows = sliced(e, rows, d, 0, n)
    *rest, k = labels.type.shape
    n = x.type.shape[dim]
    if k == 1:
        labels = e.reshape(labels, rest)
    else:
        rows = e.expand(e.reshape(rows, (*rest, 1, n)), (*rest, k, n))
    picked = e("pick", rows, labels, ignore_index=NO_IGNORE)
    return e.transpose(e.reshape(picked, (*rest, k)), _last(x, dim)[1])


def _scatter_add(e: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim %= x.type.rank
    perm, labels = _labels(e, x, dim, index)
    source = e.transpose(source, perm)
    for d, n in enumerate(labels.type.shape):
        source = sliced(e, source, d, 0, n)
    like = x.type.with_shape((*labels.type.shape, x.type.shape[dim]))
    spread = e.sum(e("pick_grad", source, labels, like=like, ignore_index=NO_IGNORE), (-2,))
    for d, n in enumerate(labels.type.shape[:-1]):
        spread = padded(e, spread, d, 0, x.type.shape[perm[d]] - n)
    return e("add", x, e.transpose(spread, _last(x, dim)[1]))


def _scatter(e: Emitter, x: Value, dim: int, index: Value, source: Operand) -> Value:
    dim %= x.type.rank
    expected = (*x.type.shape[:dim], 1, *x.type.shape[dim + 1 :])
    if index.type.shape != expected:
        raise NotImplementedError(f"an index of shape {list(index.type.shape)} where {list(expected)} is mapped")
    hits = e.elementwise("compare_eq", index_along(e, x.type.shape, dim), index)
    return e.select(hits, source, x, x.type.dtype)


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
    "aten.gather.default": _gather,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter.value": _scatter,
    "aten.scatter.src": _scatter,
}
