"""Division that rounds, and what it leaves: ATen's and Python's rules, made of quotients that round towards zero and their remainders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Operand
from maniple.ir.program import Value

Row = Callable[..., Any]


def _wraps(e: Emitter, rest: Value, y: Value) -> Value:
    """Return where a remainder of the dividend's sign is not one of the divisor's sign."""
    signs = e.elementwise("xor", e.elementwise("compare_lt", rest, 0), e.elementwise("compare_lt", y, 0))
    return e("and", e.elementwise("compare_ne", rest, 0), signs)


def remainder(e: Emitter, x: Operand, y: Operand, dtype: str) -> Value:
    """Return `x` modulo `y` in `dtype`, with the divisor's sign, as Python's `%`."""
    divisor = e.value(y, dtype)
    rest = e.elementwise("remainder", x, divisor, dtype=dtype)
    return e.select(_wraps(e, rest, divisor), e.elementwise("add", rest, divisor), rest, dtype)


def floor_quotient(e: Emitter, x: Operand, y: Operand, dtype: str) -> Value:
    """Return `x // y` in `dtype`: the floor of the exact quotient, not of the rounded one.

    For floats Python's and ATen's rule: what the remainder leaves of `x` is a multiple of `y` but for rounding, so that the nearest
    whole number is meant. Division by 0 gives an infinity or NaN, as does plain division.
    """
    x, y = e.value(x, dtype), e.value(y, dtype)
    rest = e.elementwise("remainder", x, y)
    wraps = _wraps(e, rest, y)
    if "f" not in dtype:
        quotient = e.elementwise("divide", x, y)
        return e.select(wraps, e.elementwise("subtract", quotient, 1), quotient, dtype)
    plain = e.elementwise("divide", x, y)
    quotient = e.elementwise("divide", e.elementwise("subtract", x, rest), y)
    quotient = e.select(wraps, e.elementwise("subtract", quotient, 1), quotient, dtype)
    low = e("floor", quotient)
    is_above = e.elementwise("compare_gt", e("subtract", quotient, low), 0.5)
    whole = e.select(is_above, e.elementwise("add", low, 1), low, dtype)
    whole = e.select(e.elementwise("compare_eq", quotient, 0), e.elementwise("multiply", plain, 0), whole, dtype)  # the zero's sign
    return e.select(e.elementwise("compare_eq", y, 0), plain, whole, dtype)


def truncated(e: Emitter, x: Value) -> Value:
    """Return floats rounded towards zero."""
    return e.select(e.elementwise("compare_lt", x, 0), e("ceil", x), e("floor", x), x.type.dtype)


def _div(e: Emitter, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return e.elementwise("divide", x, y, dtype=e.out.dtype)
    if rounding_mode == "floor":
        return floor_quotient(e, x, y, e.out.dtype)
    quotient = e.elementwise("divide", x, y, dtype=e.out.dtype)
    return truncated(e, quotient) if e.out.is_float else quotient


def _floor_divide(e: Emitter, x: Operand, y: Operand) -> Value:
    return _div(e, x, y, "floor")


def _remainder(e: Emitter, x: Operand, y: Operand) -> Value:
    return remainder(e, x, y, e.out.dtype)


def _fmod(e: Emitter, x: Operand, y: Operand) -> Value:
    return e.elementwise("remainder", x, y, dtype=e.out.dtype)


DIVIDE: Final[dict[str, Row]] = {
    **{f"aten.div.{form}": _div for form in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    **{f"aten.remainder.{form}": _remainder for form in ("Tensor", "Scalar", "Scalar_Tensor")},
    **{f"aten.fmod.{form}": _fmod for form in ("Tensor", "Scalar")},
    **{f"aten.floor_divide.{form}": _floor_divide for form in ("default", "Scalar")},
    "aten.trunc.default": lambda e, x: truncated(e, x) if x.type.is_float else x,
}
