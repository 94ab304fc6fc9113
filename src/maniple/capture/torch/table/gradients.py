"""Gradients of elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.elementwise import halves
from maniple.ir.program import Value


def _times(e: Emitter, g: Value, slope: Value) -> Value:
    return e.elementwise("multiply", g, slope)


def _sigmoid(e: Emitter, g: Value, y: Value) -> Value:
    return _times(e, g, e("multiply", e.elementwise("subtract", 1, y), y))


def _tanh(e: Emitter, g: Value, y: Value) -> Value:
    return _times(e, g, e.elementwise("subtract", 1, e("multiply", y, y)))


def _threshold(e: Emitter, g: Value, x: Value, threshold: float) -> Value:
    return e.select(e.elementwise("compare_gt", x, threshold), g, 0, g.type.dtype)


def _gelu(e: Emitter, g: Value, x: Value, *, approximate: str = "none") -> Value:
    return e("gelu_grad", g, x, approximate=approximate)


def _silu(e: Emitter, g: Value, x: Value) -> Value:
    return e("silu_grad", g, x)


def _leaky_relu(e: Emitter, g: Value, x: Value, slope: float, _is_result: bool) -> Value:
    return e.select(e.elementwise("compare_gt", x, 0), g, e.elementwise("multiply", g, slope), g.type.dtype)


def _elu(e: Emitter, g: Value, alpha: float, scale: float, input_scale: float, is_result: bool, y: Value) -> Value:
    if is_result:
        curve = e.elementwise("multiply", e.elementwise("add", y, alpha * scale), input_scale)
    else:
        curve = e.elementwise("multiply", e("exponential", e.elementwise("multiply", y, input_scale)), alpha * scale * input_scale)
    slope = e.select(e.elementwise("compare_gt", y, 0), scale, curve, g.type.dtype)
    return _times(e, g, slope)


def _softplus(e: Emitter, g: Value, x: Value, beta: float, threshold: float) -> Value:
    scaled = e.elementwise("multiply", x, beta)
    return e.select(e.elementwise("compare_gt", scaled, threshold), g, _times(e, g, e("logistic", scaled)), g.type.dtype)


def _hardtanh(e: Emitter, g: Value, x: Value, low: float, high: float) -> Value:
    inside = e("and", e.elementwise("compare_gt", x, low), e.elementwise("compare_lt", x, high))
    return e.select(inside, g, 0, g.type.dtype)


def _log_sigmoid(e: Emitter, g: Value, x: Value, _buffer: Value) -> Value:
    return _times(e, g, e("logistic", e("negate", x)))


_FLOAT32_SIXTH: Final = 0.1666666716337204
"""1/6 as ATen's gradient of hardsigmoid has it, rounded to float32 whatever the dtype."""


def _hard_sigmoid(e: Emitter, g: Value, x: Value) -> Value:
    inside = e("and", e.elementwise("compare_gt", x, -3), e.elementwise("compare_lt", x, 3))
    return e.select(inside, e.elementwise("multiply", g, _FLOAT32_SIXTH), 0, g.type.dtype)


def _hard_swish(e: Emitter, g: Value, x: Value) -> Value:
    middle = e.elementwise("add", e.elementwise("multiply", x, 1 / 3), 0.5)
    slope = e.select(e.elementwise("compare_lt", x, -3), 0, middle, g.type.dtype)
    return _times(e, g, e.select(e.elementwise("compare_gt", x, 3), 1, slope, g.type.dtype))


def _mish(e: Emitter, g: Value, x: Value) -> Value:
    curve = e("tanh", e("log_plus_one", e("exponential", x)))
    slope = e("multiply", e("logistic", x), e.elementwise("subtract", 1, e("multiply", curve, curve)))
    return _times(e, g, e("add", curve, e("multiply", x, slope)))


def _glu(e: Emitter, g: Value, x: Value, dim: int) -> Value:
    one, other = halves(e, x, dim)
    gate = e("logistic", other)
    passed = e("multiply", g, gate)
    gated = e("multiply", e("multiply", passed, e.elementwise("subtract", 1, gate)), one)
    return e("concatenate", passed, gated, dim=dim % x.type.rank)


GRADIENTS: Final[dict[str, Callable[..., Any]]] = {
    "aten.sigmoid_backward.default": _sigmoid,
    "aten.tanh_backward.default": _tanh,
    "aten.threshold_backward.default": _threshold,
    "aten.hardsigmoid_backward.default": _hard_sigmoid,
    "aten.hardswish_backward.default": _hard_swish,
    "aten.mish_backward.default": _mish,
    "aten.glu_backward.default": _glu,
    "aten.gelu_backward.default": _gelu,
    "aten.silu_backward.default": _silu,
    "aten.leaky_relu_backward.default": _leaky_relu,
    "aten.elu_backward.default": _elu,
    "aten.softplus_backward.default": _softplus,
    "aten.hardtanh_backward.default": _hardtanh,
    "aten.log_sigmoid_backward.default": _log_sigmoid,
}
