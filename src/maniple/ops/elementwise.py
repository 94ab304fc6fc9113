"""Elementwise ops: each operand has the result's shape or rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, Linear, OpDef


def elementwise_factors(op: Op) -> FactorRule:
    """Return one factor per dim, shared by every operand that is not rank 0."""
    shape = op.results[0].type.shape
    dims = tuple((f"d{i}",) for i in range(len(shape)))
    operands = tuple(dims if value.type.rank else () for value in op.operands)
    return FactorRule(operands, (dims,) * len(op.results), {f"d{i}": n for i, n in enumerate(shape)})


def infer_elementwise(
    operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None, *, arity: int, result: str = ""
) -> tuple[TensorType, ...]:
    """Return the common shape; dtypes must agree.

    Args:
        operands: types; each has the common shape or rank 0.
        arity: number of operands.
        result: dtype of the result if it is not the operands'.

    Raises:
        ValueError: if the operands do not fit.
    """
    if len(operands) != arity:
        raise ValueError(f"expected {arity} operands, got {len(operands)}")
    if len({kind.dtype for kind in operands}) != 1:
        raise ValueError("operands must have one dtype")
    return (TensorType(result or operands[0].dtype, common_shape(operands)),)


def common_shape(operands: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the shape that all operands of a rank above 0 share.

    Raises:
        ValueError: if they differ.
    """
    shapes = {kind.shape for kind in operands if kind.rank}
    if len(shapes) > 1:
        raise ValueError("operands must have one shape, or rank 0")
    return shapes.pop() if shapes else ()


def infer_convert(operands: Sequence[TensorType], _attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the operand's shape with the dtype of `like`."""
    if len(operands) != 1 or like is None:
        raise ValueError("expected one operand and a result type")
    return (TensorType(like.dtype, operands[0].shape),)


def infer_select(operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the branches; the predicate is bool."""
    if len(operands) != 3 or operands[0].dtype != "bool":
        raise ValueError("expected a bool predicate and two branches")
    if operands[1].dtype != operands[2].dtype:
        raise ValueError("the branches must have one dtype")
    return (TensorType(operands[1].dtype, common_shape(operands)),)


def linear_in(*sets: set[int]) -> Callable[[Op], Linear]:
    """Return a row's `linear` for an op that is linear in each of `sets`."""
    frozen = tuple(frozenset(numbers) for numbers in sets)
    return lambda _op: frozen


def _row(name: str, arity: int, *linear: set[int], result: str = "", flops: int = 1) -> OpDef:
    return OpDef(
        name,
        partial(infer_elementwise, arity=arity, result=result),
        elementwise_factors,
        linear_in(*linear),
        lambda op: flops * op.results[0].type.num_elements,
    )


def _divide_linear(op: Op) -> Linear:
    """Return that floats divide linearly in the numerator; integers are rounded."""
    return (frozenset({0}),) if op.results[0].type.is_float else ()


_UNARY = (
    "abs", "sign", "exponential", "log", "log_plus_one", "logistic", "tanh", "sqrt", "rsqrt", "cosine", "sine", "erf", "floor",
    "ceil", "not",
)  # fmt: skip

ELEMENTWISE: tuple[OpDef, ...] = (
    *(_row(name, 1) for name in _UNARY),
    _row("negate", 1, {0}),
    _row("is_finite", 1, result="bool"),
    _row("add", 2, {0, 1}),
    _row("subtract", 2, {0, 1}),
    _row("multiply", 2, {0}, {1}),
    OpDef("divide", partial(infer_elementwise, arity=2), elementwise_factors, _divide_linear),
    _row("power", 2),
    _row("remainder", 2),
    _row("maximum", 2),
    _row("minimum", 2),
    _row("and", 2),
    _row("or", 2),
    _row("xor", 2),
    *(_row(f"compare_{how}", 2, result="bool") for how in ("eq", "ne", "lt", "le", "gt", "ge")),
    OpDef("select", infer_select, elementwise_factors, linear_in({1, 2})),
    OpDef("convert", infer_convert, elementwise_factors),
)
