"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Number
from maniple.capture.torch.table.create import index_along
from maniple.ir.program import Value

Dims = Sequence[int] | None


def _count(x: Value, dims: Dims) -> int:
    return math.prod(x.type.shape[d] for d in dims) if dims else x.type.num_elements


def mean(e: Emitter, x: Value, dims: Dims, *, keep: bool = False) -> Value:
    """Return the mean over dims: the sum times one over the number of elements."""
    total = e.sum(x, dims or (), keep=keep)
    return e.elementwise("multiply", total, 1 / _count(x, dims) if _count(x, dims) else float("nan"))


def _sum(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Value:
    return e.sum(e.cast(x, e.out.dtype), dims or (), keep=keepdim)


def _mean(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Value:
    return mean(e, e.cast(x, e.out.dtype), dims, keep=keepdim)


def _extreme(name: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
        return e.reduce(name, x, dims or (), keep=keepdim)

    return row


def _extremes(e: Emitter, x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = () if dim is None or not x.type.rank else (dim,)
    return e.reduce("reduce_min", x, dims, keep=keepdim), e.reduce("reduce_max", x, dims, keep=keepdim)


def position(e: Emitter, x: Value, best: Value, dim: int) -> Value:
    """Return the first index along `dim` at which `x` equals `best` (which keeps the dim, of size 1), or is NaN as that is then."""
    index = index_along(e, x.type.shape, dim)
    hits = e.elementwise("compare_eq", x, best)
    hits = e("or", hits, e("compare_ne", x, x)) if x.type.is_float else hits
    return e.reduce("reduce_min", e.select(hits, index, x.type.shape[dim], "i64"), (dim,), keep=True)


def _extreme_dim(name: str) -> Callable[..., tuple[Value, Value]]:
    def row(e: Emitter, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        x = x if x.type.rank else e.reshape(x, (1,))
        dim %= x.type.rank
        best = e.reduce(name, x, (dim,), keep=True)
        return e.reshape(best, e.out.shape), e.reshape(position(e, x, best, dim), e.out.shape)

    return row


def _arg_extreme(name: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            x, dim = e.reshape(x, (x.type.num_elements,)), 0
        x = x if x.type.rank else e.reshape(x, (1,))
        dim %= x.type.rank
        return e.reshape(position(e, x, e.reduce(name, x, (dim,), keep=True), dim), e.out.shape)

    return row


def _truth(name: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, dims: int | Dims = None, keepdim: bool = False) -> Value:
        found = (dims,) if isinstance(dims, int) else dims or ()
        counted = e.cast(e.cast(x, "bool"), "i32")
        return e.cast(e.reduce(name, counted, found, keep=keepdim), "bool")

    return row


def _moments(e: Emitter, x: Value, dims: Dims, correction: Number | None, *, keep: bool) -> tuple[Value, Value]:
    average = mean(e, x, dims, keep=True)
    away = e.elementwise("subtract", x, average)
    count = _count(x, dims)
    divisor = count - (1 if correction is None else correction)
    total = e.sum(e("multiply", away, away), dims or (), keep=keep)
    variance = e.elementwise("multiply", total, 1 / divisor if divisor > 0 else float("nan"))
    return variance, average if keep else e.reshape(average, variance.type.shape)


def _var(e: Emitter, x: Value, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Value:
    return _moments(e, x, dims, correction, keep=keepdim)[0]


def _std(e: Emitter, x: Value, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Value:
    return e("sqrt", _var(e, x, dims, correction=correction, keepdim=keepdim))


def _var_mean(e: Emitter, x: Value, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return _moments(e, x, dims, correction, keep=keepdim)


def _std_mean(e: Emitter, x: Value, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    variance, average = _moments(e, x, dims, correction, keep=keepdim)
    return e("sqrt", variance), average


def _norm(e: Emitter, x: Value, order: Number | None = 2, dims: int | Dims = None, keepdim: bool = False, *, dtype: object = None) -> Value:
    order = 2 if order is None else order
    found = (dims,) if isinstance(dims, int) else dims or ()
    size = e("abs", e.cast(x, e.out.dtype))
    if order == float("inf"):
        return e.reduce("reduce_max", size, found, keep=keepdim)
    if order == -float("inf"):
        return e.reduce("reduce_min", size, found, keep=keepdim)
    if order == 0:
        return e.sum(e.cast(e.elementwise("compare_ne", size, 0), e.out.dtype), found, keep=keepdim)
    if order == 1:
        return e.sum(size, found, keep=keepdim)
    if order == 2:  # the Euclidean norm
        return e("sqrt", e.sum(e("multiply", size, size), found, keep=keepdim))
    return e.elementwise("power", e.sum(e.elementwise("power", size, order), found, keep=keepdim), 1 / order)


def _logsumexp(e: Emitter, x: Value, dims: int | Sequence[int], keepdim: bool = False) -> Value:
    found = (dims,) if isinstance(dims, int) else dims
    highest = e.reduce("reduce_max", x, found, keep=True)
    finite = e.select(e("is_finite", highest), highest, 0, x.type.dtype)
    total = e.sum(e("exponential", e.elementwise("subtract", x, finite)), found, keep=True)
    return e.reshape(e("add", e("log", total), finite), e.out.shape)


REDUCE: Final[dict[str, Callable[..., Any]]] = {
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.amax.default": _extreme("reduce_max"),
    "aten.amin.default": _extreme("reduce_min"),
    "aten.max.default": _extreme("reduce_max"),
    "aten.min.default": _extreme("reduce_min"),
    "aten.max.dim": _extreme_dim("reduce_max"),
    "aten.min.dim": _extreme_dim("reduce_min"),
    "aten.aminmax.default": _extremes,
    "aten.argmax.default": _arg_extreme("reduce_max"),
    "aten.argmin.default": _arg_extreme("reduce_min"),
    **{f"aten.any.{form}": _truth("reduce_max") for form in ("default", "dim", "dims")},
    "aten._is_any_true.default": _truth("reduce_max"),
    "aten._is_all_true.default": _truth("reduce_min"),
    **{f"aten.all.{form}": _truth("reduce_min") for form in ("default", "dim", "dims")},
    "aten.var.correction": _var,
    "aten.std.correction": _std,
    "aten.var_mean.correction": _var_mean,
    "aten.std_mean.correction": _std_mean,
    "aten.linalg_vector_norm.default": _norm,
    **{f"aten.norm.{form}": _norm for form in ("Scalar", "ScalarOpt_dim", "ScalarOpt_dim_dtype")},
    "aten.logsumexp.default": _logsumexp,
}
