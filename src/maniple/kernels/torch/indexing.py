"""Gather, scatter, sorting, running reductions and searches as PyTorch calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.kernels.torch.emit import Emit, dtype, full, literal, offset, scalar


def _grouped(x: Tensor, *counts: int) -> Tensor:
    """Return `x` with its dims in groups of so many, each group one dim."""
    shape, at = [], 0
    for count in counts:
        shape.append(math.prod(x.shape[at : at + count]))
        at += count
    return x.reshape(shape)


def _here(index: Tensor, rows: int, start: int) -> tuple[Tensor, Tensor]:
    """Return the index in a shard of `rows` rows from `start` on, and where it lies outside."""
    local = index - start
    return local, (local < 0) | (local >= rows)


def gather(x: Tensor, index: Tensor, batch: int, start: int, *, is_shard: bool) -> Tensor:
    """Return the rows of `x` `[batch..., v, rest...]` that `index` `[batch..., n...]` points to.

    Args:
        x: rows from `start` on; v > 0.
        index: integers in the whole tensor's dim.
        batch: number of batch dims.
        start: the whole tensor's row that is the first one here.
        is_shard: whether indices may lie outside of `x`, for which rows are 0; where they may not, one that does is an error.
    """
    lead, rest, many = x.shape[:batch], x.dim() - batch - 1, index.dim() - batch
    shape = (*index.shape, *x.shape[batch + 1 :])
    x, index = _grouped(x, batch, 1, rest), _grouped(index.long(), batch, many)
    outside = None
    if is_shard:
        index, outside = _here(index, x.shape[1], start)
        index = index.masked_fill(outside, 0)
    rows = torch.gather(x, 1, index.unsqueeze(2).expand(*index.shape, x.shape[2])) if lead else x[0].index_select(0, index[0]).unsqueeze(0)
    if outside is not None:
        rows.masked_fill_(outside.unsqueeze(2), 0)
    return rows.reshape(shape)


def scatter_sum(rows: Tensor, index: Tensor, shape: Sequence[int], batch: int, start: int, *, is_shard: bool) -> Tensor:
    """Return a tensor of `shape` `[batch..., v, rest...]` that holds the sums of the rows that each index meets, 0 where there are none.

    Args:
        rows: `[batch..., n..., rest...]`.
        index: integers `[batch..., n...]`.
        shape: of the result, of which rows from `start` on are here.
        batch: number of batch dims.
        start: the whole result's row that is the first one here.
        is_shard: whether indices may lie outside, and count for nothing.
    """
    many, size = index.dim() - batch, shape[batch]
    rows, index = _grouped(rows, batch, many, rows.dim() - batch - many), _grouped(index.long(), batch, many)
    if is_shard:
        index, outside = _here(index, size, start)
        index = index.masked_fill(outside, size)  # one more row collects what belongs elsewhere
    out = rows.new_zeros((rows.shape[0], size + is_shard, rows.shape[2]))
    if batch:
        out.scatter_add_(1, index.unsqueeze(2).expand(rows.shape), rows)
    else:
        out[0].index_add_(0, index[0], rows[0])
    return out[:, :size].reshape(tuple(shape))


_REDUCE: Final = {"max": "amax", "min": "amin", "multiply": "prod"}


def scatter(x: Tensor, rows: Tensor, index: Tensor, kind: str, batch: int, start: int, *, is_shard: bool) -> Tensor:
    """Return `x` `[batch..., v, rest...]` with `rows` `[batch..., n..., rest...]` put where `index` `[batch..., n...]` points.

    Args:
        x: rows from `start` on.
        rows: what is put there.
        index: integers in the whole tensor's dim.
        kind: `set`, `max`, `min` or `multiply`.
        batch: number of batch dims.
        start: the whole tensor's row that is the first one here.
        is_shard: whether indices may lie outside, and count for nothing.
    """
    shape, many, size = x.shape, index.dim() - batch, x.shape[batch]
    x, index = _grouped(x, batch, 1, x.dim() - batch - 1), _grouped(index.long(), batch, many)
    rows = _grouped(rows, batch, many, rows.dim() - batch - many)
    if is_shard:
        index, outside = _here(index, size, start)
        index = index.masked_fill(outside, size)
        out = torch.cat([x, x.new_zeros((x.shape[0], 1, x.shape[2]))], 1)
    else:
        out = x.clone()
    at = index.unsqueeze(2).expand(rows.shape)
    if kind == "set":
        out.scatter_(1, at, rows)
    else:
        out.scatter_reduce_(1, at, rows, _REDUCE[kind], include_self=True)
    return out[:, :size].reshape(shape)


def _has_empty(op: Op) -> bool:
    return any(value.type.num_elements == 0 for value in (*op.operands, *op.results))


def _zeros(kind: TensorType) -> str:
    return full(scalar(0, kind.dtype), kind)


def _where(op: Op, x: Sequence[str], count: int) -> str:
    return f"{op.integer('batch')}, {offset(x, count)}, is_shard={literal(len(x) > count)}"


def _gather(op: Op, x: Sequence[str]) -> str:
    return _zeros(op.results[0].type) if _has_empty(op) else f"gather({x[0]}, {x[1]}, {_where(op, x, 2)})"


def _scatter_sum(op: Op, x: Sequence[str]) -> str:
    kind = op.results[0].type
    return _zeros(kind) if _has_empty(op) else f"scatter_sum({x[0]}, {x[1]}, {literal(kind.shape)}, {_where(op, x, 2)})"


def _scatter(op: Op, x: Sequence[str]) -> str:
    if _has_empty(op):
        return f"{x[0]}.clone()"
    return f"scatter({x[0]}, {x[1]}, {x[2]}, {literal(op.attr('kind'))}, {_where(op, x, 3)})"


def _sort(op: Op, x: Sequence[str]) -> str:
    return f"tuple(torch.sort({x[0]}, stable=True, dim={op.integer('dim')}, descending={literal(op.attr('descending'))}))"


def _top_k(op: Op, x: Sequence[str]) -> str:
    return f"tuple(torch.topk({x[0]}, {op.integer('k')}, {op.integer('dim')}, largest={literal(op.attr('largest'))}))"


def _running(name: str) -> Emit:
    return lambda op, x: f"torch.{name}({x[0]}, {op.integer('dim')}, dtype={dtype(op.results[0].type.dtype)})"


def _running_extreme(name: str) -> Emit:
    return lambda op, x: f"tuple(torch.{name}({x[0]}, {op.integer('dim')}))"


def _search(op: Op, x: Sequence[str]) -> str:
    if not op.operands[0].type.shape[-1] or _has_empty(op):
        return _zeros(op.results[0].type)
    return f"torch.searchsorted({x[0]}.contiguous(), {x[1]}.contiguous(), right={literal(op.attr('right'))})"


def _product(op: Op, x: Sequence[str]) -> str:
    result = x[0] if op.ints("dims") else f"{x[0]}.clone()"
    for dim in sorted(op.ints("dims"), reverse=True):
        result = f"{result}.prod({dim}, dtype={dtype(op.results[0].type.dtype)})"
    return result


INDEXING: Final[Mapping[str, Emit]] = {
    "gather": _gather,
    "scatter_sum": _scatter_sum,
    "scatter": _scatter,
    "sort": _sort,
    "top_k": _top_k,
    "cumprod": _running("cumprod"),
    "logcumsumexp": lambda op, x: f"torch.logcumsumexp({x[0]}, {op.integer('dim')})",
    "cummax": _running_extreme("cummax"),
    "cummin": _running_extreme("cummin"),
    "searchsorted": _search,
    "reduce_prod": _product,
}

INDEXING_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {"gather": gather, "scatter_sum": scatter_sum, "scatter": scatter}
"""What those expressions call besides PyTorch itself."""
