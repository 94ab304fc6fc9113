"""What is known of an op: one row of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.base.types import TensorType
from maniple.ir.program import Attr, Op, Value
from maniple.ops.factors import FactorRule

if TYPE_CHECKING:
    from maniple.ops.builder import Builder

Attrs = dict[str, Attr]
Linear = tuple[frozenset[int], ...]


def _no_offsets(_op: Op) -> tuple[str, ...]:
    return ()


def _same_attrs(op: Op, _operands: Sequence[TensorType], _results: Sequence[TensorType]) -> Attrs:
    return dict(op.attrs)


def _not_linear(_op: Op) -> Linear:
    return ()


def _elements(op: Op) -> int:
    return sum(result.type.num_elements for result in op.results)


@dataclass(frozen=True, slots=True)
class OpDef:
    """One row of the op table.

    Attributes:
        name: as in StableHLO where StableHLO has the op.
        infer: (operand types, attrs, like) -> result types; `like` is the first result's type, which ops whose shape or dtype
            nothing else tells (reshape, iota, convert) return after checking it. Raises ValueError with the reason if the
            types do not fit. Must accept local types, and empty dims.
        factors: op -> factor rule, from the op's global types. Offset operands are not part of it.
        linear: op -> sets of operand numbers in which the op is jointly linear: `({0, 1},)` for add, `({0}, {1})` for multiply.
        flops: op -> number of floating-point operations, from the op's own types, so that a local op gives local FLOPs.
        decompose: (builder, op) -> values that equal the op's results, made of simpler ops; None for primitives.
        offsets: op -> factors of which the op must know where its shard begins. A local op whose shard may begin elsewhere than at
            0 has one more rank-0 i64 operand for each of them, in this order, after its own operands.
        localize: (op, local operand types, local result types) -> attrs of the local op.
        is_contraction: whether work grows with the size of a reduced factor as well (dot, convolution, lookup).
        moves_data: whether results hold operand elements only, so that pending max and min pass.
        is_cheap: whether making the op again from its operands costs less than moving its result (iota, broadcast).
    """

    name: str
    infer: Callable[[Sequence[TensorType], Attrs, TensorType | None], tuple[TensorType, ...]]
    factors: Callable[[Op], FactorRule]
    linear: Callable[[Op], Linear] = _not_linear
    flops: Callable[[Op], int] = _elements
    decompose: Callable[[Builder, Op], tuple[Value, ...]] | None = None
    offsets: Callable[[Op], tuple[str, ...]] = _no_offsets
    localize: Callable[[Op, Sequence[TensorType], Sequence[TensorType]], Attrs] = _same_attrs
    is_contraction: bool = False
    moves_data: bool = False
    is_cheap: bool = False
