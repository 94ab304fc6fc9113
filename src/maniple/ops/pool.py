"""Pooling over one to three spatial dims, and its gradients: the greatest element of each window, and the sum of each.

Layouts are `[batch, channels, *space]`. What lies outside counts for nothing; a mean is a sum divided by what the caller counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.convolution import WINDOW, window_ints
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import FactorRule, rule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import flag_attr


def _check_pool(x: TensorType, attrs: Attrs, *, has_dilation: bool = True) -> TensorType:
    """Return the type of `x` pooled."""
    space = x.rank - 2
    if not x.is_float or not 1 <= space <= 3:
        raise ValueError(f"expected float values of 1 to 3 spatial dims, got {x}")
    kernel = window_ints(attrs, "kernel", space, 1)
    window = WINDOW if has_dilation else {name: least for name, least in WINDOW.items() if name != "dilation"}
    stride, padding, *rest = (window_ints(attrs, name, space, least) for name, least in window.items())
    dilation = rest[0] if rest else (1,) * space
    ceil_mode = flag_attr(attrs, "ceil_mode")
    out = []
    for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1  # the last window would begin in the padding
        out.append(count)
    if any(n < 1 for n in out):
        raise ValueError("the kernel is larger than the padded values")
    return x.with_shape((*x.shape[:2], *out))


def infer_max_pool(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the maxima and where in the flattened space each stands."""
    if len(operands) != 1:
        raise ValueError("expected one operand")
    y = _check_pool(operands[0], attrs)
    return y, TensorType("i64", y.shape)


def infer_max_pool_grad(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of x for the result's gradient, x and indices."""
    if len(operands) != 3:
        raise ValueError("expected gradient, values and indices")
    g, x, indices = operands
    if g != _check_pool(x, attrs) or indices != TensorType("i64", g.shape):
        raise ValueError("gradient and indices do not fit the values")
    return (x,)


def pool_factors(op: Op) -> FactorRule:
    """Return the rule: batch and channels are free, space is whole."""
    rank = op.results[0].type.rank
    s, t = (" ".join(f"{letter}{i}" for i in range(rank - 2)) for letter in "st")
    sides = ((s,), (t,) * len(op.results)) if len(op.operands) == 1 else ((t, s, t), (s,))
    text = " -> ".join(", ".join(f"b c {space}" for space in side) for side in sides)
    return rule(text, [v.type for v in op.operands], [v.type for v in op.results], whole=f"{s} {t}")


def infer_sum_pool(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the sums of windows.

    Raises:
        ValueError: if the window does not fit.
    """
    if len(operands) != 1:
        raise ValueError("expected one operand")
    return (_check_pool(operands[0], attrs, has_dilation=False),)


def infer_sum_pool_grad(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type of x, which is `like`, for the result's gradient.

    Raises:
        ValueError: if they do not fit.
    """
    if len(operands) != 1 or like is None or operands[0] != _check_pool(like, attrs, has_dilation=False):
        raise ValueError("expected a gradient, and the type of the values that it fits")
    return (like,)


def _window_flops(op: Op) -> int:
    smaller = min(op.results[0].type.num_elements, op.operands[0].type.num_elements)
    return smaller * math.prod(op.ints("kernel"))


POOL: tuple[OpDef, ...] = (
    OpDef(
        "max_pool", infer_max_pool, pool_factors, linear_in(),
        lambda op: op.results[0].type.num_elements * math.prod(op.ints("kernel")),
    ),
    OpDef(
        "max_pool_grad", infer_max_pool_grad, pool_factors, linear_in({0}),
        lambda op: op.operands[0].type.num_elements,
    ),
    OpDef("sum_pool", infer_sum_pool, pool_factors, linear_in({0}), _window_flops),
    OpDef("sum_pool_grad", infer_sum_pool_grad, pool_factors, linear_in({0}), _window_flops),
)  # fmt: skip
