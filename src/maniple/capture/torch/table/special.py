"""Special functions, and elementwise ops that are made of others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Operand
from maniple.capture.torch.table.elementwise import times
from maniple.ir.program import Value
from maniple.ops.special import SPECIAL_BINARY

Row = Callable[..., Any]

_UNARY: Final = {
    "tan": "tan", "sinh": "sinh", "cosh": "cosh", "asin": "asin", "acos": "acos", "atan": "atan", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "expm1": "exponential_minus_one", "lgamma": "lgamma", "digamma": "digamma", "erfc": "erfc", "erfinv": "erf_inv",
    "special_erfcx": "erfcx", "special_ndtri": "ndtri", "special_log_ndtr": "log_ndtr", "i0": "bessel_i0", "special_i0e": "bessel_i0e",
    "special_i1": "bessel_i1", "special_i1e": "bessel_i1e", "special_bessel_j0": "bessel_j0", "special_bessel_j1": "bessel_j1",
    "special_bessel_y0": "bessel_y0", "special_bessel_y1": "bessel_y1", "special_spherical_bessel_j0": "spherical_bessel_j0",
    "special_modified_bessel_i0": "bessel_i0", "special_modified_bessel_i1": "bessel_i1", "special_modified_bessel_k0": "bessel_k0",
    "special_modified_bessel_k1": "bessel_k1", "special_scaled_modified_bessel_k0": "bessel_k0e",
    "special_scaled_modified_bessel_k1": "bessel_k1e", "special_airy_ai": "airy_ai",
}  # fmt: skip


def _unary(name: str) -> Row:
    def row(e: Emitter, x: Operand) -> Value:
        return e.elementwise(name, x, dtype=e.out.dtype)

    return row


def _binary(name: str) -> Row:
    def row(e: Emitter, x: Operand, y: Operand) -> Value:
        return e.elementwise(name, x, y, dtype=e.out.dtype)

    return row


def _round(e: Emitter, x: Value, *, decimals: int = 0) -> Value:
    if not x.type.is_float:
        return x
    if not decimals:
        return e("round_nearest_even", x)
    scale = 10.0 ** abs(decimals)
    inward, outward = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return e.elementwise(outward, e("round_nearest_even", e.elementwise(inward, x, scale)), scale)


def _polygamma(e: Emitter, order: int, x: Value) -> Value:
    """Return the derivative of that order of digamma: (-1)^(n+1) n! zeta(n+1, x) (DLMF 25.11.12)."""
    x = e.cast(x, e.out.dtype)
    if not order:
        return e("digamma", x)
    series = e.elementwise("zeta", float(order + 1), x, dtype=e.out.dtype)
    return e.elementwise("multiply", series, (-1.0) ** (order + 1) * math.gamma(order + 1))


def _hypot(e: Emitter, x: Value, y: Value) -> Value:
    """Return the root of the sum of squares, of numbers scaled by the larger one."""
    x, y = (e("abs", e.cast(value, e.out.dtype)) for value in (x, y))
    large, small = e.elementwise("maximum", x, y), e.elementwise("minimum", x, y)
    ratio = e("divide", small, e.select(e.elementwise("compare_eq", large, 0), 1, large, large.type.dtype))
    plain = e("multiply", large, e("sqrt", e.elementwise("add", e("multiply", ratio, ratio), 1)))
    return e.select(e.elementwise("compare_eq", large, math.inf), math.inf, plain, large.type.dtype)


def _sign_bit(e: Emitter, x: Value) -> Value:
    """Return whether a number is negative, -0 included."""
    negative = e.elementwise("compare_lt", x, 0) if x.type.dtype != "bool" else e.full(False, x.type)
    if not x.type.is_float:
        return negative
    below_zero = e.elementwise("compare_lt", e.elementwise("divide", 1, x), 0)  # 1 / -0 is -inf
    return e.select(e.elementwise("compare_eq", x, 0), below_zero, negative, "bool")


def _copy_sign(e: Emitter, x: Operand, y: Operand) -> Value:
    size = e("abs", e.value(x, e.out.dtype))
    sign = _sign_bit(e, e.value(y, e.out.dtype))
    return e.select(sign, e("negate", size), size, e.out.dtype)


def _larger(name: str) -> Row:
    """Return a row for the maximum or minimum that passes over NaN."""

    def row(e: Emitter, x: Value, y: Value) -> Value:
        x, y = (e.cast(value, e.out.dtype) for value in (x, y))
        best = e.elementwise(name, x, y)
        if not e.out.is_float:
            return best
        best = e.select(e("compare_ne", x, x), y, best, e.out.dtype)
        return e.select(e("compare_ne", y, y), x, best, e.out.dtype)

    return row


def _exp2(e: Emitter, x: Value) -> Value:
    return e.elementwise("power", 2, x, dtype=e.out.dtype)


def _log_sum_exp2(e: Emitter, x: Value, y: Value) -> Value:
    """Return log2(2^x + 2^y)."""
    top, low = e.elementwise("maximum", x, y), e.elementwise("minimum", x, y)
    away = e.elementwise("power", 2, e.elementwise("subtract", low, top))
    result = e.elementwise("add", top, e.elementwise("multiply", e("log_plus_one", away), 1 / math.log(2)))
    return e.select(e("compare_eq", x, y), e.elementwise("add", x, 1), result, x.type.dtype)


def _angle(e: Emitter, x: Value) -> Value:
    x = e.cast(x, e.out.dtype)
    return e.select(e("compare_ne", x, x), x, e.select(e.elementwise("compare_lt", x, 0), math.pi, 0, x.type.dtype), x.type.dtype)


def _shrink_backward(e: Emitter, g: Value, x: Value, bound: float) -> Value:
    outside = e("or", e.elementwise("compare_gt", x, bound), e.elementwise("compare_lt", x, -bound))
    return e.select(outside, g, 0, g.type.dtype)


def _least_common(e: Emitter, x: Value, y: Value) -> Value:
    x, y = (e.cast(value, e.out.dtype) for value in (x, y))
    common = e.elementwise("gcd", x, y)
    safe = e.select(e.elementwise("compare_eq", common, 0), 1, common, e.out.dtype)
    return e("abs", e.elementwise("multiply", e.elementwise("divide", x, safe), y))


def _rrelu(
    e: Emitter, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, **_options: object
) -> tuple[Value, Value]:
    """Return a leaky ReLU whose slope is drawn for each element, or the middle one; and the slopes."""
    negative = e.elementwise("compare_le", x, 0)
    if not training:
        return e.select(negative, e.elementwise("multiply", x, (lower + upper) / 2), x, x.type.dtype), noise
    slope = e.elementwise("add", e.elementwise("multiply", e.random(x.type), upper - lower), lower)
    slope = e.select(negative, slope, 1, x.type.dtype)
    return e("multiply", x, slope), slope


def _rrelu_backward(e: Emitter, g: Value, x: Value, noise: Value, lower: float, upper: float, training: bool, _is_result: bool) -> Value:
    if training and upper - lower > 1e-6:  # ATen's bound, below which slopes count as one
        return e("multiply", g, noise)
    slope = (lower + upper) / 2
    return e.select(e.elementwise("compare_gt", x, 0), g, e.elementwise("multiply", g, slope), g.type.dtype)


def _outer_scaled(e: Emitter, x: Value, one: Value, other: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    """Return beta x + alpha times the sum over the batch of products of matrices."""
    product = e("dot_general", one, other, lhs_contract=(0, 2), rhs_contract=(0, 1), lhs_batch=(), rhs_batch=())
    scaled = times(e, product, alpha)
    return e.elementwise("add", scaled, times(e, x, beta), dtype=e.out.dtype) if beta != 0 else e.value(scaled, e.out.dtype)


SPECIAL: Final[dict[str, Row]] = {
    **{f"aten.{aten}.default": _unary(name) for aten, name in _UNARY.items()},
    **{f"aten.special_{name}.{form}": _binary(name) for name in SPECIAL_BINARY for form in ("default", "x_scalar", "n_scalar")},
    **{f"aten.special_zeta.{form}": _binary("zeta") for form in ("default", "self_scalar", "other_scalar")},
    **{f"aten.{name}.default": _binary(name) for name in ("atan2", "igamma", "igammac", "gcd")},
    **{f"aten.special_{name}.default": _binary(kind) for name, kind in (("gammainc", "igamma"), ("gammaincc", "igammac"))},
    **{f"aten.bitwise_left_shift.{form}": _binary("shift_left") for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")},
    **{f"aten.bitwise_right_shift.{form}": _binary("shift_right_arithmetic") for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")},
    **{f"aten.{name}.{form}": row
       for name, row in (("__lshift__", _binary("shift_left")), ("__rshift__", _binary("shift_right_arithmetic")))
       for form in ("Tensor", "Scalar")},
    **{f"aten.copysign.{form}": _copy_sign for form in ("Tensor", "Scalar")},
    "aten.nextafter.default": _binary("next_after"),
    "aten.lcm.default": _least_common,
    "aten.round.default": _round,
    "aten.round.decimals": _round,
    "aten.polygamma.default": _polygamma,
    "aten.hypot.default": _hypot,
    "aten.signbit.default": _sign_bit,
    "aten.fmax.default": _larger("maximum"),
    "aten.fmin.default": _larger("minimum"),
    "aten.exp2.default": _exp2,
    "aten.logaddexp2.default": _log_sum_exp2,
    "aten.angle.default": _angle,
    "aten.softshrink_backward.default": _shrink_backward,
    "aten.hardshrink_backward.default": _shrink_backward,
    "aten.rrelu_with_noise_functional.default": _rrelu,
    "aten.rrelu_with_noise_backward.default": _rrelu_backward,
    "aten.addbmm.default": _outer_scaled,
}  # fmt: skip
