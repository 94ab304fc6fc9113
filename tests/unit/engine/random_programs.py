"""Random sharded programs, and what they compute on one device."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Attr, Input, InputKind, Op, Output, Phase, Program, Value, sorted_attrs
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops.collectives import COMMUNICATING, LOCAL

SIZES = (1, 2, 3, 4, 5, 6, 8)
KINDS: tuple[InputKind, ...] = ("parameter", "optimizer", "buffer", "batch")
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


@dataclass
class Maker:
    """Adds random ops whose layouts are legal."""

    mesh: Mesh
    rng: random.Random
    inputs: list[Input] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    phase: Phase = "forward"

    def name(self) -> str:
        return f"v{len(self.inputs) + len(self.ops)}"

    def fresh_input(self, shape: tuple[int, ...], sharding: Sharding) -> Value:
        value = Value(self.name(), TensorType("f64", shape), sharding)
        self.inputs.append(Input(value, self.rng.choice(KINDS), f"input.{value.name}"))
        self.values.append(value)
        return value

    def emit(self, name: str, operands: tuple[Value, ...], shape: tuple[int, ...], sharding: Sharding, **attrs: Attr) -> Value:
        result = Value(self.name(), TensorType("f64", shape), sharding)
        where = Location("train.py", len(self.ops) + 1)
        self.ops.append(Op(name, operands, (result,), sorted_attrs(attrs), phase=self.phase, location=where))
        self.values.append(result)
        return result

    def pick(self) -> Value:
        return self.rng.choice(self.values[-8:] if self.rng.random() < 0.8 else self.values)

    def part(self, axis: str, n: int) -> AxisPart:
        """Return a random way to split `n` along `axis`."""
        ways = [AxisPart(axis)] * 3
        ways += [AxisPart(axis, blocks=b, unit=u) for b in (1, 2, 3) for u in (1, 2) if n and n % (b * u) == 0]
        return self.rng.choice(ways)

    def split(self, sharding: Sharding, shape: tuple[int, ...], axis: str) -> Sharding | None:
        """Return `sharding` with `axis` splitting a random dim, None for rank 0."""
        if not shape:
            return None
        dim = self.rng.randrange(len(shape))
        parts = sharding.dims[dim]
        part = AxisPart(axis, parts[0].blocks, parts[0].unit) if parts else self.part(axis, shape[dim])
        return sharding.split(dim, part)

    def random_sharding(self, shape: tuple[int, ...]) -> Sharding:
        sharding = Sharding.replicated(len(shape))
        for axis in self.rng.sample(self.mesh.names, self.rng.randint(0, len(self.mesh.names))):
            sharding = self.split(sharding, shape, axis) or sharding
        return sharding

    def change(self, x: Value) -> Value | None:  # noqa: PLR0911  # one return for each kind of change
        """Change the layout of `x` along a random axis."""
        axis = self.rng.choice(self.mesh.names)
        assert x.sharding is not None
        here, bare, shape = x.sharding.along(axis), x.sharding.without(axis), x.type.shape
        split = self.split(bare, shape, axis)
        if here is None:
            if self.rng.random() < 0.4 and all(kind == "sum" for _, kind in x.sharding.pending):
                return self.emit("to_pending", (x,), shape, bare.with_pending(axis, "sum"), axis=axis)
            return self.emit("shard_slice", (x,), shape, split, axis=axis) if split else None
        if isinstance(here, str):
            if split and self.rng.random() < 0.5:
                return self.emit("reduce_scatter", (x,), shape, split, axis=axis)
            return self.emit("all_reduce", (x,), shape, bare, axis=axis)
        if x.sharding.dims[here[0]][-1].axis != axis:
            return None
        if split and self.rng.random() < 0.5:
            return self.emit("all_to_all", (x,), shape, split, axis=axis)
        return self.emit("all_gather", (x,), shape, bare, axis=axis)

    def elementwise(self, x: Value) -> Value | None:  # noqa: PLR0911  # one return for each op
        assert x.sharding is not None
        shape, sharding = x.type.shape, x.sharding
        sums = all(kind == "sum" for _, kind in sharding.pending)
        name = self.rng.choice(("negate", "tanh", "add", "multiply", "scale", "shift"))
        if name == "scale" and sums:
            two = self.emit("constant", (), (), Sharding(), value=1.5)
            return self.emit("multiply", (x, two), shape, sharding)
        if name == "negate" and sums:
            return self.emit("negate", (x,), shape, sharding)
        if name in ("add", "multiply"):
            plain = [v for v in self.values if v.type == x.type and v.sharding == sharding]
            y = self.rng.choice(plain)
            if name == "add" and sums:
                return self.emit("add", (x, y), shape, sharding)
            if name == "multiply" and sums and sharding.pending:
                y = self.fresh_input(shape, Sharding(sharding.dims))
            return self.emit("multiply", (x, y), shape, sharding) if sums else None
        if sharding.pending:
            return None
        if name == "shift":
            one = self.emit("constant", (), (), Sharding(), value=0.25)
            return self.emit("add", (x, one), shape, sharding)
        return self.emit("tanh", (x,), shape, sharding)

    def dot(self, x: Value) -> Value | None:
        """Multiply a matrix by a new one whose rows lie as the matrix's columns do."""
        assert x.sharding is not None
        if x.type.rank != 2 or any(kind != "sum" for _, kind in x.sharding.pending):
            return None
        n = self.rng.choice(SIZES)
        free = [axis for axis in self.mesh.names if axis not in x.sharding.axes]
        columns = (self.part(free[0], n),) if free and self.rng.random() < 0.5 else ()
        y = self.fresh_input((x.type.shape[1], n), Sharding((x.sharding.dims[1], columns)))
        result = Sharding((x.sharding.dims[0], columns), x.sharding.pending)
        for part in x.sharding.dims[1]:
            result = result.with_pending(part.axis, "sum")
        attrs: dict[str, Attr] = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}
        return self.emit("dot_general", (x, y), (x.type.shape[0], n), result, **attrs)

    def reduce(self, x: Value) -> Value | None:
        assert x.sharding is not None
        if not x.type.rank:
            return None
        pending = {kind for _, kind in x.sharding.pending}
        kind = pending.pop() if pending else self.rng.choice(("sum", "sum", "max", "min"))
        if pending:
            return None
        dim = self.rng.randrange(x.type.rank)
        result = Sharding(tuple(parts for d, parts in enumerate(x.sharding.dims) if d != dim), x.sharding.pending)
        for part in x.sharding.dims[dim]:
            result = result.with_pending(part.axis, kind)
        shape = tuple(n for d, n in enumerate(x.type.shape) if d != dim)
        return self.emit(f"reduce_{kind}", (x,), shape, result, dims=(dim,))

    def new_state(self, values: list[Value]) -> dict[Value, str]:
        """Let some of `values` be the new values of inputs of their type: return the inputs' names."""
        free = [item for item in self.inputs if item.kind != "batch"]
        named = {}
        for value in values:
            fits = [item for item in free if item.value.type == value.type]
            if fits and self.rng.random() < 0.7:
                named[value] = self.rng.choice(fits).name
                free = [item for item in free if item.name != named[value]]
        return named


def random_program(seed: int, mesh: Mesh, num_ops: int, *, new_state: bool = True) -> Program:
    """Return a sharded program of about `num_ops` ops over `mesh`."""
    maker = Maker(mesh, random.Random(seed))
    for _ in range(maker.rng.randint(1, 3)):
        shape = tuple(maker.rng.choice(SIZES) for _ in range(maker.rng.choice((1, 2, 2, 2, 3))))
        maker.fresh_input(shape, maker.random_sharding(shape))
    steps = [maker.change, maker.change, maker.change, maker.elementwise, maker.elementwise, maker.dot, maker.reduce]
    for number in range(num_ops):
        maker.phase = PHASES[3 * number // num_ops]
        maker.rng.choice(steps)(maker.pick())
    chosen = maker.rng.sample(maker.values, min(len(maker.values), 4))
    outputs = dict.fromkeys((*chosen, maker.values[-1]))
    named = maker.new_state(list(outputs)) if new_state else {}
    return Program(tuple(maker.inputs), tuple(maker.ops), tuple(Output(v, named.get(v, f"result.{v.name}")) for v in outputs))


def random_inputs(program: Program, seed: int) -> dict[str, torch.Tensor]:
    """Return normal tensors for the inputs."""
    generator = torch.Generator().manual_seed(seed)
    return {item.name: torch.randn(item.value.type.shape, dtype=torch.float64, generator=generator) for item in program.inputs}


def evaluate(program: Program, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the program computes on one device, its layouts ignored."""
    known = {item.value: inputs[item.name] for item in program.inputs}
    for op in program.ops:
        x, *rest = (known[value] for value in op.operands) if op.operands else (torch.empty(()),)
        known[op.results[0]] = _apply(op, x, rest)
    return {item.name: known[item.value] for item in program.outputs}


def _apply(op: Op, x: torch.Tensor, rest: list[torch.Tensor]) -> torch.Tensor:
    if op.name in COMMUNICATING | LOCAL:
        return x
    if op.name == "constant":
        return torch.tensor(op.attr("value"), dtype=torch.float64)
    if op.name.startswith("reduce_"):
        function = {"reduce_sum": torch.sum, "reduce_max": torch.amax, "reduce_min": torch.amin}[op.name]
        return function(x, dim=op.ints("dims"))
    binary = {"add": torch.add, "multiply": torch.mul, "dot_general": torch.matmul}
    return binary[op.name](x, rest[0]) if rest else {"negate": torch.neg, "tanh": torch.tanh}[op.name](x)
