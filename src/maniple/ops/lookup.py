"""Lookups by integer: rows of a table (embedding), one element of each row (the loss's target), and their gradients.

The dim that is looked into may be sharded: a device then gives 0 for what lies outside of its shard, and the shards' results are
a pending sum. Where its shard begins comes as a last operand of the local op.
"""

from __future__ import annotations

from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import int_attr


def _check_operands(operands: Sequence[TensorType], what: str) -> None:
    """Raise unless there are two operands, the second of integers, and perhaps an offset."""
    if len(operands) not in (2, 3) or (len(operands) == 3 and operands[2] != TensorType("i64")):
        raise ValueError(f"expected {what} and integers, and for a local shard its i64 offset")
    if operands[1].is_float or operands[1].dtype == "bool":
        raise ValueError(f"indices must be integers, got {operands[1]}")


def _index_dims(rank: int) -> tuple[tuple[str, ...], ...]:
    return tuple((f"n{i}",) for i in range(rank))


def _sizes(shape: tuple[int, ...], **more: int) -> dict[str, int]:
    return {f"n{i}": n for i, n in enumerate(shape)} | more


def infer_embedding(operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `[..., d]` for a table `[v, d]` and ids `[...]`."""
    _check_operands(operands, "a table")
    table, ids = operands[:2]
    if table.rank != 2:
        raise ValueError(f"the table must have two dims, got {table}")
    return (table.with_shape((*ids.shape, table.shape[1])),)


def embedding_factors(op: Op) -> FactorRule:
    """Return the rule `v d, n -> n d`: a split of v leaves a pending sum."""
    table, ids = op.operands[0].type, op.operands[1].type
    n = _index_dims(ids.rank)
    sizes = _sizes(ids.shape, v=table.shape[0], d=table.shape[1])
    return FactorRule(((("v",), ("d",)), n), ((*n, ("d",)),), sizes)


def infer_embedding_grad(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the table's type, which is `like`, for a gradient `[..., d]` and ids `[...]`."""
    _check_operands(operands, "a gradient")
    int_attr(attrs, "padding_idx")
    grad, ids = operands[:2]
    if like is None or like.rank != 2:
        raise ValueError("the result's type, that of the table, must be given")
    if grad != TensorType(like.dtype, (*ids.shape, like.shape[1])):
        raise ValueError(f"the gradient does not fit ids {ids} and table {like}")
    return (like,)


def embedding_grad_factors(op: Op) -> FactorRule:
    """Return the rule `n d, n -> v d`: a split of any n leaves a pending sum."""
    ids, table = op.operands[1].type, op.results[0].type
    n = _index_dims(ids.rank)
    sizes = _sizes(ids.shape, v=table.shape[0], d=table.shape[1])
    return FactorRule(((*n, ("d",)), n), ((("v",), ("d",)),), sizes)


def infer_pick(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `[n]` for `x[n, v]` and labels `[n]`; n may be several dims."""
    _check_operands(operands, "values")
    int_attr(attrs, "ignore_index")
    x, labels = operands[:2]
    if x.shape[:-1] != labels.shape or not x.rank:
        raise ValueError("labels must have the values' dims but the last")
    return (x.with_shape(labels.shape),)


def pick_factors(op: Op) -> FactorRule:
    """Return the rule `n v, n -> n`: a split of v leaves a pending sum."""
    x, labels = op.operands[0].type, op.operands[1].type
    n = _index_dims(labels.rank)
    return FactorRule(((*n, ("v",)), n), (n,), _sizes(labels.shape, v=x.shape[-1]))


def infer_pick_grad(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the values picked from, which is `like`, for a gradient `[n]` and labels `[n]`."""
    _check_operands(operands, "a gradient")
    int_attr(attrs, "ignore_index")
    grad, labels = operands[:2]
    if like is None or not like.rank:
        raise ValueError("the result's type, that of the values picked from, must be given")
    if grad != TensorType(like.dtype, labels.shape) or like.shape[:-1] != labels.shape:
        raise ValueError(f"the gradient does not fit labels {labels} and values {like}")
    return (like,)


def pick_grad_factors(op: Op) -> FactorRule:
    """Return the rule `n, n -> n v`."""
    labels, x = op.operands[1].type, op.results[0].type
    n = _index_dims(labels.rank)
    return FactorRule((n, n), ((*n, ("v",)),), _sizes(labels.shape, v=x.shape[-1]))


def _first_operand_elements(op: Op) -> int:
    return op.operands[0].type.num_elements


LOOKUP: tuple[OpDef, ...] = (
    OpDef(
        "embedding", infer_embedding, embedding_factors, linear_in({0}), offsets=lambda _op: ("v",), is_contraction=True
    ),
    OpDef(
        "embedding_grad", infer_embedding_grad, embedding_grad_factors, linear_in({0}), _first_operand_elements,
        offsets=lambda _op: ("v",), is_contraction=True,
    ),
    OpDef("pick", infer_pick, pick_factors, linear_in({0}), offsets=lambda _op: ("v",)),
    OpDef(
        "pick_grad", infer_pick_grad, pick_grad_factors, linear_in({0}), _first_operand_elements,
        offsets=lambda _op: ("v",),
    ),
)  # fmt: skip
