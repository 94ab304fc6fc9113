"""Tensors from nothing: constants, ranges, triangles, random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter, Number, Operand
from maniple.ir.program import Value
from maniple.ops.precision import accumulation_dtype


def index_along(e: Emitter, shape: tuple[int, ...], dim: int) -> Value:
    """Return each element's index along `dim`, i64."""
    return e("iota", like=TensorType("i64", shape), dim=dim)


def _filled(value: Number) -> Callable[..., Value]:
    def row(e: Emitter, *_args: object, **_options: object) -> Value:
        return e.full(value, e.out)

    return row


def _full(e: Emitter, _like: object, value: Operand, **_options: object) -> Value:
    return e.full(value, e.out)


def _new_full(e: Emitter, _like: object, _shape: object, value: Operand, **_options: object) -> Value:
    return e.full(value, e.out)


def _arange(e: Emitter, *bounds: Number, **_options: object) -> Value:
    start, _, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    index = e.cast(index_along(e, e.out.shape, 0), e.out.dtype)
    if step != 1:
        index = e.elementwise("multiply", index, step, dtype=e.out.dtype)
    return e.elementwise("add", index, start, dtype=e.out.dtype) if start else index


def _linspace(e: Emitter, start: float, end: float, steps: int, **_options: object) -> Value:
    index = e.cast(index_along(e, e.out.shape, 0), e.out.dtype)
    width = (end - start) / (steps - 1) if steps > 1 else 0.0
    return e.elementwise("add", e.elementwise("multiply", index, width, dtype=e.out.dtype), start)


def _triangle(how: str) -> Callable[..., Value]:
    def row(e: Emitter, x: Value, diagonal: int = 0) -> Value:
        shape, rank = x.type.shape, x.type.rank
        rows = e.elementwise("add", index_along(e, shape, rank - 2), diagonal)
        keep = e.elementwise(f"compare_{how}", rows, index_along(e, shape, rank - 1))
        return e.select(keep, x, 0, x.type.dtype)

    return row


def _eye(e: Emitter, *_sizes: int, **_options: object) -> Value:
    same = e("compare_eq", index_along(e, e.out.shape, 0), index_along(e, e.out.shape, 1))
    return e.cast(same, e.out.dtype)


def _rand(e: Emitter, *_args: object, **_options: object) -> Value:
    return e.random(e.out)


def _randn(e: Emitter, *_args: object, **_options: object) -> Value:
    """Return normal random numbers by the transform of Box and Muller (1958)."""
    radius = e("sqrt", e.elementwise("multiply", e("log", e.elementwise("subtract", 1.0, e.random(e.out))), -2.0))
    return e("multiply", radius, e("cosine", e.elementwise("multiply", e.random(e.out), 2 * math.pi)))


def _uniform(e: Emitter, _x: Value, low: float = 0.0, high: float = 1.0, **_options: object) -> Value:
    return e.elementwise("add", e.elementwise("multiply", e.random(e.out), high - low), low)


def _normal(e: Emitter, _x: Value, mean: float = 0.0, std: float = 1.0, **_options: object) -> Value:
    return e.elementwise("add", e.elementwise("multiply", _randn(e), std), mean)


def _normal_like(e: Emitter, mean: float, std: float, _size: object, **_options: object) -> Value:
    return e.elementwise("add", e.elementwise("multiply", _randn(e), std), mean)


def _bernoulli(e: Emitter, x: Value, probability: Operand | None = None, **_options: object) -> Value:
    chance = x if probability is None else probability
    drawn = e.random(TensorType(accumulation_dtype(e.out.dtype), e.out.shape))
    return e.cast(e.elementwise("compare_lt", drawn, chance, dtype=drawn.type.dtype), e.out.dtype)


def _dropout(e: Emitter, x: Value, probability: float, train: bool | None = None) -> tuple[Value, Value]:
    if train is False or probability == 0:
        return x, e.full(True, e.out_at(1))
    drawn = e.random(TensorType(accumulation_dtype(x.type.dtype), x.type.shape))
    kept = e.elementwise("compare_lt", drawn, 1 - probability)
    return _scaled_mask(e, x, kept, 1 / (1 - probability) if probability < 1 else 0.0), kept


def _scaled_mask(e: Emitter, x: Value, kept: Value, scale: float) -> Value:
    return e.elementwise("multiply", e("multiply", x, e.cast(kept, x.type.dtype)), scale)


def _shapes(name: str, forms: Sequence[str], row: Callable[..., Value]) -> dict[str, Callable[..., Value]]:
    return {f"aten.{name}.{form}": row for form in forms}


CREATE: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten.{make}.default": _filled(v) for name, v in (("zeros", 0), ("ones", 1)) for make in (name, f"{name}_like", f"new_{name}")},
    **{f"aten.{make}": _filled(0) for make in ("empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default")},
    "aten.new_empty_strided.default": _filled(0),
    "aten.empty_permuted.default": _filled(0),
    "aten._efficientzerotensor.default": _filled(0),
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten.new_full.default": _new_full,
    **_shapes("arange", ("default", "start", "start_step"), _arange),
    "aten.linspace.default": _linspace,
    "aten.tril.default": _triangle("ge"),
    "aten.triu.default": _triangle("le"),
    **_shapes("eye", ("default", "m"), _eye),
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.randn.default": _randn,
    "aten.randn_like.default": _randn,
    "aten.uniform.default": _uniform,
    "aten.normal.float_float": _normal_like,
    "aten.normal_functional.default": _normal,
    **_shapes("bernoulli", ("default", "p", "Tensor"), _bernoulli),
    "aten.native_dropout.default": _dropout,
    "aten.native_dropout_backward.default": _scaled_mask,
}
