"""Sample ops, from which every row of the op table is tested.

Sizes are small and odd on purpose: 5 and 4 divide unevenly, 1 and 2 leave some of three devices with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from maniple.base.types import TensorType
from maniple.ir.program import Attr
from maniple.kernels.torch.emit import TORCH_DTYPES


@dataclass(frozen=True)
class Operand:
    """The type of an operand and the half-open range that its random values are drawn from."""

    type: TensorType
    low: float = -2.0
    high: float = 2.0

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Return random values of the operand's type."""
        shape, kind = self.type.shape, TORCH_DTYPES[self.type.dtype]
        if self.type.is_float:
            values = torch.rand(shape, dtype=torch.float64, generator=generator)
            return (values * (self.high - self.low) + self.low).to(kind)
        if self.type.dtype == "bool":
            return torch.randint(0, 2, shape, generator=generator).to(kind)
        return torch.randint(int(self.low), int(self.high), shape, generator=generator).to(kind)


@dataclass(frozen=True)
class Sample:
    """One op with operands.

    Attributes:
        like: type of the first result, for rows that need it.
        prepare: turns the drawn operands into consistent ones, e.g. the output of attention from its q, k and v.
        scalars: numbers of operands that are offsets: given to the kernel as Python ints.
    """

    name: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    like: TensorType | None = None
    prepare: Callable[[list[torch.Tensor]], list[torch.Tensor]] | None = None
    scalars: tuple[int, ...] = ()

    def draw(self, seed: int = 0) -> list[torch.Tensor]:
        """Return operands of random values, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        values = [operand.draw(generator) for operand in self.operands]
        return self.prepare(values) if self.prepare else values

    def __str__(self) -> str:
        """Return the op with its types, for the name of a test."""
        types = ",".join(str(operand.type) for operand in self.operands)
        attrs = ",".join(f"{name}={value}" for name, value in self.attrs.items())
        return f"{self.name}({types}){attrs}"


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Operand:
    """Return a float operand of `shape`."""
    return Operand(TensorType("f64", shape), low, high)


def i(*shape: int, low: int = -3, high: int = 4) -> Operand:
    """Return an integer operand of `shape`."""
    return Operand(TensorType("i64", shape), low, high)


def b(*shape: int) -> Operand:
    """Return a bool operand of `shape`."""
    return Operand(TensorType("bool", shape))


def sample(name: str, *operands: Operand, like: TensorType | None = None, **attrs: Attr) -> Sample:
    """Return a sample whose attributes are written as keywords."""
    return Sample(name, operands, attrs, like)


def t(*shape: int, dtype: str = "f64") -> TensorType:
    """Return a result type."""
    return TensorType(dtype, shape)


_POSITIVE = {"log", "sqrt", "rsqrt", "log_plus_one"}
_UNARY = (
    "abs", "sign", "exponential", "log", "log_plus_one", "logistic", "tanh", "sqrt", "rsqrt", "cosine", "sine", "erf", "floor", "ceil",
    "negate", "is_finite",
)  # fmt: skip
_BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder",
    "compare_eq", "compare_ne", "compare_lt", "compare_le", "compare_gt", "compare_ge",
)  # fmt: skip


def _elementwise() -> list[Sample]:
    unary = [sample(name, f(5, 2, low=0.1 if name in _POSITIVE else -2.0)) for name in _UNARY]
    binary = [
        item
        for name in _BINARY
        for item in (
            sample(name, f(5, 2, low=0.5), f(5, 2, low=0.5)),
            sample(name, f(4, 1), f(low=0.5)),
            sample(name, i(), i(5, low=1)),
        )
    ]
    return [
        *unary,
        *binary,
        sample("power", f(5, 2, low=0.1), f(5, 2)),
        sample("power", f(5, 2), f(low=2.0, high=2.000001)),
        *(sample(name, i(5, 2), i(5, 2)) for name in ("and", "or", "xor")),
        *(sample(name, b(5, 2), b()) for name in ("and", "or", "xor", "maximum", "minimum", "compare_eq")),
        sample("not", b(5, 2)),
        sample("not", i(4)),
        sample("select", b(5, 2), f(5, 2), f(5, 2)),
        sample("select", b(), f(5, 2), f()),
        sample("select", b(5, 2), i(), i()),
        sample("convert", f(5, 2), like=t(5, 2, dtype="f32")),
        sample("convert", f(5, 2), like=t(5, 2, dtype="i64")),
        sample("convert", b(4), like=t(4)),
    ]


def _structure() -> list[Sample]:
    return [
        sample("constant", like=t(), value=2.5),
        sample("constant", like=t(dtype="i64"), value=-3),
        sample("iota", like=t(5, dtype="i64"), dim=0),
        sample("iota", like=t(4, 5, 2), dim=1),
        sample("broadcast_in_dim", f(), like=t(5, 2), dims=()),
        sample("broadcast_in_dim", f(5), like=t(2, 5, 4), dims=(1,)),
        sample("broadcast_in_dim", f(5, 2), like=t(2, 4, 5), dims=(2, 0)),
        sample("reshape", f(5, 4, 2), like=t(20, 2)),
        sample("reshape", f(20, 6), like=t(5, 4, 2, 3)),
        sample("reshape", f(6, 4), like=t(4, 6)),
        sample("reshape", f(2, 3, 1, 5), like=t(3, 2, 5)),
        sample("reshape", f(5, 0, 2), like=t(5, 3, 0)),
        sample("reshape", f(1, 1), like=t()),
        sample("transpose", f(5, 4, 2), perm=(2, 0, 1)),
        sample("transpose", f(), perm=()),
        sample("slice", f(5, 12), dim=1, start=4, limit=8, stride=1),
        sample("slice", f(15, 2), dim=0, start=10, limit=15, stride=1),
        sample("slice", f(5, 4), dim=1, start=1, limit=4, stride=1),
        sample("slice", f(5, 4, 2), dim=1, start=0, limit=4, stride=2),
        sample("slice", f(5, 4), dim=0, start=0, limit=5, stride=1),
        sample("slice", f(5, 4), dim=0, start=2, limit=2, stride=1),
        sample("pad", f(5, 4), dim=1, low=1, high=2, value=0.0),
        sample("pad", f(5, 4), dim=0, low=-1, high=2, value=1.5),
        sample("pad", f(5, 4), dim=0, low=-2, high=-3, value=0.0),
        sample("pad", f(5, 0), dim=1, low=1, high=1, value=0.0),
        sample("concatenate", f(5, 2), f(5, 2), f(5, 2), dim=0),
        sample("concatenate", f(5, 2), f(5, 3), dim=1),
        sample("concatenate", f(5, 2), dim=1),
        sample("concatenate", f(5, 0), f(5, 3), dim=1),
        Sample("local_slice", (f(6, 5), i(low=1, high=2)), {"dim": 0, "blocks": 2}, t(4, 5), scalars=(1,)),
        Sample("local_slice", (f(4, 5), i(low=2, high=3)), {"dim": 1, "blocks": 1}, t(4, 2), scalars=(1,)),
        Sample("keep_at_zero", (f(5, 2), i(low=0, high=1)), scalars=(1,)),
        Sample("keep_at_zero", (f(5, 2), i(low=1, high=2)), scalars=(1,)),
    ]


def _dot(lhs: tuple[int, ...], rhs: tuple[int, ...], contract: tuple[tuple[int, ...], ...], batch: tuple[tuple[int, ...], ...]) -> Sample:
    attrs = {"lhs_contract": contract[0], "rhs_contract": contract[1], "lhs_batch": batch[0], "rhs_batch": batch[1]}
    return sample("dot_general", f(*lhs), f(*rhs), **attrs)


def _reduce() -> list[Sample]:
    return [
        *(
            item
            for name in ("reduce_sum", "reduce_max", "reduce_min")
            for item in (
                sample(name, f(5, 4, 2), dims=(1,)),
                sample(name, f(5, 4, 1), dims=(0, 2)),
                sample(name, f(5, 2), dims=(0, 1)),
                sample(name, f(5, 0), dims=(1,)),
                sample(name, f(0, 5), dims=(1,)),
                sample(name, f(5), dims=()),
                sample(name, i(5, 2), dims=(0,)),
            )
        ),
        sample("reduce_max", b(5, 2), dims=(0,)),
        sample("reduce_min", b(5, 2), dims=(0,)),
        sample("cumsum", f(5, 4), dim=0),
        sample("cumsum", i(5, 4), dim=1),
        _dot((5, 4), (4, 2), ((1,), (0,)), ((), ())),
        _dot((2, 5, 4), (2, 5, 3), ((0, 1), (0, 1)), ((), ())),
        _dot((2, 5, 4), (3, 4), ((2,), (1,)), ((), ())),
        _dot((2, 4, 5, 3), (2, 4, 1, 3), ((3,), (3,)), ((0, 1), (0, 1))),
        _dot((5, 2, 4), (4, 5, 2), ((2,), (0,)), ((1,), (2,))),
        _dot((5, 2), (5, 2), ((0, 1), (0, 1)), ((), ())),
        _dot((5,), (2,), ((), ()), ((), ())),
        _dot((5, 0), (0, 2), ((1,), (0,)), ((), ())),
        sample("dot_general", i(5, 4), i(4, 2), lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=()),
    ]


def _random() -> list[Sample]:
    return [
        sample("rng_uniform", i(low=0, high=1000), like=t(5, 2, dtype="f32"), id=3, global_shape=(5, 2)),
        sample("rng_uniform", i(low=0, high=1000), like=t(4, 5, 1), id=0, global_shape=(4, 5, 1)),
    ]


SAMPLES: tuple[Sample, ...] = (*_elementwise(), *_structure(), *_reduce(), *_random())
"""Samples of elementwise ops and of the families structure, reshape, reduce and random."""
