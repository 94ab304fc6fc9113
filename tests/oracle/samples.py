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
