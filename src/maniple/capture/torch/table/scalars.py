"""Arithmetic on Python numbers that the program computes: hyperparameters and what `.item()` gives. Ops of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Number, Scalar
from maniple.capture.torch.table.divide import floor_quotient, remainder
from maniple.ir.program import Value

ScalarOperand = Scalar | Number


def _dtype(x: ScalarOperand) -> str:
    if isinstance(x, Scalar):
        return x.value.type.dtype
    return "bool" if isinstance(x, bool) else "i64" if isinstance(x, int) else "f64"


def _widest(operands: Sequence[ScalarOperand]) -> str:
    return max(map(_dtype, operands), key=("bool", "i64", "f64").index)


def _arithmetic(name: str, dtype: str = "") -> Callable[..., Scalar]:
    def row(e: Emitter, *operands: ScalarOperand) -> Scalar:
        kind = dtype or _number_dtype(*operands)
        return Scalar(e(name, *(e.value(x, kind) for x in operands)))

    return row


def _compare(name: str) -> Callable[..., Scalar]:
    def row(e: Emitter, x: ScalarOperand, y: ScalarOperand) -> Scalar:
        kind = _widest((x, y))
        return Scalar(e(f"compare_{name}", e.value(x, kind), e.value(y, kind)))

    return row


def _convert(dtype: str) -> Callable[..., Scalar]:
    def row(e: Emitter, x: ScalarOperand) -> Scalar:
        return Scalar(e.value(x, dtype))

    return row


def _number_dtype(*operands: ScalarOperand) -> str:
    """Return what arithmetic gives: i64 or f64."""
    return max(_widest(operands), "i64", key=("bool", "i64", "f64").index)


def _floor_divide(e: Emitter, x: ScalarOperand, y: ScalarOperand) -> Scalar:
    return Scalar(floor_quotient(e, x, y, _number_dtype(x, y)))


def _modulo(e: Emitter, x: ScalarOperand, y: ScalarOperand) -> Scalar:
    return Scalar(remainder(e, x, y, _number_dtype(x, y)))


def _log(e: Emitter, x: ScalarOperand) -> Scalar:
    return Scalar(e("log", e.value(x, "f64")))


def _getitem(_e: Emitter, items: Any, at: int) -> Any:  # one of several results
    return items[at]


def _local_scalar(e: Emitter, x: Value) -> Scalar:
    kind = x.type.dtype
    wide = "f64" if "f" in kind else "bool" if kind == "bool" else "i64"
    return Scalar(e.cast(e.reshape(x, ()), wide))


def _truncated(e: Emitter, x: ScalarOperand) -> Scalar:
    return Scalar(e("convert", e.value(x, "f64"), like=TensorType("i64")))


SCALARS: Final[dict[str, Callable[..., Any]]] = {
    "getitem": _getitem,
    "aten._local_scalar_dense.default": _local_scalar,
    "add": _arithmetic("add"),
    "sub": _arithmetic("subtract"),
    "mul": _arithmetic("multiply"),
    "truediv": _arithmetic("divide", "f64"),
    "floordiv": _floor_divide,
    "mod": _modulo,
    "pow": _arithmetic("power", "f64"),
    "neg": _arithmetic("negate"),
    "abs": _arithmetic("abs"),
    "sqrt": _arithmetic("sqrt", "f64"),
    "_sym_sqrt": _arithmetic("sqrt", "f64"),
    "_sym_cos": _arithmetic("cosine", "f64"),
    "_sym_sin": _arithmetic("sine", "f64"),
    "_sym_log2": lambda e, x: Scalar(e("multiply", _log(e, x).value, e.constant(1.4426950408889634, "f64"))),
    "sym_max": _arithmetic("maximum"),
    "sym_min": _arithmetic("minimum"),
    "sym_float": _convert("f64"),
    "sym_int": _truncated,
    "trunc": _truncated,
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
