"""Random programs over the whole op set: ops drawn from the samples of every row of the table, each fed with what earlier ones made."""

from __future__ import annotations

import importlib
import math
import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Input, InputKind, Output, Phase, Program, Value
from maniple.kernels.torch import compile_program
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import CATALOG, Builder

_ORACLE = Path(__file__).parents[1] / "oracle"
_KINDS: tuple[InputKind, ...] = ("parameter", "buffer", "batch", "optimizer")
_PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


def all_samples() -> dict[str, list[Any]]:
    """Return the samples of every row that a program may hold, by op: of all modules of `tests/oracle` that are called samples."""
    sys.path.append(str(_ORACLE))
    found: dict[str, list[Any]] = {}
    for path in sorted(_ORACLE.glob("samples*.py")):
        module = importlib.import_module(path.stem)
        sample_type = importlib.import_module("samples").Sample
        for name, value in vars(module).items():
            if name.endswith("SAMPLES") and isinstance(value, tuple):
                for sample in value:
                    if isinstance(sample, sample_type) and not sample.scalars and sample not in found.setdefault(sample.name, []):
                        found[sample.name].append(sample)
    return found


def free_operands(sample: Any) -> frozenset[int]:
    """Return the operands of a sample that may hold anything in their range: nothing prepares them, or others from them."""
    if sample.prepare is None:
        return frozenset(range(len(sample.operands)))
    plain = replace(sample, prepare=None)
    drawn, other = plain.draw(1), plain.draw(2)
    prepared, found = sample.prepare(drawn), set()
    for at in range(len(drawn)):
        changed = [*drawn[:at], other[at], *drawn[at + 1 :]]
        if all(
            torch.equal(got, want)
            for got, want in zip(sample.prepare(changed), [*prepared[:at], other[at], *prepared[at + 1 :]], strict=True)
        ):
            found.add(at)
    return frozenset(found)


@dataclass
class Maker:
    """A program while it is drawn."""

    rng: random.Random
    builder: Builder = field(default_factory=lambda: Builder(CATALOG, prefix="v"))
    inputs: list[Input] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    made: list[Value] = field(default_factory=list)

    def fresh(self, tensor: Tensor, kind: TensorType) -> Value:
        """Return a new input that holds `tensor`."""
        name = f"input.{len(self.inputs)}"
        value = Value(f"in{len(self.inputs)}", kind)
        self.inputs.append(Input(value, self.rng.choice(_KINDS), name))
        self.tensors[name] = tensor
        return value

    def shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the elements of `value`, cut or padded, as `shape`: dim by dim, which leaves splits of others alone, or all in one row."""
        b, have, need = self.builder, value.type.num_elements, math.prod(shape)
        if have != need and value.type.rank != len(shape) and self.rng.random() < 0.7:
            missing = max(len(shape) - value.type.rank, 0)
            lead = max(value.type.rank - len(shape), 0)
            dims = (*value.type.shape[lead:], *(1,) * missing)
            if lead:
                value = b("reduce_max", value, dims=tuple(range(lead)))
            value = b("reshape", value, like=value.type.with_shape(dims)) if missing else value
        if have != need and value.type.rank != len(shape):
            value = self.resized(b("reshape", value, like=value.type.with_shape((have,))), 0, need)
        elif have != need:
            for dim, size in enumerate(shape):
                value = self.resized(value, dim, size)
        return b("reshape", value, like=value.type.with_shape(shape)) if value.type.shape != shape else value

    def resized(self, value: Value, dim: int, size: int) -> Value:
        """Return `value` with a dim cut or padded to `size`."""
        have = value.type.shape[dim]
        if have > size:
            start = self.rng.randint(0, have - size)
            return self.builder("slice", value, dim=dim, start=start, limit=start + size, stride=1)
        return self.builder("pad", value, dim=dim, low=0, high=size - have, value=0.3) if have < size else value

    def earlier(self) -> Value | None:
        """Return an earlier value as floats, None if there is none."""
        values = [v for v in self.made if v.type.num_elements and v.type.dtype in ("f64", "f32", "i64", "bool")]
        if not values:
            return None
        value = self.rng.choice(values[-5:] if self.rng.random() < 0.7 else values)
        if value.type.dtype == "f64":
            return value
        converted = self.builder("convert", value, like=TensorType("f64", value.type.shape))
        return self.builder("multiply", converted, self.builder.constant(0.3, "f64"))

    def linked(self, operand: Any) -> Value | None:
        """Return an earlier value in the type and range of a sample's operand, None if that cannot be or is not to be."""
        kind = operand.type
        if kind.dtype not in ("f64", "bool") or not kind.num_elements or self.rng.random() < 0.25:
            return None
        value = self.earlier()
        if value is None:
            return None
        b, value = self.builder, self.shaped(value, kind.shape)
        if kind.dtype == "bool":
            return b("compare_gt", value, b.constant(0.123, "f64"))
        if (operand.low, operand.high) != (-2.0, 2.0):
            value = b("multiply", b("logistic", value), b.constant(operand.high - operand.low, "f64"))
            return b("add", value, b.constant(operand.low, "f64"))
        return b("tanh", value) if self.rng.random() < 0.4 else value

    def add(self, sample: Any, line: int) -> None:
        """Append the op of a sample."""
        self.builder.location = Location("random.py", line)
        drawn = sample.draw(self.rng.randrange(2**31))
        operands = []
        for number, (operand, tensor) in enumerate(zip(sample.operands, drawn, strict=True)):
            found = self.linked(operand) if number in free_operands(sample) else None
            operands.append(self.fresh(tensor, operand.type) if found is None else found)
        before = len(self.builder.ops)
        self.builder.emit(sample.name, operands, sample.like, **sample.attrs)
        self.made += [value for op in self.builder.ops[before:] for value in op.results]


def sampled_program(seed: int, num_ops: int, samples: dict[str, list[Any]]) -> tuple[Program, dict[str, Tensor]]:
    """Return a program of `num_ops` sampled ops and what adapts them to one another, with tensors for its inputs."""
    rng = random.Random(seed)
    maker = Maker(rng)
    ends = sorted(rng.randint(0, num_ops) for _ in range(2))
    for line in range(num_ops):
        maker.builder.phase = _PHASES[sum(line >= end for end in ends)]
        maker.add(rng.choice(samples[rng.choice(sorted(samples))]), line)
    outputs = [Output(value, f"result.{value.name}") for value in maker.made if rng.random() < 0.5 or value is maker.made[-1]]
    for item in maker.inputs:  # new state
        fitting = [value for value in maker.made if value.type == item.value.type]
        if item.kind != "batch" and fitting and rng.random() < 0.5:
            outputs.append(Output(rng.choice(fitting), item.name))
    gradients = []
    for item in maker.inputs:
        fitting = [op.results[0] for op in maker.builder.ops if op.phase == "backward" and op.results[0].type == item.value.type]
        if item.kind == "parameter" and fitting:
            gradients.append((item.name, rng.choice(fitting)))
    return Program(tuple(maker.inputs), tuple(maker.builder.ops), tuple(outputs), tuple(gradients)), maker.tensors


def random_layout(rng: random.Random, kind: TensorType, mesh: Mesh, *, may_be_pending: bool = False) -> Sharding:
    """Return a layout that a user might write for a tensor of type `kind`."""
    layout = Sharding.replicated(kind.rank)
    for axis in rng.sample(mesh.names, len(mesh.names)):
        if may_be_pending and kind.dtype == "f64" and rng.random() < 0.1:
            layout = layout.with_pending(axis, "sum")
        elif kind.rank and rng.random() < 0.75:
            dim = rng.randrange(kind.rank)
            parts, n = layout.dims[dim], kind.shape[dim]
            choices = [(b, u) for b in (1, 2, 3) for u in (1, 2) if n and n % (b * u) == 0] or [(1, 1)]
            blocks, unit = (parts[0].blocks, parts[0].unit) if parts else rng.choice([(1, 1), (1, 1), *choices])
            layout = layout.split(dim, AxisPart(axis, blocks, unit))
    return layout


def evaluate(program: Program, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of a program on one device."""
    results = compile_program(program)(*(tensors[item.name].clone() for item in program.inputs))
    return {item.name: result for item, result in zip(program.outputs, results, strict=True)}


def unequal(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> list[str]:
    """Return the names of the outputs that differ by more than `tolerance` of their largest finite element."""
    found = []
    for name, expected in want.items():
        if not expected.is_floating_point():
            if not torch.equal(got[name], expected):
                found.append(name)
            continue
        finite = expected[expected.isfinite()].abs()
        scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
        bound = tolerance if expected.dtype == torch.float64 else 1e-4
        if not torch.allclose(got[name], expected, rtol=bound, atol=bound * scale, equal_nan=True):
            found.append(name)
    return found
