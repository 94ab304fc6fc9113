"""Ops of the sharded program that change a value's layout and nothing else.

Operand and result have one global type; their layouts say what happens along the attribute `axis`. `shard_slice` and `to_pending`
are local, the others communicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maniple.base.types import TensorType
from maniple.ops.elementwise import elementwise_factors, linear_in
from maniple.ops.opdef import Attrs, OpDef

COMMUNICATING: Final = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all"})
"""Layout changes that move data between devices."""

LOCAL: Final = frozenset({"shard_slice", "to_pending"})
"""Layout changes that each device makes by itself: take its shard of what it holds whole; keep the value on the first shard only."""


def _infer(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    if len(operands) != 1 or not isinstance(attrs.get("axis"), str):
        raise ValueError("expected one operand and attribute axis, the name of a mesh axis")
    return (operands[0],)


COLLECTIVES: tuple[OpDef, ...] = tuple(
    OpDef(name, _infer, elementwise_factors, linear_in({0}), lambda _op: 0, moves_data=True) for name in sorted(COMMUNICATING | LOCAL)
)
