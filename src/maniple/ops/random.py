"""Random numbers that do not depend on how the result is sharded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import elementwise_factors
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import int_attr, ints_attr

_SEED = TensorType("i64")


def infer_rng_uniform(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, a float type; operands are the seed and, in a local form, an offset for each dim.

    Raises:
        ValueError: if the operands are not rank-0 i64, or `like` does not fit `global_shape`.
    """
    shape = ints_attr(attrs, "global_shape")
    int_attr(attrs, "id")
    if like is None or like.dtype not in ("f32", "f64") or like.rank != len(shape):
        raise ValueError("expected a result type f32 or f64 with as many dims as global_shape")
    if any(n > m for n, m in zip(like.shape, shape, strict=True)):
        raise ValueError(f"{like} is larger than the global shape {shape}")
    if len(operands) not in (1, 1 + like.rank) or any(kind != _SEED for kind in operands):
        raise ValueError("expected the seed, and offsets for all dims or none, as i64 of rank 0")
    return (like,)


def _factors(op: Op) -> FactorRule:
    rule = elementwise_factors(op)
    return FactorRule(((),), rule.results, rule.sizes)


def _offsets(op: Op) -> tuple[str, ...]:
    return tuple(f"d{dim}" for dim in range(op.results[0].type.rank))


def _flops(op: Op) -> int:
    return 24 * math.prod(op.results[0].type.shape)


RANDOM: tuple[OpDef, ...] = (OpDef("rng_uniform", infer_rng_uniform, _factors, flops=_flops, offsets=_offsets, is_cheap=True),)
"""`rng_uniform` is a function of seed, id and an element's global position. Its cost is that of two rounds of 64-bit mixing."""
