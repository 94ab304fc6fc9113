"""Activation functions that frameworks have one kernel for, and their gradients.

Sources: Hendrycks and Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415), section 2; Elfwing et al., "Sigmoid-Weighted Linear
Units" (arXiv:1702.03118), equation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from maniple.base.types import TensorType
from maniple.ir.program import Op, Value
from maniple.ops.builder import Builder
from maniple.ops.elementwise import elementwise_factors, infer_elementwise, linear_in
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.precision import convert, scaled, widen

_TANH_SCALE, _CUBE_SCALE = math.sqrt(2 / math.pi), 0.044715


def _shifted(b: Builder, x: Value, term: float) -> Value:
    return b("add", x, b.constant(term, x.type.dtype))


def _tanh_of_cubic(b: Builder, x: Value, square: Value) -> Value:
    """Return tanh(sqrt(2/pi) * (x + 0.044715 x^3))."""
    cubic = b("multiply", x, _shifted(b, scaled(b, square, _CUBE_SCALE), 1.0))
    return b("tanh", scaled(b, cubic, _TANH_SCALE))


def _is_tanh(op: Op) -> bool:
    return op.attr("approximate") == "tanh"


def infer_gelu(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None, *, arity: int) -> tuple[TensorType, ...]:
    """Return the operands' one type; attribute `approximate` is `none` or `tanh`."""
    if attrs.get("approximate") not in ("none", "tanh"):
        raise ValueError(f"attribute approximate must be 'none' or 'tanh', got {attrs.get('approximate')!r}")
    return infer_elementwise(operands, attrs, like, arity=arity)


def decompose_gelu(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return x * Phi(x), Phi the normal distribution function or its tanh approximation."""
    x = widen(b, op.operands[0])
    inner = _tanh_of_cubic(b, x, b("multiply", x, x)) if _is_tanh(op) else b("erf", scaled(b, x, math.sqrt(0.5)))
    y = b("multiply", x, scaled(b, _shifted(b, inner, 1.0), 0.5))
    return (convert(b, y, op.results[0].type.dtype),)


def decompose_gelu_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return g * (Phi(x) + x * Phi'(x))."""
    g, x = (widen(b, value) for value in op.operands)
    square = b("multiply", x, x)
    if _is_tanh(op):
        inner = _tanh_of_cubic(b, x, square)
        slope = _shifted(b, scaled(b, square, 3 * _CUBE_SCALE), 1.0)
        rest = _shifted(b, b("negate", b("multiply", inner, inner)), 1.0)
        density = scaled(b, b("multiply", rest, slope), 0.5 * _TANH_SCALE)
    else:
        inner = b("erf", scaled(b, x, math.sqrt(0.5)))
        density = scaled(b, b("exponential", scaled(b, square, -0.5)), 1 / math.sqrt(2 * math.pi))
    phi = scaled(b, _shifted(b, inner, 1.0), 0.5)
    dx = b("multiply", g, b("add", phi, b("multiply", x, density)))
    return (convert(b, dx, op.results[0].type.dtype),)


def decompose_silu(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return x * sigmoid(x)."""
    x = widen(b, op.operands[0])
    return (convert(b, b("multiply", x, b("logistic", x)), op.results[0].type.dtype),)


def decompose_silu_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return g * s * (1 + x * (1 - s)) with s = sigmoid(x)."""
    g, x = (widen(b, value) for value in op.operands)
    s = b("logistic", x)
    slope = b("multiply", s, _shifted(b, b("multiply", x, _shifted(b, b("negate", s), 1.0)), 1.0))
    return (convert(b, b("multiply", g, slope), op.results[0].type.dtype),)


def _row(name: str, arity: int, flops: int, decompose: Callable[[Builder, Op], tuple[Value, ...]]) -> OpDef:
    return OpDef(
        name,
        partial(infer_elementwise, arity=arity),
        elementwise_factors,
        linear_in({0}) if arity == 2 else linear_in(),
        lambda op: flops * op.results[0].type.num_elements,
        decompose,
    )


ACTIVATION: tuple[OpDef, ...] = (
    replace(_row("gelu", 1, 5, decompose_gelu), infer=partial(infer_gelu, arity=1)),
    replace(_row("gelu_grad", 2, 10, decompose_gelu_grad), infer=partial(infer_gelu, arity=2)),
    _row("silu", 1, 5, decompose_silu),
    _row("silu_grad", 2, 8, decompose_silu_grad),
)
