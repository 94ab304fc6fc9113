"""Ops that make tensors or move elements about, and those that combine elements along dims, as PyTorch calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.kernels.torch.emit import TORCH_DTYPES, Emit, dtype, full, literal, offset, scalar
from maniple.ops.reduce import dot_free_dims


def _constant(op: Op, _operands: Sequence[str]) -> str:
    kind = op.results[0].type
    return full(scalar(op.attr("value"), kind.dtype), kind)


def _iota(op: Op, operands: Sequence[str]) -> str:
    kind, dim, start = op.results[0].type, op.integer("dim"), offset(operands, 0)
    n = kind.shape[dim]
    line = f"torch.arange({start}, {start} + {n}, dtype={dtype(kind.dtype)}, device=device)"
    if kind.rank == 1:
        return line
    ones = tuple(n if d == dim else 1 for d in range(kind.rank))
    return f"{line}.reshape({literal(ones)}).expand({literal(kind.shape)})"


def _broadcast(op: Op, operands: Sequence[str]) -> str:
    dims, shape = op.ints("dims"), op.results[0].type.shape
    x = operands[0]
    order = sorted(range(len(dims)), key=dims.__getitem__)
    if order != list(range(len(dims))):
        x = f"{x}.permute({literal(tuple(order))})"
    ones = tuple(n if d in dims else 1 for d, n in enumerate(shape))
    if dims and ones != tuple(shape[d] for d in sorted(dims)):
        x = f"{x}.reshape({literal(ones)})"
    return f"{x}.expand({literal(shape)})"


def _reshape(op: Op, operands: Sequence[str]) -> str:
    return f"{operands[0]}.reshape({literal(op.results[0].type.shape)})"


def _transpose(op: Op, operands: Sequence[str]) -> str:
    return f"{operands[0]}.permute({literal(op.ints('perm'))})"


def _slice(op: Op, operands: Sequence[str]) -> str:
    dim, start, limit, stride = (op.integer(name) for name in ("dim", "start", "limit", "stride"))
    if stride == 1:
        return f"{operands[0]}.narrow({dim}, {start}, {limit - start})"
    return f"{operands[0]}[{':, ' * dim}{start}:{limit}:{stride}]"


def _pad(op: Op, operands: Sequence[str]) -> str:
    source, kind, dim = op.operands[0].type, op.results[0].type, op.integer("dim")
    value = scalar(op.attr("value"), kind.dtype)
    if not source.num_elements:
        return full(value, kind)
    amounts = (0, 0) * (kind.rank - dim - 1) + (op.integer("low"), op.integer("high"))
    return f"torch.constant_pad_nd({operands[0]}, {literal(amounts)}, {value})"


def _concatenate(op: Op, operands: Sequence[str]) -> str:
    return f"torch.cat([{', '.join(operands)}], {op.integer('dim')})"


def _local_slice(op: Op, operands: Sequence[str]) -> str:
    shape, dim, blocks = op.operands[0].type.shape, op.integer("dim"), op.integer("blocks")
    x, start = operands
    length = op.results[0].type.shape[dim] // blocks
    if blocks == 1:
        return f"{x}.narrow({dim}, {start}, {length})"
    seen = (*shape[:dim], blocks, shape[dim] // blocks, *shape[dim + 1 :])
    return f"{x}.reshape({literal(seen)}).narrow({dim + 1}, {start}, {length}).reshape({literal(op.results[0].type.shape)})"


def _keep_at_zero(_op: Op, operands: Sequence[str]) -> str:
    x, index = operands
    return f"{x} if {index} == 0 else torch.zeros_like({x})"


def _identity(name: str, kind: str) -> str:
    """Return what reduction `name` of nothing gives."""
    if name == "reduce_sum":
        return scalar(0, kind)
    sign = -1 if name == "reduce_max" else 1
    if kind == "bool":
        return scalar(value=sign > 0, kind=kind)
    if TensorType(kind).is_float:
        return scalar(sign * math.inf, kind)
    info = torch.iinfo(TORCH_DTYPES[kind])
    return scalar(info.min if sign < 0 else info.max, kind)


def _reduce(op: Op, operands: Sequence[str], *, function: str) -> str:
    source, kind, dims = op.operands[0].type, op.results[0].type, op.ints("dims")
    if not dims:
        return operands[0]
    if not all(source.shape[d] for d in dims):
        return full(_identity(op.name, kind.dtype), kind)
    accumulate = f", dtype={dtype(kind.dtype)}" if function == "sum" else ""
    return f"torch.{function}({operands[0]}, {literal(dims)}{accumulate})"


def _cumsum(op: Op, operands: Sequence[str]) -> str:
    return f"torch.cumsum({operands[0]}, {op.integer('dim')}, dtype={dtype(op.results[0].type.dtype)})"


def _as_matrices(x: str, shape: Sequence[int], groups: Sequence[Sequence[int]]) -> str:
    """Return `x` with each group of dims as one dim, in the order of the groups; a group of no dims becomes a dim of size 1."""
    order = tuple(d for group in groups for d in group)
    if order != tuple(range(len(shape))):
        x = f"{x}.permute({literal(order)})"
    merged = tuple(math.prod(shape[d] for d in group) for group in groups)
    if merged != tuple(shape[d] for d in order):
        x = f"{x}.reshape({literal(merged)})"
    return x


def _dot_general(op: Op, operands: Sequence[str]) -> str:
    (lhs, rhs), (m, n) = (value.type.shape for value in op.operands), dot_free_dims(op)
    contract, batch = ([op.ints(f"{side}_{what}") for side in ("lhs", "rhs")] for what in ("contract", "batch"))
    has_batch = bool(batch[0])
    x = _as_matrices(operands[0], lhs, [*([batch[0]] if has_batch else []), m, contract[0]])
    y = _as_matrices(operands[1], rhs, [*([batch[1]] if has_batch else []), contract[1], n])
    product = f"torch.{'bmm' if has_batch else 'mm'}({x}, {y})"
    shape = op.results[0].type.shape
    flat = len(m) == len(n) == 1 and len(batch[0]) <= 1
    return product if flat else f"{product}.reshape({literal(shape)})"


STRUCTURE: Final[Mapping[str, Emit]] = {
    "constant": _constant,
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "local_slice": _local_slice,
    "keep_at_zero": _keep_at_zero,
    "reduce_sum": partial(_reduce, function="sum"),
    "reduce_max": partial(_reduce, function="amax"),
    "reduce_min": partial(_reduce, function="amin"),
    "cumsum": _cumsum,
    "dot_general": _dot_general,
}
"""Kernels of the families structure, reshape and reduce. Many results are views of their operands."""
