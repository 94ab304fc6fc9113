"""Normalisation, softmax, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.reduce import mean
from maniple.ir.program import Value
from maniple.ops.precision import accumulation_dtype


def _softmax(name: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, dim: int, _half_to_float: bool) -> Value:
        x = e.cast(x, e.out.dtype)
        if not x.type.rank:
            return e.reshape(e(name, e.reshape(x, (1,)), dim=0), ())
        return e(name, x, dim=dim % x.type.rank)

    return row


def _softmax_grad(name: str) -> Callable[..., Value]:
    def row(e: Emitter, g: Value, y: Value, dim: int, _dtype: object) -> Value:
        if not g.type.rank:
            return e.cast(e.reshape(e(name, e.reshape(g, (1,)), e.reshape(y, (1,)), dim=0), ()), e.out.dtype)
        return e.cast(e(name, g, y, dim=dim % g.type.rank), e.out.dtype)

    return row


def _safe_softmax(e: Emitter, x: Value, dim: int, dtype: object = None) -> Value:
    """Return the softmax, 0 where all of a row is masked."""
    x, dim = e.cast(x, e.out.dtype), dim % x.type.rank
    masked = e.elementwise("compare_eq", e.reduce("reduce_max", x, (dim,), keep=True), float("-inf"))
    return e.select(masked, 0, e("softmax", x, dim=dim), x.type.dtype)


def _or_full(e: Emitter, w: Value | None, value: float, kind: TensorType) -> Value:
    return e.full(value, kind) if w is None else e.cast(w, kind.dtype)


def _layer_norm(e: Emitter, x: Value, shape: Sequence[int], w: Value | None, b: Value | None, eps: float) -> tuple[Value, ...]:
    wide = x if w is None else e.cast(x, w.type.dtype)  # under autocast the weights are wider: so is the computation
    kind = wide.type.with_shape(tuple(shape))
    y, average, rstd = e.emit("layer_norm", (wide, _or_full(e, w, 1, kind), _or_full(e, b, 0, kind)), eps=eps)
    return e.cast(y, e.out.dtype), _statistics(e, average, 1), _statistics(e, rstd, 2)


def _statistics(e: Emitter, x: Value, at: int) -> Value:
    kind = e.out_at(at)
    return e.cast(e.reshape(x, kind.shape), kind.dtype)


def _layer_norm_backward(
    e: Emitter, g: Value, x: Value, shape: Sequence[int], average: Value, rstd: Value, w: Value | None, b: Value | None,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    narrow = x.type.dtype
    if w is not None:
        g, x = e.cast(g, w.type.dtype), e.cast(x, w.type.dtype)
    lead = x.type.shape[: x.type.rank - len(shape)]
    statistics = [e.cast(e.reshape(value, lead), accumulation_dtype(x.type.dtype)) for value in (average, rstd)]
    weight = _or_full(e, w, 1, x.type.with_shape(tuple(shape)))
    dx, *others = e.emit("layer_norm_grad", (g, x, *statistics, weight))
    results = (e.cast(dx, narrow), *others)
    return tuple(value if want else None for value, want in zip(results, wanted, strict=True))


def _channels(e: Emitter, x: Value, like: Value) -> Value:
    """Return one value per channel repeated to all elements."""
    return e.b.broadcast(e.cast(x, like.type.dtype), like.type.shape, (1,))


def _batch_norm(
    e: Emitter, x: Value, w: Value | None, b: Value | None, running_mean: Value | None, running_var: Value | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    """Return y, batch mean, batch rstd, and, where there are running statistics, their new values (unbiased variance)."""
    kind = x.type.with_shape(x.type.shape[1:2])
    weight, bias = _or_full(e, w, 1, kind), _or_full(e, b, 0, kind)
    if not training:
        assert running_mean is not None, "evaluation needs running statistics"
        assert running_var is not None, "evaluation needs running statistics"
        rstd = e("rsqrt", e.elementwise("add", running_var, eps))
        scale = e.elementwise("multiply", weight, rstd)
        away = e("subtract", x, _channels(e, running_mean, x))
        y = e("add", e("multiply", away, _channels(e, scale, x)), _channels(e, bias, x))
        return y, e.full(0, e.out_at(1)), e.full(0, e.out_at(2)), running_mean, running_var
    y, average, rstd, variance = e.emit("batch_norm", (x, weight, bias), eps=eps)
    results = (y, _statistics(e, average, 1), _statistics(e, rstd, 2))
    if running_mean is None or running_var is None:
        return results
    n = x.type.num_elements // x.type.shape[1]
    unbiased = e.elementwise("multiply", variance, n / (n - 1) if n > 1 else float("nan"))
    return (*results, _moved(e, running_mean, average, momentum), _moved(e, running_var, unbiased, momentum))


def _moved(e: Emitter, old: Value, new: Value, momentum: float) -> Value:
    kept = e.elementwise("multiply", old, 1 - momentum)
    return e("add", kept, e.elementwise("multiply", e.cast(new, old.type.dtype), momentum))


def _batch_norm_no_stats(
    e: Emitter, x: Value, w: Value | None, b: Value | None, _training: bool, momentum: float, eps: float
) -> tuple[Value, ...]:
    return _batch_norm(e, x, w, b, None, None, True, momentum, eps)


def _batch_norm_evaluated(
    e: Emitter, x: Value, w: Value | None, b: Value | None, running_mean: Value, running_var: Value, momentum: float, eps: float
) -> tuple[Value, ...]:
    return _batch_norm(e, x, w, b, running_mean, running_var, False, momentum, eps)[:3]


def _native_batch_norm(
    e: Emitter, x: Value, w: Value | None, b: Value | None, running_mean: Value | None, running_var: Value | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Value, ...]:  # fmt: skip
    if training and running_mean is not None:
        raise NotImplementedError("a form whose change of the running statistics is not part of the graph")
    return _batch_norm(e, x, w, b, running_mean, running_var, training, momentum, eps)[:3]


def _batch_norm_backward(
    e: Emitter, g: Value, x: Value, w: Value | None, running_mean: Value | None, running_var: Value | None, average: Value | None,
    rstd: Value | None, training: bool, eps: float, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    kind = x.type.with_shape(x.type.shape[1:2])
    weight = _or_full(e, w, 1, kind)
    if training:
        assert average is not None, "training saves the batch's statistics"
        assert rstd is not None, "training saves the batch's statistics"
        statistics = [e.cast(value, accumulation_dtype(x.type.dtype)) for value in (average, rstd)]
        results = e.emit("batch_norm_grad", (g, x, *statistics, weight))
    else:
        assert running_mean is not None, "evaluation needs running statistics"
        assert running_var is not None, "evaluation needs running statistics"
        scale = e("rsqrt", e.elementwise("add", e.cast(running_var, x.type.dtype), eps))
        others = [d for d in range(x.type.rank) if d != 1]
        away = e("subtract", x, _channels(e, running_mean, x))
        dx = e("multiply", g, _channels(e, e("multiply", weight, scale), x))
        results = (dx, e("multiply", e.sum(e("multiply", g, away), others), scale), e.sum(g, others))
    return tuple(value if want else None for value, want in zip(results, wanted, strict=True))


def _rms_norm(e: Emitter, x: Value, shape: Sequence[int], w: Value | None, eps: float | None) -> tuple[Value, Value]:
    """Return y and rstd. Source: Zhang and Sennrich (arXiv:1910.07467), equation 4."""
    wide = e.cast(x, accumulation_dtype(x.type.dtype))
    dims = tuple(range(x.type.rank - len(shape), x.type.rank))
    floor = {"f64": 2.220446049250313e-16, "bf16": 0.0078125, "f16": 0.0009765625}.get(x.type.dtype, 1.1920928955078125e-07)
    rstd = e("rsqrt", e.elementwise("add", mean(e, e("multiply", wide, wide), dims, keep=True), floor if eps is None else eps))
    y = e.elementwise("multiply", wide, rstd)
    y = y if w is None else e.elementwise("multiply", y, w, dtype=wide.type.dtype)
    return e.cast(y, e.out.dtype), e.cast(rstd, e.out_at(1).dtype)


def _rms_norm_backward(
    e: Emitter, g: Value, x: Value, shape: Sequence[int], rstd: Value, w: Value | None, wanted: Sequence[bool]
) -> tuple[Value | None, Value | None]:
    dtype = accumulation_dtype(x.type.dtype)
    g, wide, rstd = (e.cast(value, dtype) for value in (g, x, rstd))
    lead = tuple(range(x.type.rank - len(shape)))
    dims = tuple(range(len(lead), x.type.rank))
    unit = e.elementwise("multiply", wide, rstd)
    weighted = g if w is None else e.elementwise("multiply", g, w, dtype=dtype)
    part = e.elementwise("multiply", unit, mean(e, e("multiply", weighted, unit), dims, keep=True))
    dx = e.elementwise("multiply", e("subtract", weighted, part), rstd)
    dw = None
    if wanted[1] and w is not None:
        product = e("multiply", g, unit)
        dw = e.cast(e.sum(product, lead) if lead else product, w.type.dtype)
    return (e.cast(dx, x.type.dtype) if wanted[0] else None), dw


def _groups(x: Value, groups: int) -> tuple[int, ...]:
    return (x.type.shape[0], groups, x.type.shape[1] // groups * math.prod(x.type.shape[2:]))


def _group_norm(
    e: Emitter, x: Value, w: Value | None, b: Value | None, _n: int, _c: int, _space: int, groups: int, eps: float
) -> tuple[Value, ...]:
    """Return y, mean and rstd; source: Wu and He (arXiv:1803.08494), equation 7. A group is normalised like a layer."""
    shape = _groups(x, groups)
    rows = e.reshape(x, shape)
    kind = x.type.with_shape(shape[2:])
    y, average, rstd = e.emit("layer_norm", (rows, e.full(1, kind), e.full(0, kind)), eps=eps)
    y = e.reshape(y, x.type.shape)
    y = y if w is None else e("multiply", y, _channels(e, w, x))
    y = y if b is None else e("add", y, _channels(e, b, x))
    return y, _statistics(e, average, 1), _statistics(e, rstd, 2)


def _group_norm_backward(
    e: Emitter, g: Value, x: Value, average: Value, rstd: Value, w: Value | None, _n: int, _c: int, _space: int, groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    shape = _groups(x, groups)
    kind = x.type.with_shape(shape[2:])
    rows = e.reshape(x, shape)
    others = [d for d in range(x.type.rank) if d != 1]
    weighted = g if w is None else e("multiply", g, _channels(e, w, x))
    statistics = [e.cast(value, accumulation_dtype(x.type.dtype)) for value in (average, rstd)]
    dx, _, _ = e.emit("layer_norm_grad", (e.reshape(weighted, shape), rows, *statistics, e.full(1, kind)))
    wide = [e.cast(e.expand(e.reshape(value, (*shape[:2], 1)), shape), x.type.dtype) for value in (average, rstd)]
    unit = e.reshape(e("multiply", e("subtract", rows, wide[0]), wide[1]), x.type.shape)
    dw = e.sum(e("multiply", g, unit), others) if wanted[1] else None
    return (e.reshape(dx, x.type.shape) if wanted[0] else None), dw, (e.sum(g, others) if wanted[2] else None)


def _weight_norm(e: Emitter, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """Return v * g / norm and the norms, which run over all dims but `dim` (Salimans and Kingma, arXiv:1602.07868, equation 2)."""
    norms = e("sqrt", e.sum(e("multiply", v, v), _others(v, dim), keep=True))
    return e.elementwise("multiply", v, e("divide", g, norms)), norms


def _weight_norm_backward(e: Emitter, grad: Value, v: Value, g: Value, norms: Value, dim: int) -> tuple[Value, Value]:
    scale = e("divide", g, norms)
    along = e("divide", e.sum(e("multiply", grad, v), _others(v, dim), keep=True), norms)  # the gradient's part along v
    across = e("subtract", grad, e.elementwise("multiply", v, e("divide", along, norms)))
    return e.elementwise("multiply", across, scale), along


def _others(v: Value, dim: int) -> list[int]:
    return [d for d in range(v.type.rank) if d != dim % v.type.rank]


NORMALIZE: Final[dict[str, Callable[..., Any]]] = {
    "aten._softmax.default": _softmax("softmax"),
    "aten._log_softmax.default": _softmax("log_softmax"),
    "aten._softmax_backward_data.default": _softmax_grad("softmax_grad"),
    "aten._log_softmax_backward_data.default": _softmax_grad("log_softmax_grad"),
    "aten._safe_softmax.default": _safe_softmax,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_evaluated,
    "aten.native_batch_norm.default": _native_batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten._fused_rms_norm.default": _rms_norm,
    "aten._fused_rms_norm_backward.default": _rms_norm_backward,
    "aten._weight_norm_interface.default": _weight_norm,
    "aten._weight_norm_interface_backward.default": _weight_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
}
