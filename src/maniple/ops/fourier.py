"""Discrete Fourier transforms. A complex tensor is a pair of real ones, real parts and imaginary parts; nothing is scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import flag_attr, int_attr, ints_attr


def _check(operands: Sequence[TensorType], attrs: Attrs, count: int) -> tuple[TensorType, int]:
    """Return the operands' type, and the last dim that is transformed."""
    dims = ints_attr(attrs, "dims")
    if len(operands) != count or len(set(operands)) != 1 or operands[0].dtype not in ("f32", "f64"):
        raise ValueError(f"expected {count} operands of one type, f32 or f64")
    if not dims or len(set(dims)) != len(dims) or not all(0 <= d < operands[0].rank for d in dims):
        raise ValueError(f"{dims} are no dims of {operands[0]}")
    return operands[0], dims[-1]


def _resized(kind: TensorType, dim: int, n: int) -> TensorType:
    return kind.with_shape((*kind.shape[:dim], n, *kind.shape[dim + 1 :]))


def infer_fft(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of real and imaginary parts, of each one.

    Raises:
        ValueError: if they differ, or there are no such dims.
    """
    flag_attr(attrs, "forward")
    kind, _ = _check(operands, attrs, 2)
    return kind, kind


def infer_rfft(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the types of the parts of a real tensor's transform, the first half of the last of `dims`.

    Raises:
        ValueError: if there are no such dims.
    """
    kind, last = _check(operands, attrs, 1)
    half = _resized(kind, last, kind.shape[last] // 2 + 1)
    return half, half


def infer_irfft(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the real tensor with `size` elements in the last of `dims`, of which the operands are half a transform.

    Raises:
        ValueError: if they do not fit.
    """
    kind, last = _check(operands, attrs, 2)
    size = int_attr(attrs, "size")
    if kind.shape[last] != size // 2 + 1:
        raise ValueError(f"{kind} is no half of a transform of {size} elements")
    return (_resized(kind, last, size),)


def fourier_factors(op: Op) -> FactorRule:
    """Return the rule: the dims that are transformed are whole, others free."""
    dims = op.ints("dims")
    sizes: dict[str, int] = {}
    sides = []
    for letter, values in (("x", op.operands), ("y", op.results)):
        kind = values[0].type
        names = [f"{letter}{d}" if d in dims else f"d{d}" for d in range(kind.rank)]
        sizes.update(zip(names, kind.shape, strict=True))
        sides.append((tuple((name,) for name in names),) * len(values))
    return FactorRule(sides[0], sides[1], sizes, frozenset(name for name in sizes if not name.startswith("d")))


def _flops(op: Op) -> int:
    kind = max((value.type for value in (*op.operands, *op.results)), key=lambda kind: kind.num_elements)
    n = math.prod(kind.shape[d] for d in op.ints("dims"))
    return 5 * kind.num_elements * max(1, math.ceil(math.log2(max(n, 2))))


FOURIER: tuple[OpDef, ...] = (
    OpDef("fft", infer_fft, fourier_factors, linear_in({0, 1}), _flops),
    OpDef("rfft", infer_rfft, fourier_factors, linear_in({0}), _flops),
    OpDef("irfft", infer_irfft, fourier_factors, linear_in({0, 1}), _flops),
)
