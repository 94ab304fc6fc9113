"""Emits ops for ATen semantics: type promotion, broadcasting, and views folded as they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from maniple.base.errors import CaptureError
from maniple.base.types import LONG_NAMES, TensorType
from maniple.ir.program import Attr, Op, Value
from maniple.ops.builder import Builder
from maniple.ops.precision import accumulation_dtype

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, long) for name, long in LONG_NAMES.items()}
DTYPES: Final[Mapping[torch.dtype, str]] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A Python number that the program computes, as a value of rank 0 (f64, i64 or bool)."""

    value: Value


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor inside of the step: its real and its imaginary part, of one type."""

    real: Value
    imaginary: Value


Number = bool | int | float
Operand = Value | Scalar | Number


def type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor.

    Raises:
        CaptureError: if no program holds its dtype.
    """
    if tensor.dtype not in DTYPES:
        raise CaptureError(f"a program cannot hold dtype {tensor.dtype}", hint="use real floats, integers or bools")
    return TensorType(DTYPES[tensor.dtype], type_shape(tensor))


def type_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor.

    Raises:
        CaptureError: if a size is not known while tracing.
    """
    if not all(isinstance(n, int) for n in tensor.shape):
        raise CaptureError(
            "a shape depends on a number that is known only when the step runs", hint="make the size a plain Python number of the batch"
        )
    return tuple(tensor.shape)


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return numpy's common shape of shapes that have one.

    >>> broadcast_shape([(3, 1), (4,)])
    (3, 4)
    """
    first, *rest = shapes
    if all(shape == first for shape in rest):
        return first
    rank = max(map(len, shapes))
    sizes = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    return tuple(next((n for n in column if n != 1), 1) for column in sizes)


class Emitter:
    """A builder that knows ATen's rules.

    Attributes:
        b: the builder.
        outs: types of the current ATen op's results, None for results that are not tensors.
    """

    def __init__(self, builder: Builder, random_input: Callable[[], Value]) -> None:
        """Emit into `builder`; `random_input` returns the seed."""
        self.b = builder
        self.outs: tuple[TensorType | None, ...] = ()
        self._producers: dict[Value, Op] = {}
        self._num_seen = 0
        self._num_random = 0
        self._random_input = random_input

    @property
    def out(self) -> TensorType:
        """Type of the first result of the current ATen op."""
        (first, *_) = self.outs
        assert first is not None, "the op has a tensor result"
        return first

    def out_at(self, number: int) -> TensorType:
        """Return the type of result `number` of the current ATen op."""
        found = self.outs[number]
        assert found is not None, "the op has this result"
        return found

    def emit(self, name: str, operands: Sequence[Value], like: TensorType | None = None, **attrs: Attr) -> tuple[Value, ...]:
        """Emit one op of the table."""
        return self.b.emit(name, operands, like, **attrs)

    def __call__(self, name: str, *operands: Value, like: TensorType | None = None, **attrs: Attr) -> Value:
        """Emit one op of the table that has one result."""
        return self.b(name, *operands, like=like, **attrs)

    def producer(self, value: Value) -> Op | None:
        """Return the op that made `value`."""
        for op in self.b.ops[self._num_seen :]:
            self._producers.update(dict.fromkeys(op.results, op))
        self._num_seen = len(self.b.ops)
        return self._producers.get(value)

    # numbers and types

    def constant(self, value: Number, dtype: str) -> Value:
        """Return a rank-0 constant, the number converted as ATen does."""
        if dtype == "bool":
            return self.b.constant(bool(value), dtype)
        return self.b.constant(float(value) if "f" in dtype else int(value), dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        """Return `x` in `dtype`."""
        return x if x.type.dtype == dtype else self("convert", x, like=TensorType(dtype, x.type.shape))

    def value(self, x: Operand, dtype: str) -> Value:
        """Return an operand as a value of `dtype`."""
        if isinstance(x, Scalar):
            return self.cast(x.value, dtype)
        return self.cast(x, dtype) if isinstance(x, Value) else self.constant(x, dtype)

    def common_dtype(self, *operands: Operand) -> str:
        """Return the dtype in which ATen combines operands: tensors with dims count before those without, and these before numbers."""
        tensors = [x.type for x in operands if isinstance(x, Value)]
        float_dtype = DTYPES[torch.get_default_dtype()] if tensors else "f64"
        numbers = [_number_dtype(x, float_dtype) for x in operands if not isinstance(x, Value)]
        result = ""
        for group in ([t.dtype for t in tensors if t.rank], [t.dtype for t in tensors if not t.rank], numbers):
            result = _with_lesser(result, _promote(group))
        return result

    # shapes

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Return `x` with another shape; reshapes of reshapes become one."""
        shape = tuple(shape)
        maker = self.producer(x)
        if maker is not None and maker.name == "reshape":
            x = maker.operands[0]
        return x if x.type.shape == shape else self("reshape", x, like=x.type.with_shape(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Return `x` with dims in the order `perm`; transposes of transposes become one."""
        perm = tuple(perm)
        maker = self.producer(x)
        if maker is not None and maker.name == "transpose":
            inner = maker.ints("perm")
            x, perm = maker.operands[0], tuple(inner[d] for d in perm)
        return x if perm == tuple(range(len(perm))) else self("transpose", x, perm=perm)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Return `x` broadcast to `shape` as numpy does."""
        shape = tuple(shape)
        if x.type.shape == shape:
            return x
        lead = len(shape) - x.type.rank
        if x.type.num_elements == math.prod(shape) and lead >= 0:
            return self.reshape(x, shape)
        kept = [d for d, n in enumerate(x.type.shape) if n == shape[lead + d]]
        x = self.reshape(x, [x.type.shape[d] for d in kept])
        return self("broadcast_in_dim", x, like=x.type.with_shape(shape), dims=tuple(lead + d for d in kept))

    def full(self, value: Operand, kind: TensorType) -> Value:
        """Return a tensor of one number."""
        return self.expand(self.value(value, kind.dtype), kind.shape)

    # common ops

    def elementwise(self, name: str, *operands: Operand, dtype: str | None = None) -> Value:
        """Emit an elementwise op on operands converted to one dtype (ATen's common one if not given) and broadcast."""
        dtype = dtype or self.common_dtype(*operands)
        values = [self.value(x, dtype) for x in operands]
        return self(name, *self._aligned(values))

    def _aligned(self, values: Sequence[Value]) -> list[Value]:
        shape = broadcast_shape([value.type.shape for value in values])
        if all(value.type.num_elements == 1 for value in values):
            return [self.reshape(value, shape) for value in values]
        return [self.reshape(v, ()) if v.type.num_elements == 1 else self.expand(v, shape) for v in values]

    def select(self, predicate: Value, one: Operand, other: Operand, dtype: str) -> Value:
        """Return `one` where `predicate` holds, else `other`, all broadcast."""
        values = self._aligned([self.value(predicate, "bool"), self.value(one, dtype), self.value(other, dtype)])
        return self("select", *values)

    def sum(self, x: Value, dims: Sequence[int], *, keep: bool = False) -> Value:
        """Return the sum over dims."""
        return self.reduce("reduce_sum", x, dims, keep=keep)

    def reduce(self, name: str, x: Value, dims: Sequence[int], *, keep: bool = False) -> Value:
        """Emit a reduction over dims (negative ones count from the end; none means all)."""
        found = tuple(sorted({d % x.type.rank for d in dims})) if dims and x.type.rank else tuple(range(x.type.rank))
        y = self(name, x, dims=found) if found else x
        return self.reshape(y, [1 if d in found else n for d, n in enumerate(x.type.shape)]) if keep else y

    def random(self, kind: TensorType) -> Value:
        """Return uniform random numbers in [0, 1), new ones at each call."""
        self._num_random += 1
        wide = TensorType(accumulation_dtype(kind.dtype), kind.shape)
        x = self("rng_uniform", self._random_input(), like=wide, id=self._num_random - 1, global_shape=kind.shape)
        return self.cast(x, kind.dtype)


def _number_dtype(x: Scalar | Number, float_dtype: str) -> str:
    kind = x.value.type.dtype if isinstance(x, Scalar) else {bool: "bool", int: "i64"}.get(type(x), "f64")
    return float_dtype if kind == "f64" else kind


def _promote(dtypes: Sequence[str]) -> str:
    result = ""
    for dtype in dtypes:
        result = DTYPES[torch.promote_types(TORCH_DTYPES[result], TORCH_DTYPES[dtype])] if result else dtype
    return result


def _with_lesser(higher: str, lower: str) -> str:
    """Return the dtype of operands of dtype `higher` with ones of a lesser kind: these count only if theirs is a wider category."""
    if not higher or not lower:
        return higher or lower
    if "f" in higher:
        return higher
    return _promote([higher, lower]) if higher == "bool" or "f" in lower else higher
