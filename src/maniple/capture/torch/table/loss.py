"""Losses and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.reduce import mean
from maniple.ir.program import Value

_NONE, _MEAN = 0, 1
"""ATen's reductions; 2 is the sum."""


def _classes_last(e: Emitter, x: Value) -> Value:
    """Return `x` with the classes (dim 1 of several) last."""
    if x.type.rank < 3:  # a matrix has them last
        return x
    return e.transpose(x, (0, *range(2, x.type.rank), 1))


def _label_weights(e: Emitter, labels: Value, weight: Value | None, ignore: int, dtype: str) -> Value:
    """Return the weight of each label's term, 0 for ignored labels."""
    kept = e.elementwise("compare_ne", labels, ignore)
    if weight is None:
        return e.cast(kept, dtype)
    safe = e.select(kept, labels, 0, labels.type.dtype)
    found = e("embedding", e.reshape(weight, (*weight.type.shape, 1)), safe)
    return e.select(kept, e.reshape(found, labels.type.shape), 0, dtype)


def _nll(e: Emitter, x: Value, labels: Value, weight: Value | None, reduction: int, ignore: int) -> tuple[Value, Value]:
    x = _classes_last(e, x)
    weights = _label_weights(e, labels, weight, ignore, x.type.dtype)
    total = e.sum(weights, ())
    terms = e("negate", e("pick", x, labels, ignore_index=ignore))
    terms = terms if weight is None else e("multiply", terms, weights)
    if reduction == _NONE:
        return terms, e.full(0, e.out_at(1))
    loss = e.sum(terms, ())
    return (e("divide", loss, total) if reduction == _MEAN else loss), total


def _nll_backward(e: Emitter, g: Value, x: Value, labels: Value, weight: Value | None, reduction: int, ignore: int, total: Value) -> Value:
    rank = x.type.rank
    last = _classes_last(e, x)
    if reduction == _MEAN:
        g = e("divide", g, total)
    rows = e.expand(e("negate", g), labels.type.shape)
    if weight is not None:
        rows = e("multiply", rows, _label_weights(e, labels, weight, ignore, x.type.dtype))
    spread = e("pick_grad", rows, labels, like=last.type, ignore_index=ignore)
    return spread if rank < 3 else e.transpose(spread, (0, rank - 1, *range(1, rank - 1)))


def _reduced(e: Emitter, x: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return x
    return mean(e, x, None) if reduction == _MEAN else e.sum(x, ())


def _spread(e: Emitter, g: Value, x: Value, reduction: int) -> Value:
    """Return the gradient of each element's term."""
    return e.elementwise("multiply", g, 1 / x.type.num_elements) if reduction == _MEAN and x.type.num_elements else g


def _mse(e: Emitter, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    away = e.elementwise("subtract", x, target)
    return _reduced(e, e("multiply", away, away), reduction)


def _mse_backward(e: Emitter, g: Value, x: Value, target: Value, reduction: int) -> Value:
    away = e.elementwise("multiply", e.elementwise("subtract", x, target), 2)
    return e.elementwise("multiply", away, _spread(e, g, x, reduction), dtype=e.out.dtype)


def _bce_with_logits(
    e: Emitter, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: int = _MEAN
) -> Value:
    """Return (1 - t) x + w (log(1 + exp(-|x|)) + max(-x, 0)), w = 1 + (p - 1) t with the positive class's weight p."""
    log_term = e("add", e("log_plus_one", e("exponential", e("negate", e("abs", x)))), e.elementwise("maximum", e("negate", x), 0))
    if pos_weight is not None:
        raised = e.elementwise("multiply", e.elementwise("subtract", pos_weight, 1), target)
        log_term = e.elementwise("multiply", log_term, e.elementwise("add", raised, 1))
    terms = e.elementwise("add", e.elementwise("multiply", e.elementwise("subtract", 1, target), x), log_term)
    return _reduced(e, terms if weight is None else e.elementwise("multiply", terms, weight), reduction)


def _bce(e: Emitter, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN) -> Value:
    log_x = e.elementwise("maximum", e("log", x), -100)
    log_rest = e.elementwise("maximum", e("log_plus_one", e("negate", x)), -100)
    terms = e("subtract", e("multiply", e.elementwise("subtract", target, 1), log_rest), e("multiply", target, log_x))
    return _reduced(e, terms if weight is None else e.elementwise("multiply", terms, weight), reduction)


def _bce_backward(e: Emitter, g: Value, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN) -> Value:
    spread = e.elementwise("maximum", e("multiply", e.elementwise("subtract", 1, x), x), 1e-12)
    slope = e("divide", e("subtract", x, target), spread)
    slope = slope if weight is None else e.elementwise("multiply", slope, weight)
    return e.elementwise("multiply", slope, _spread(e, g, x, reduction))


def _smooth(e: Emitter, x: Value, target: Value, reduction: int, corner: float, scale: float) -> Value:
    away = e("abs", e.elementwise("subtract", x, target))
    near = e.elementwise("multiply", e("multiply", away, away), 0.5 * scale)
    far = e.elementwise("multiply", e.elementwise("subtract", away, 0.5 * corner), corner * scale)
    return _reduced(e, e.select(e.elementwise("compare_lt", away, corner), near, far, x.type.dtype), reduction)


def _smooth_backward(e: Emitter, g: Value, x: Value, target: Value, reduction: int, corner: float, scale: float) -> Value:
    away = e.elementwise("subtract", x, target)
    bounded = e.elementwise("minimum", e.elementwise("maximum", away, -corner), corner)
    return e.elementwise("multiply", e.elementwise("multiply", bounded, scale), _spread(e, g, x, reduction))


def _smooth_l1(e: Emitter, x: Value, target: Value, reduction: int = _MEAN, beta: float = 1.0) -> Value:
    return _smooth(e, x, target, reduction, beta, 1 / beta)


def _smooth_l1_backward(e: Emitter, g: Value, x: Value, target: Value, reduction: int, beta: float) -> Value:
    return _smooth_backward(e, g, x, target, reduction, beta, 1 / beta)


def _huber(e: Emitter, x: Value, target: Value, reduction: int = _MEAN, delta: float = 1.0) -> Value:
    return _smooth(e, x, target, reduction, delta, 1.0)


def _huber_backward(e: Emitter, g: Value, x: Value, target: Value, reduction: int, delta: float) -> Value:
    return _smooth_backward(e, g, x, target, reduction, delta, 1.0)


LOSS: Final[dict[str, Callable[..., Any]]] = {
    "aten.nll_loss_forward.default": _nll,
    "aten.nll_loss2d_forward.default": _nll,
    "aten.nll_loss_backward.default": _nll_backward,
    "aten.nll_loss2d_backward.default": _nll_backward,
    "aten.mse_loss.default": _mse,
    "aten.mse_loss_backward.default": _mse_backward,
    "aten.binary_cross_entropy_with_logits.default": _bce_with_logits,
    "aten.binary_cross_entropy.default": _bce,
    "aten.binary_cross_entropy_backward.default": _bce_backward,
    "aten.smooth_l1_loss.default": _smooth_l1,
    "aten.smooth_l1_loss_backward.default": _smooth_l1_backward,
    "aten.huber_loss.default": _huber,
    "aten.huber_loss_backward.default": _huber_backward,
}
