"""Values, ops and programs.

A `Program` is a list of ops in an order in which every operand is made before it is used. Each value is made once. State is
explicit: a parameter comes in as an `Input` and leaves as an `Output` of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding

Phase = Literal["forward", "backward", "update"]
"""Part of the training step that an op belongs to."""

InputKind = Literal["parameter", "buffer", "optimizer", "hyperparameter", "batch", "rng", "argument"]
"""What an input of a program is; `argument` is for regions and fragments."""

STATE_KINDS: frozenset[InputKind] = frozenset({"parameter", "buffer", "optimizer"})
"""Inputs that leave the step as outputs of the same name."""

Attr = None | bool | int | float | str | tuple["Attr", ...]
"""What an attribute may hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value; compared by identity.

    Attributes:
        name: unique in its program, printed as `%name`.
        type: global type.
        sharding: layout on the mesh, None before sharding.
    """

    name: str
    type: TensorType
    sharding: Sharding | None = None

    @property
    def layout(self) -> Sharding:
        """The sharding; replicated where nothing is said."""
        return self.sharding or Sharding.replicated(self.type.rank)

    def local_bytes(self, mesh: Mesh) -> int:
        """Return the bytes that the first device of `mesh` holds."""
        return self.type.with_shape(self.layout.local_shape(self.type.shape, mesh)).num_bytes

    def __repr__(self) -> str:
        """Return name, type and layout."""
        return f"%{self.name}: {self.type}{self.sharding or ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation of the op table.

    Attributes:
        attrs: pairs sorted by name.
        regions: programs that the op runs (loops, branches, calls).
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    regions: tuple[Program, ...] = ()
    phase: Phase = "forward"
    location: Location | None = None

    def attr(self, name: str) -> Attr:
        """Return attribute `name`.

        Raises:
            KeyError: if the op has no such attribute.
        """
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def ints(self, name: str) -> tuple[int, ...]:
        """Return attribute `name`, which holds integers."""
        value = self.attr(name)
        assert isinstance(value, tuple)
        return tuple(int(item) for item in value)  # type: ignore[arg-type]  # attributes of this name hold integers

    def integer(self, name: str) -> int:
        """Return attribute `name`, which holds one integer."""
        value = self.attr(name)
        assert isinstance(value, int)
        return value

    def __repr__(self) -> str:
        """Return the op as one line of text."""
        from maniple.ir.text import print_op  # the printer imports this module

        return print_op(self)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A value that comes from outside, what it is, and the user's name for it."""

    value: Value
    kind: InputKind
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A value that leaves: new state under its input's name, or `result.<path>`."""

    value: Value
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A straight list of ops.

    Attributes:
        gradients: for each trained parameter's name the value of its accumulated gradient, before clipping.
    """

    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]
    gradients: tuple[tuple[str, Value], ...] = field(default=())

    def values(self) -> Iterator[Value]:
        """Yield every value: inputs, then results in program order."""
        for item in self.inputs:
            yield item.value
        for op in self.ops:
            yield from op.results

    def producers(self) -> dict[Value, Op]:
        """Return the op that makes each value; inputs have none."""
        return {result: op for op in self.ops for result in op.results}

    def uses(self) -> dict[Value, list[Op]]:
        """Return the ops that read each value, in program order."""
        uses: dict[Value, list[Op]] = {}
        for op in self.ops:
            for operand in dict.fromkeys(op.operands):
                uses.setdefault(operand, []).append(op)
        return uses

    def input_named(self, name: str) -> Input:
        """Return the input called `name`.

        Raises:
            KeyError: if there is none.
        """
        for item in self.inputs:
            if item.name == name:
                return item
        raise KeyError(name)


def sorted_attrs(attrs: dict[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    """Return `attrs` in the canonical order."""
    return tuple(sorted(attrs.items()))
