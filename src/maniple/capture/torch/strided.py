"""`as_strided`, which speaks of memory, as ops that speak of elements; torch's own kernels call it to choose a memory format."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Return the same elements as `x.as_strided(size, stride, storage_offset)`.

    Raises:
        NotImplementedError: if `x` is not all of its memory, in order.
    """
    index = _index(x, size, stride, storage_offset)
    return x.reshape(size) if index is None else x.reshape(-1)[index]


def as_strided_scatter(x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Return `x` with `source` in the place of `x.as_strided(size, stride, storage_offset)`.

    Raises:
        NotImplementedError: if `x` is not all of its memory, in order.
    """
    index = _index(x, size, stride, storage_offset)
    if index is None:
        return source.reshape(x.shape).clone()
    return x.reshape(-1).index_put((index,), source).reshape(x.shape)


def _index(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None) -> Tensor | None:
    """Return which elements of `x`, flat, stand at the places that are asked for; None if these are all of `x` in order."""
    offset = int(x.storage_offset()) if storage_offset is None else storage_offset
    if _places(x.shape, x.stride(), int(x.storage_offset())) == _places(size, stride, offset):
        return None
    if not x.is_contiguous() or x.storage_offset() or x.untyped_storage().nbytes() != x.numel() * x.element_size():
        raise NotImplementedError("as_strided of a part of a tensor")
    index = torch.full((), offset, dtype=torch.int64)
    for dim, (n, apart) in enumerate(zip(size, stride, strict=True)):
        index = index + (torch.arange(n) * apart).reshape((n, *[1] * (len(size) - dim - 1)))
    return index.reshape(tuple(size))


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> tuple[object, ...]:
    """Return what says where the elements lie, in order: dims of one element say nothing."""
    return (math.prod(size), offset, *((n, apart) for n, apart in zip(size, stride, strict=True) if n != 1))
