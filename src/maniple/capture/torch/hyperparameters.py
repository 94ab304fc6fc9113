"""Numbers of the parameter groups that may change from step to step: lr, betas and momentum are inputs of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.optim import Optimizer
from torch.utils._sympy.printers import PythonPrinter

from maniple.capture.torch.state import Bound

LIFTED: Final = ("lr", "betas", "momentum")
"""Keys of a parameter group that become inputs; every other key is a guard."""


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """One number of a parameter group.

    Attributes:
        name: of the program's input, e.g. `betas.0.1`.
        at: index into the group's tuple, None if the entry is the number.
    """

    name: str
    optimizer: Optimizer
    group: int
    key: str
    at: int | None = None

    def get(self) -> float:
        """Return what the number is now."""
        value = self.optimizer.param_groups[self.group][self.key]
        return float(value if self.at is None else value[self.at])


@dataclass(frozen=True, slots=True, eq=False)
class NumberGuard:
    """Something that the traced step found true of hyperparameters, e.g. that a momentum is not 0.

    Attributes:
        text: the condition, in the inputs' names.
        line: where it was asked.
    """

    text: str
    line: str
    holds: Callable[[Mapping[str, float]], bool]


def find_numbers(bound: Bound) -> Iterator[Number]:
    """Yield the numbers that become inputs; their names have the optimizer's as prefix if there are several."""
    several = len(bound.optimizers) > 1
    for prefix, optimizer in bound.optimizers:
        start = f"{prefix}." if several else ""
        for group, entries in enumerate(optimizer.param_groups):
            for key in LIFTED:
                value = entries.get(key)
                if _is_number(value):
                    yield Number(f"{start}{key}.{group}", optimizer, group, key)
                elif isinstance(value, tuple | list) and all(map(_is_number, value)):
                    for at in range(len(value)):
                        yield Number(f"{start}{key}.{group}.{at}", optimizer, group, key, at)


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


class Symbols:
    """Symbolic floats for numbers; questions asked of them are answered by today's values and written down."""

    def __init__(self, env: ShapeEnv) -> None:
        """Make symbols in `env`."""
        self.env = env
        self.names: dict[sympy.Symbol, str] = {}

    def make(self, number: Number) -> torch.SymFloat:
        """Return a symbolic float that has the value of `number` as hint."""
        source, value = ConstantSource(number.name), number.get()
        symbol = self.env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        self.names[symbol] = number.name
        made: Any = self.env.create_symfloatnode(symbol, hint=value, source=source)
        return made  # type: ignore[no-any-return]  # torch leaves it untyped

    def guards(self) -> tuple[NumberGuard, ...]:
        """Return what was asked, without what is always true."""
        found = {}
        for guard in self.env.guards:
            free = guard.expr.free_symbols
            if free and free <= self.names.keys():
                made = self._guard(guard.expr, str(guard.sloc.framework_loc))
                found[made.text] = made
        return tuple(found.values())

    def _guard(self, expr: sympy.Basic, line: str) -> NumberGuard:
        symbols = sorted(expr.free_symbols, key=str)
        places = {symbol: sympy.Symbol(f"v{at}") for at, symbol in enumerate(symbols)}
        code = compile(PythonPrinter().doprint(expr.xreplace(places)), "<guard>", "eval")
        names = {f"v{at}": self.names[symbol] for at, symbol in enumerate(symbols)}

        def holds(values: Mapping[str, float]) -> bool:
            return bool(eval(code, {"math": math}, {place: values[name] for place, name in names.items()}))  # noqa: S307  # torch printed it

        text = str(expr.xreplace({symbol: sympy.Symbol(self.names[symbol]) for symbol in symbols}))
        return NumberGuard(text, line, holds)
