"""Convolution over one to three spatial dims, and its gradients. A transposed convolution is the gradient with respect to the input.

Layouts are `[batch, channels, *space]` and, for weights, `[out channels, in channels of one group, *kernel]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import FactorRule, rule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import int_attr, ints_attr

WINDOW: Final = {"stride": 1, "padding": 0, "dilation": 1}
"""Attributes of one integer per spatial dim, and the least each may be."""


def window_ints(attrs: Attrs, name: str, count: int, least: int) -> tuple[int, ...]:
    """Return attribute `name`, which must hold `count` integers that are `least` or more.

    Raises:
        ValueError: if it does not.
    """
    value = ints_attr(attrs, name)
    if len(value) != count or any(item < least for item in value):
        raise ValueError(f"attribute {name} must hold {count} integers from {least}, got {value!r}")
    return value


def _check_convolution(x: TensorType, w: TensorType, attrs: Attrs) -> TensorType:
    """Return the result's type of a convolution of `x` with `w`."""
    if not x.is_float or x.dtype != w.dtype or x.rank != w.rank or not 3 <= x.rank <= 5:
        raise ValueError(f"values {x} and weight {w} must be floats with one to three spatial dims")
    groups = int_attr(attrs, "groups")
    if groups < 0 or x.shape[1] != groups * w.shape[1] or (groups and w.shape[0] % groups):
        raise ValueError(f"channels of {x} and {w} do not fit {groups} groups")
    space = x.rank - 2
    stride, padding, dilation = (window_ints(attrs, name, space, least) for name, least in WINDOW.items())
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    )
    if any(n < 1 for n in out):
        raise ValueError("the kernel is larger than the padded values")
    return x.with_shape((x.shape[0], w.shape[0], *out))


def infer_convolution(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the convolution of x with a weight."""
    if len(operands) != 2:
        raise ValueError("expected values and a weight")
    return (_check_convolution(operands[0], operands[1], attrs),)


def infer_convolution_grad_input(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of x, which is `like`, for the result's gradient and the weight."""
    if len(operands) != 2 or like is None:
        raise ValueError("expected a gradient and a weight, and the type of the values")
    if _check_convolution(like, operands[1], attrs) != operands[0]:
        raise ValueError(f"gradient {operands[0]} does not fit values {like}")
    return (like,)


def infer_convolution_grad_weight(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of the weight, which is `like`, for the result's gradient and x."""
    if len(operands) != 2 or like is None:
        raise ValueError("expected a gradient and values, and the type of the weight")
    if _check_convolution(operands[1], like, attrs) != operands[0]:
        raise ValueError(f"gradient {operands[0]} does not fit weight {like}")
    return (like,)


def _convolution_text(op: Op, x: TensorType, w: TensorType) -> tuple[str, str, str, str, dict[str, int]]:
    """Return the dims of x, weight and result, the whole factors, and the sizes that no dim alone tells."""
    names = range(x.rank - 2)
    s, k, t = (" ".join(f"{letter}{i}" for i in names) for letter in "skt")
    whole = f"{s} {k} {t}"
    groups = op.integer("groups")
    if groups == 1:
        return f"b i {s}", f"o i {k}", f"b o {t}", whole, {}
    sizes = {"g": groups, "o": w.shape[0] // groups}
    return f"b (g i) {s}", f"(g o) i {k}", f"b (g o) {t}", whole, sizes


def convolution_factors(op: Op) -> FactorRule:
    """Return the rule: batch, groups and out channels are free, in channels leave a pending sum, space is whole."""
    types = [value.type for value in op.operands]
    x, w, y, whole, sizes = _convolution_text(op, types[0], types[1])
    return rule(f"{x}, {w} -> {y}", types, [op.results[0].type], sizes=sizes, whole=whole)


def convolution_grad_input_factors(op: Op) -> FactorRule:
    """Return the rule: batch, groups and in channels are free, out channels leave a pending sum, space is whole."""
    types = [value.type for value in op.operands]
    x, w, y, whole, sizes = _convolution_text(op, op.results[0].type, types[1])
    return rule(f"{y}, {w} -> {x}", types, [op.results[0].type], sizes=sizes, whole=whole)


def convolution_grad_weight_factors(op: Op) -> FactorRule:
    """Return the rule: channels and groups are free, the batch leaves a pending sum, space is whole."""
    types = [value.type for value in op.operands]
    x, w, y, whole, sizes = _convolution_text(op, types[1], op.results[0].type)
    return rule(f"{y}, {x} -> {w}", types, [op.results[0].type], sizes=sizes, whole=whole)


def _local_groups(op: Op, x: TensorType, w: TensorType) -> Attrs:
    """Return the attributes with the number of groups that the local channels make."""
    groups = op.integer("groups")
    if groups == 1 or not w.shape[1]:
        return dict(op.attrs)
    return {**dict(op.attrs), "groups": x.shape[1] // w.shape[1]}


def _localize(op: Op, operands: Sequence[TensorType], _results: Sequence[TensorType]) -> Attrs:
    return _local_groups(op, operands[0], operands[1])


def _localize_grad_input(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Attrs:
    return _local_groups(op, results[0], operands[1])


def _localize_grad_weight(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Attrs:
    return _local_groups(op, operands[1], results[0])


def _convolution_flops(y: TensorType, w: TensorType) -> int:
    """Return 2 for each element of the result and of one out channel's weight."""
    return 2 * y.num_elements * math.prod(w.shape[1:])


CONVOLUTION: tuple[OpDef, ...] = (
    OpDef(
        "convolution", infer_convolution, convolution_factors, linear_in({0}, {1}),
        lambda op: _convolution_flops(op.results[0].type, op.operands[1].type),
        localize=_localize, is_contraction=True,
    ),
    OpDef(
        "convolution_grad_input", infer_convolution_grad_input, convolution_grad_input_factors, linear_in({0}, {1}),
        lambda op: _convolution_flops(op.operands[0].type, op.operands[1].type),
        localize=_localize_grad_input, is_contraction=True,
    ),
    OpDef(
        "convolution_grad_weight", infer_convolution_grad_weight, convolution_grad_weight_factors,
        linear_in({0}, {1}), lambda op: _convolution_flops(op.operands[0].type, op.results[0].type),
        localize=_localize_grad_weight, is_contraction=True,
    ),
)  # fmt: skip
