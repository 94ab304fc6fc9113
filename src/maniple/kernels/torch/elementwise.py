"""Elementwise ops as PyTorch calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from maniple.ir.program import Op
from maniple.kernels.torch.emit import Emit, Literal, dtype, tensor

_CALLS: Final = {
    "abs": "abs", "sign": "sign", "exponential": "exp", "log": "log", "log_plus_one": "log1p", "logistic": "sigmoid", "tanh": "tanh",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "cosine": "cos", "sine": "sin", "erf": "erf", "floor": "floor", "ceil": "ceil",
    "not": "bitwise_not", "negate": "neg", "is_finite": "isfinite",
}  # fmt: skip

_OPERATORS: Final = {
    "add": "+", "subtract": "-", "multiply": "*", "power": "**", "and": "&", "or": "|", "xor": "^",
    "compare_eq": "==", "compare_ne": "!=", "compare_lt": "<", "compare_le": "<=", "compare_gt": ">", "compare_ge": ">=",
}  # fmt: skip


def _call(op: Op, operands: Sequence[str], *, function: str) -> str:
    return f"torch.{function}({tensor(operands[0], op.operands[0].type.dtype)})"


def _one_tensor(op: Op, operands: Sequence[str]) -> list[str]:
    """Return the operands of a binary op, the first as a tensor if neither is."""
    x, y = operands
    if isinstance(x, Literal) and isinstance(y, Literal):
        return [tensor(x, op.operands[0].type.dtype), y]
    return [x, y]


def _operator(op: Op, operands: Sequence[str], *, symbol: str) -> str:
    x, y = _one_tensor(op, operands)
    return f"{x} {symbol} {y}"


def _divide(op: Op, operands: Sequence[str]) -> str:
    if op.operands[0].type.is_float:
        return _operator(op, operands, symbol="/")
    x = tensor(operands[0], op.operands[0].type.dtype)
    return f"torch.div({x}, {operands[1]}, rounding_mode='trunc')"


def _remainder(op: Op, operands: Sequence[str]) -> str:
    return f"torch.fmod({tensor(operands[0], op.operands[0].type.dtype)}, {operands[1]})"


def _extremum(op: Op, operands: Sequence[str], *, function: str, bound: str) -> str:
    """Return `function` of two tensors, or a clamp to `bound` where one is a literal; both pass NaN on."""
    kind = op.operands[0].type.dtype
    x, y = _one_tensor(op, operands)
    if isinstance(x, Literal):
        x, y = y, x
    if isinstance(y, Literal) and kind != "bool":
        return f"torch.clamp({x}, {bound}={y})"
    return f"torch.{function}({x}, {tensor(y, kind)})"


def _select(op: Op, operands: Sequence[str]) -> str:
    predicate, *branches = operands
    x, y = branches
    if isinstance(x, Literal) and isinstance(y, Literal):
        x = tensor(x, op.results[0].type.dtype)
    return f"torch.where({tensor(predicate, 'bool')}, {x}, {y})"


def _convert(op: Op, operands: Sequence[str]) -> str:
    return f"{tensor(operands[0], op.operands[0].type.dtype)}.to({dtype(op.results[0].type.dtype)})"


ELEMENTWISE: Final[Mapping[str, Emit]] = {
    **{name: partial(_call, function=function) for name, function in _CALLS.items()},
    **{name: partial(_operator, symbol=symbol) for name, symbol in _OPERATORS.items()},
    "divide": _divide,
    "remainder": _remainder,
    "maximum": partial(_extremum, function="maximum", bound="min"),
    "minimum": partial(_extremum, function="minimum", bound="max"),
    "select": _select,
    "convert": _convert,
}
"""Kernels that take rank-0 constants as Python literals. As in StableHLO, integers divide towards zero and a remainder has the
dividend's sign."""
