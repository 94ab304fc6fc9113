"""Numbers inside decompositions: low-precision values are computed in f32, as the frameworks' own kernels do."""

from __future__ import annotations

from maniple.base.types import TensorType
from maniple.ir.program import Value
from maniple.ops.builder import Builder


def accumulation_dtype(dtype: str) -> str:
    """Return the dtype in which sums over values of `dtype` are kept.

    >>> accumulation_dtype("bf16"), accumulation_dtype("f64")
    ('f32', 'f64')
    """
    return "f64" if dtype == "f64" else "f32"


def widen(b: Builder, x: Value) -> Value:
    """Return `x` in its accumulation dtype."""
    return convert(b, x, accumulation_dtype(x.type.dtype))


def scaled(b: Builder, x: Value, factor: float) -> Value:
    """Return `x` times a number."""
    return b("multiply", x, b.constant(factor, x.type.dtype))


def convert(b: Builder, x: Value, dtype: str) -> Value:
    """Return `x` in `dtype`; `x` itself if it has that dtype."""
    if x.type.dtype == dtype:
        return x
    return b("convert", x, like=TensorType(dtype, x.type.shape))
