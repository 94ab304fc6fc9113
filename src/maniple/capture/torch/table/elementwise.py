"""Elementwise ATen ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from maniple.base.types import TensorType
from maniple.capture.torch.emit import DTYPES, TORCH_DTYPES, Emitter, Operand, Scalar
from maniple.ir.program import Value

Row = Callable[..., Any]


def _unary(name: str) -> Row:
    def row(e: Emitter, x: Value) -> Value:
        return e.elementwise(name, x, dtype=e.out.dtype)

    return row


def _binary(name: str) -> Row:
    def row(e: Emitter, x: Operand, y: Operand) -> Value:
        return e.elementwise(name, x, y, dtype=e.out.dtype)

    return row


def _compare(name: str) -> Row:
    def row(e: Emitter, x: Operand, y: Operand) -> Value:
        return e.elementwise(f"compare_{name}", x, y)

    return row


def _logical(name: str) -> Row:
    def row(e: Emitter, *operands: Value) -> Value:
        return e.elementwise(name, *operands, dtype="bool")

    return row


def times(e: Emitter, x: Operand, y: Operand) -> Operand:
    """Return the product in the result's dtype; a factor 1 adds nothing."""
    if isinstance(y, int | float) and y == 1:
        return x
    return e.elementwise("multiply", x, y, dtype=e.out.dtype)


def _add(e: Emitter, x: Operand, y: Operand, alpha: Operand = 1) -> Value:
    return e.elementwise("add", x, times(e, y, alpha), dtype=e.out.dtype)


def _sub(e: Emitter, x: Operand, y: Operand, alpha: Operand = 1) -> Value:
    return e.elementwise("subtract", x, times(e, y, alpha), dtype=e.out.dtype)


def _rsub(e: Emitter, x: Operand, y: Operand, alpha: Operand = 1) -> Value:
    return _sub(e, y, x, alpha)


def _reciprocal(e: Emitter, x: Value) -> Value:
    return e.elementwise("divide", 1, x, dtype=e.out.dtype)


def _pow(e: Emitter, x: Operand, y: Operand) -> Value:
    dtype = e.out.dtype
    if isinstance(x, Value) and isinstance(y, int | float):
        if y in (1, 2, 3):
            x = e.cast(x, dtype)
            result = x
            for _ in range(int(y) - 1):
                result = e("multiply", result, x)
            return result
        simple = {0.5: "sqrt", -0.5: "rsqrt"}
        if y in simple and e.out.is_float:
            return e.elementwise(simple[y], x, dtype=dtype)
        if y == -1 and e.out.is_float:
            return _reciprocal(e, x)
    return e.elementwise("power", x, y, dtype=dtype)


def _lerp(e: Emitter, x: Value, end: Value, weight: Operand) -> Value:
    step = e.elementwise("multiply", e.elementwise("subtract", end, x), weight, dtype=e.out.dtype)
    return e.elementwise("add", x, step)


def _addcmul(e: Emitter, x: Value, one: Value, other: Value, value: Operand = 1) -> Value:
    return e.elementwise("add", x, times(e, e.elementwise("multiply", one, other), value), dtype=e.out.dtype)


def _addcdiv(e: Emitter, x: Value, one: Value, other: Value, value: Operand = 1) -> Value:
    return e.elementwise("add", x, times(e, e.elementwise("divide", one, other), value), dtype=e.out.dtype)


def _where(e: Emitter, condition: Value, x: Operand, y: Operand) -> Value:
    return _fitted(e, e.select(condition, x, y, e.out.dtype))


def _masked_fill(e: Emitter, x: Value, mask: Value, value: Operand) -> Value:
    return _fitted(e, e.select(mask, value, x, e.out.dtype))


def _fitted(e: Emitter, x: Value) -> Value:
    return e.expand(x, e.out.shape)


def _clamp(e: Emitter, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    if low is not None:
        x = e.elementwise("maximum", x, low, dtype=e.out.dtype)
    return x if high is None else e.elementwise("minimum", x, high, dtype=e.out.dtype)


def _clamp_max(e: Emitter, x: Value, high: Operand) -> Value:
    return _clamp(e, x, None, high)


def _to_copy(e: Emitter, x: Value, **_options: Any) -> Value:  # layout, device, memory format
    return e.cast(x, e.out.dtype)


def _same(_e: Emitter, x: Value, **_options: Any) -> Value:  # memory format
    return x


def _copy(e: Emitter, x: Value, source: Value, _non_blocking: bool = False) -> Value:
    return e.expand(e.cast(source, x.type.dtype), x.type.shape)


def _fill(e: Emitter, x: Value, value: Operand) -> Value:
    return e.full(value, x.type)


def _zero(e: Emitter, _x: Value | None) -> Value:
    return e.full(0, e.out)


def _relu(e: Emitter, x: Value) -> Value:
    return e.elementwise("maximum", x, 0)


def _leaky_relu(e: Emitter, x: Value, slope: float = 0.01) -> Value:
    return e.select(e.elementwise("compare_gt", x, 0), x, e.elementwise("multiply", x, slope), x.type.dtype)


def _elu(e: Emitter, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    curve = e.elementwise("subtract", e("exponential", e.elementwise("multiply", x, input_scale)), 1)
    positive = e.elementwise("compare_gt", x, 0)
    return e.select(positive, e.elementwise("multiply", x, scale), e.elementwise("multiply", curve, alpha * scale), x.type.dtype)


def _softplus(e: Emitter, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = e.elementwise("multiply", x, beta)
    curve = e.elementwise("divide", e("log_plus_one", e("exponential", _clamp(e, scaled, None, threshold))), beta)
    return e.select(e.elementwise("compare_gt", scaled, threshold), x, curve, x.type.dtype)


def _hardtanh(e: Emitter, x: Value, low: float = -1, high: float = 1) -> Value:
    return _clamp(e, x, low, high)


def _hard_sigmoid(e: Emitter, x: Value) -> Value:
    return e.elementwise("multiply", _clamp(e, e.elementwise("add", x, 3), 0, 6), 1 / 6)


def _hard_swish(e: Emitter, x: Value) -> Value:
    return e("multiply", x, _hard_sigmoid(e, x))


def _mish(e: Emitter, x: Value) -> Value:
    return e("multiply", x, e("tanh", _softplus(e, x)))


def _glu(e: Emitter, x: Value, dim: int = -1) -> Value:
    one, other = halves(e, x, dim)
    return e("multiply", one, e("logistic", other))


def halves(e: Emitter, x: Value, dim: int) -> tuple[Value, Value]:
    """Return the two halves of `x` along `dim`."""
    dim %= x.type.rank
    n = x.type.shape[dim]
    return e("slice", x, dim=dim, start=0, limit=n // 2, stride=1), e("slice", x, dim=dim, start=n // 2, limit=n, stride=1)


def _nan_to_num(e: Emitter, x: Value, nan: float | None = None, high: float | None = None, low: float | None = None) -> Value:
    if not x.type.is_float:
        return x
    limits = torch.finfo(TORCH_DTYPES[x.type.dtype])
    x = e.select(_is_nan(e, x), nan or 0.0, x, x.type.dtype)
    x = e.select(e.elementwise("compare_eq", x, float("inf")), limits.max if high is None else high, x, x.type.dtype)
    return e.select(e.elementwise("compare_eq", x, -float("inf")), limits.min if low is None else low, x, x.type.dtype)


def _gelu(e: Emitter, x: Value, *, approximate: str = "none") -> Value:
    return e("gelu", x, approximate=approximate)


def _log_sigmoid(e: Emitter, x: Value) -> tuple[Value, Value]:
    low = e.elementwise("minimum", x, 0)
    shrunk = e("exponential", e("negate", e("abs", x)))
    return e("subtract", low, e("log_plus_one", shrunk)), e.full(0, e.out_at(1))


def _log_with_base(factor: float) -> Row:
    def row(e: Emitter, x: Value) -> Value:
        return e.elementwise("multiply", e.elementwise("log", x, dtype=e.out.dtype), factor)

    return row


def _is_nan(e: Emitter, x: Value) -> Value:
    return e("compare_ne", x, x)


def _is_inf(e: Emitter, x: Value) -> Value:
    return e.elementwise("compare_eq", e("abs", x), float("inf"))


def _is_finite(e: Emitter, x: Value) -> Value:
    return e("is_finite", x) if x.type.is_float else e.full(True, e.out)


def _xlogy(e: Emitter, x: Operand, y: Operand) -> Value:
    product = e.elementwise("multiply", x, e("log", e.value(y, e.out.dtype)), dtype=e.out.dtype)
    return e.select(e.elementwise("compare_eq", x, 0), 0, product, e.out.dtype)


def _scalar_tensor(e: Emitter, value: Operand, dtype: torch.dtype | None = None, **_options: Any) -> Value:  # layout, device
    kind = DTYPES[dtype] if dtype else e.out.dtype
    return e.full(value, TensorType(kind)) if not isinstance(value, Scalar) else e.cast(value.value, kind)


_UNARY = {
    "abs": "abs", "sgn": "sign", "sign": "sign", "exp": "exponential", "log": "log", "log1p": "log_plus_one", "sigmoid": "logistic",
    "tanh": "tanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "cos": "cosine", "sin": "sine", "erf": "erf", "floor": "floor", "ceil": "ceil",
    "neg": "negate", "silu": "silu",
}  # fmt: skip

_COPIES = ("alias", "detach", "clone", "lift_fresh", "lift_fresh_copy", "contiguous", "positive", "conj", "resolve_conj", "resolve_neg")

ELEMENTWISE: Final[dict[str, Row]] = {
    **{f"aten.{aten}.default": _unary(name) for aten, name in _UNARY.items()},
    **{f"aten.{name}.{form}": _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge") for form in ("Tensor", "Scalar")},
    **{f"aten.{name}.default": _same for name in _COPIES},
    **{f"aten.bitwise_{name}.{form}": _binary(name) for name in ("and", "or", "xor") for form in ("Tensor", "Scalar")},
    **{f"aten.logical_{name}.default": _logical(name) for name in ("and", "or", "xor", "not")},
    **{f"aten.{name}.{form}": row for name, row in (("add", _add), ("sub", _sub), ("rsub", _rsub)) for form in ("Tensor", "Scalar")},
    **{f"aten.pow.{form}": _pow for form in ("Tensor_Scalar", "Tensor_Tensor", "Scalar")},
    **{f"aten.lerp.{form}": _lerp for form in ("Scalar", "Tensor")},
    **{f"aten.where.{form}": _where for form in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"aten.masked_fill.{form}": _masked_fill for form in ("Scalar", "Tensor")},
    **{f"aten.mul.{form}": _binary("multiply") for form in ("Tensor", "Scalar")},
    **{f"aten.clamp.{form}": _clamp for form in ("default", "Tensor")},
    **{f"aten.clamp_min.{form}": _binary("maximum") for form in ("default", "Tensor")},
    **{f"aten.clamp_max.{form}": _clamp_max for form in ("default", "Tensor")},
    **{f"aten.fill.{form}": _fill for form in ("Scalar", "Tensor")},
    **{f"aten.xlogy.{form}": _xlogy for form in ("Tensor", "Scalar_Self", "Scalar_Other")},
    "aten.bitwise_not.default": _unary("not"),
    "aten.maximum.default": _binary("maximum"),
    "aten.minimum.default": _binary("minimum"),
    "aten.reciprocal.default": _reciprocal,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten._to_copy.default": _to_copy,
    "aten.copy.default": _copy,
    "aten.zero.default": _zero,
    "aten.relu.default": _relu,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.hardtanh.default": _hardtanh,
    "aten.hardsigmoid.default": _hard_sigmoid,
    "aten.hardswish.default": _hard_swish,
    "aten.mish.default": _mish,
    "aten.glu.default": _glu,
    "aten.nan_to_num.default": _nan_to_num,
    "aten.gelu.default": _gelu,
    "aten.log_sigmoid_forward.default": _log_sigmoid,
    "aten.log2.default": _log_with_base(1.4426950408889634),
    "aten.log10.default": _log_with_base(0.4342944819032518),
    "aten.isnan.default": _is_nan,
    "aten.isinf.default": _is_inf,
    "aten.isfinite.default": _is_finite,
    "aten.scalar_tensor.default": _scalar_tensor,
}
