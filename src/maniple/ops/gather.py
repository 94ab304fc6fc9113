"""Gather and scatter: rows of a tensor by integers, with any leading dims that go along.

A tensor is `[batch..., v, rest...]`, an index `[batch..., n...]` of integers in [0, v), rows `[batch..., n..., rest...]`; the attribute
`batch` is the number of batch dims, and there may be none of each kind. With one, this is StableHLO's gather of whole rows; with all dims
but one as batch dims it takes one element for each index.

The dim `v` may be sharded: a device then gives 0 for what lies outside of its shard (gather), or leaves it out (scatter). Where its shard
begins comes as a last operand of the local op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.mesh.sharding import Pending
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.opdef import Attrs, Linear, OpDef
from maniple.ops.structure import int_attr

SCATTER_KINDS: Final = ("set", "max", "min", "multiply")
"""What `scatter` does with a row and the rows that meet it. Of several rows that are set, one stays: which one is not said."""

_KEEPS: Final[dict[str, Pending]] = {"max": "max", "min": "min"}
"""Kinds of scatter that may be done in parts: a row met twice is what it is when met once."""


def _split_operands(operands: Sequence[TensorType], count: int) -> list[TensorType]:
    """Return the first `count` operands; there may be an offset after them."""
    if len(operands) not in (count, count + 1) or (len(operands) == count + 1 and operands[count] != TensorType("i64")):
        raise ValueError(f"expected {count} operands, and for a local shard its i64 offset")
    return list(operands[:count])


def _rows(kind: TensorType, index: TensorType, attrs: Attrs) -> TensorType:
    """Return the type of the rows of `kind` that `index` points to."""
    batch = int_attr(attrs, "batch")
    if index.is_float or index.dtype == "bool":
        raise ValueError(f"indices must be integers, got {index}")
    if not 0 <= batch <= min(kind.rank - 1, index.rank) or kind.shape[:batch] != index.shape[:batch]:
        raise ValueError(f"{kind} and indices {index} do not have {batch} leading dims in common and a dim to look into")
    return kind.with_shape((*index.shape, *kind.shape[batch + 1 :]))


def infer_gather(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the rows `[batch..., n..., rest...]` of a tensor `[batch..., v, rest...]` for an index `[batch..., n...]`.

    Raises:
        ValueError: if they do not fit.
    """
    x, index = _split_operands(operands, 2)
    return (_rows(x, index, attrs),)


def infer_scatter_sum(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, a tensor `[batch..., v, rest...]`, for rows to add up and an index.

    Raises:
        ValueError: if they do not fit, or the dtype has no sum.
    """
    rows, index = _split_operands(operands, 2)
    if like is None or rows.dtype == "bool" or rows != _rows(like, index, attrs):
        raise ValueError(f"rows {rows} do not fit indices {index} and the result's type {like}")
    return (like,)


def infer_scatter(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the first operand, a tensor `[batch..., v, rest...]`, into which rows are put; the third is the index.

    Raises:
        ValueError: if they do not fit, or there is no such kind.
    """
    x, rows, index = _split_operands(operands, 3)
    if attrs.get("kind") not in SCATTER_KINDS:
        raise ValueError(f"attribute kind must be one of {', '.join(SCATTER_KINDS)}, got {attrs.get('kind')!r}")
    if rows != _rows(x, index, attrs):
        raise ValueError(f"rows {rows} do not fit indices {index} and {x}")
    return (x,)


def _dims(op: Op, x: TensorType, index: TensorType) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...], dict[str, int]]:
    """Return the factors of the tensor, the index and the rows, and all sizes."""
    batch = op.integer("batch")
    lead = [(f"b{d}", n) for d, n in enumerate(x.shape[:batch])]
    many = [(f"n{d}", n) for d, n in enumerate(index.shape[batch:])]
    rest = [(f"r{d}", n) for d, n in enumerate(x.shape[batch + 1 :])]
    sides = [[*lead, ("v", x.shape[batch]), *rest], [*lead, *many], [*lead, *many, *rest]]
    tensor, indices, rows = (tuple((name,) for name, _ in side) for side in sides)
    return tensor, indices, rows, dict([*sides[0], *many])


def gather_factors(op: Op) -> FactorRule:
    """Return the rule `b v r, b n -> b n r`: a split of v leaves a pending sum, which bool does not have."""
    x, index, rows, sizes = _dims(op, op.operands[0].type, op.operands[1].type)
    return FactorRule((x, index), (rows,), sizes, frozenset({"v"} if op.operands[0].type.dtype == "bool" else ()))


def scatter_sum_factors(op: Op) -> FactorRule:
    """Return the rule `b n r, b n -> b v r`: a split of n leaves a pending sum."""
    x, index, rows, sizes = _dims(op, op.results[0].type, op.operands[1].type)
    return FactorRule((rows, index), (x,), sizes)


def scatter_factors(op: Op) -> FactorRule:
    """Return the rule `b v r, b n r, b n -> b v r`: a split of n leaves a pending maximum or minimum; others need it whole."""
    x, index, rows, sizes = _dims(op, op.results[0].type, op.operands[2].type)
    many = [name for name in sizes if name.startswith("n")]
    kind = _KEEPS.get(str(op.attr("kind")))
    reduce = dict.fromkeys(many, kind) if kind else {}
    return FactorRule((x, rows, index), (x,), sizes, frozenset() if kind else frozenset(many), reduce)


def _scatter_linear(op: Op) -> Linear:
    return {"set": (frozenset({0, 1}),), "multiply": (frozenset({0}),)}.get(str(op.attr("kind")), ())


def _row_elements(op: Op) -> int:
    return op.operands[0 if op.name == "scatter_sum" else 1].type.num_elements


def _v(_op: Op) -> tuple[str, ...]:
    return ("v",)


GATHER: tuple[OpDef, ...] = (
    OpDef("gather", infer_gather, gather_factors, linear_in({0}), offsets=_v, is_contraction=True),
    OpDef("scatter_sum", infer_scatter_sum, scatter_sum_factors, linear_in({0}), _row_elements, offsets=_v, is_contraction=True),
    OpDef("scatter", infer_scatter, scatter_factors, _scatter_linear, _row_elements, offsets=_v),
)
