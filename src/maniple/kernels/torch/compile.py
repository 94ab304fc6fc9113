"""From a local program to a Python function of PyTorch calls."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from maniple.base.errors import LoweringError
from maniple.ir.program import Op, Program, Value
from maniple.kernels.torch.elementwise import ELEMENTWISE
from maniple.kernels.torch.emit import Emit, dtype, full, literal, scalar
from maniple.kernels.torch.fuse import adam_state, fused
from maniple.kernels.torch.indexing import INDEXING, INDEXING_FUNCTIONS
from maniple.kernels.torch.matrix import MATRIX, MATRIX_FUNCTIONS
from maniple.kernels.torch.nn import NN, NN_FUNCTIONS
from maniple.kernels.torch.random import RANDOM, RANDOM_FUNCTIONS
from maniple.kernels.torch.special import SPECIAL
from maniple.kernels.torch.structure import STRUCTURE
from maniple.kernels.torch.tiles import Group, grouped
from maniple.ops.localize import Destination, LocalProgram

KERNELS: Final[Mapping[str, Emit]] = {**ELEMENTWISE, **STRUCTURE, **RANDOM, **NN, **INDEXING, **SPECIAL, **MATRIX}
"""How each op is written."""

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {**RANDOM_FUNCTIONS, **NN_FUNCTIONS, **INDEXING_FUNCTIONS, **MATRIX_FUNCTIONS}
"""What kernels may call by name, besides PyTorch."""


VIEWS: Final = frozenset({
    "broadcast_in_dim", "reshape", "transpose", "slice", "local_slice", "keep_at_zero", "convert", "reduce_sum", "reduce_max", "reduce_min",
})  # fmt: skip
"""Ops whose result may be a view of their first operand."""


@dataclass(frozen=True, slots=True)
class Body:
    """A compiled program.

    Attributes:
        source: Python text of the function, to read.
        function: that function.
        views: for each output, the numbers of the inputs of which it may be a view.
    """

    source: str
    function: Callable[..., tuple[torch.Tensor, ...]]
    views: tuple[frozenset[int], ...]

    def __call__(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """Run the program without gradients.

        Args:
            arguments: one for each input of the program, in order: tensors, and Python ints for offsets, which are not changed; then one
                for each destination, which are.

        Returns:
            One tensor for each output of the program. It may be an argument, a view of one or of another output, or have strides of 0:
            whoever stores it copies it.
        """
        if not torch.is_grad_enabled():  # on the threads of an engine; entering no_grad takes longer than a small op
            return self.function(*arguments)
        with torch.no_grad():
            return self.function(*arguments)


_NONE: Final = frozenset[int]()


class _Writer:
    def __init__(self, program: Program, destinations: Sequence[Destination], tile: bool) -> None:  # noqa: FBT001  # internal
        self.program = program
        self.constants = {op.results[0]: op for op in program.ops if op.name == "constant"}
        self.names: dict[Value, str] = {}
        self.numbers = itertools.count()
        ops = fused(program.ops, {item.value for item in program.outputs})
        self.items = list(grouped([op for op in ops if op.name != "constant"])) if tile else [op for op in ops if op.name != "constant"]
        self.last_use = {value: item for item in self.items for value in _operands(item)}
        self.order = {id(item): at for at, item in enumerate(self.items)}
        self.kept = {item.value for item in program.outputs}
        self.roots = _roots(program)
        self.destinations = {f"out{given.output}": given for given in destinations}
        self.written: set[str] = set()  # destinations that hold their output already

    def name(self, value: Value) -> str:
        """Return the identifier of `value`: its name, with a number so that no two are one."""
        if value not in self.names:
            self.names[value] = f"v{next(self.numbers)}_" + re.sub(r"[^A-Za-z0-9_]", "_", value.name)
        return self.names[value]

    def operand(self, value: Value, *, inline: bool) -> str:
        constant = self.constants.get(value)
        if constant is None:
            return self.name(value)
        number = scalar(constant.attr("value"), value.type.dtype)
        return number if inline else full(number, value.type)

    def assignment(self, op: Op) -> str:
        if op.name not in KERNELS:
            raise LoweringError(f"there is no PyTorch kernel for {op.name}: {op!r}", where=op.location)
        operands = [self.operand(value, inline=op.name in ELEMENTWISE or op.name in SPECIAL or op.name == "adam") for value in op.operands]
        if op.name == "adam":
            operands += [self.target(value, op, own) or "None" for value, own in zip(op.results, adam_state(op), strict=True)]
        return f"{', '.join(self.name(result) for result in op.results)} = {KERNELS[op.name](op, operands)}"

    def lines(self, item: Op | Group) -> Iterator[str]:
        if isinstance(item, Group):
            yield from self.loop(item)
            made = {value for op in item.ops for value in op.results} - set(self.names)  # names of those that live on
        else:
            yield self.assignment(item)
            made = {result for result in item.results if result not in self.last_use}
        dead = [value for value in dict.fromkeys(_operands(item)) if self.last_use[value] is item and value not in self.constants]
        dead = [value for value in (*dead, *made) if value not in self.kept and value in self.names]
        if dead:
            yield f"del {', '.join(map(self.name, dead))}"

    def loop(self, group: Group) -> Iterator[str]:
        """Yield the loop that runs a group; afterwards only the results that are used outside of it have names."""
        made = [value for op in group.ops for value in op.results]
        stored = [value for value in made if value in self.kept or self.last_use.get(value, group) is not group]
        cut_up = [value for value in group.operands if value not in self.constants]
        whole = {value: self.name(value) for value in (*cut_up, *stored)}
        for value in stored:
            target = self.target(value, group)
            yield f"{whole[value]} = {target or f'torch.empty({literal(group.shape)}, dtype={dtype(value.type.dtype)}, device=device)'}"
        cut = {value: f"t{number}" for number, value in enumerate(whole)}
        split = ", ".join(f"{name}.split({group.rows}, {group.dim})" for name in whole.values())
        yield f"for {', '.join(cut.values())}, in zip({split}):"
        outside, self.names = self.names, {**self.names, **{value: cut[value] for value in cut_up}}
        for value in stored:
            del self.names[value]
        last = {value: op for op in group.ops for value in op.operands}
        for op in group.ops:
            yield "    " + self.assignment(op)
            dead = [v for v in dict.fromkeys(op.operands) if last[v] is op and v in made and v not in stored and v not in self.constants]
            if dead:
                yield f"    del {', '.join(map(self.name, dead))}"
        for value in stored:
            yield f"    {cut[value]}.copy_({self.name(value)})"
        yield f"del {', '.join(cut.values())}"  # slices keep whole tensors alive
        self.names = outside

    def target(self, value: Value, group: Op | Group, own: Value | None = None) -> str | None:
        """Return the destination that an item may write `value` to; None if it has none, or others still read what lies there.

        Args:
            value: a result of the item.
            group: the item.
            own: the one operand that may lie there, if not any may.
        """
        for name, given in self.destinations.items():
            if self.program.outputs[given.output].value is value and all(
                self.is_last(number, group) and own in (None, self.program.inputs[number].value) for number in given.inputs
            ):
                self.written.add(name)
                return name
        return None

    def is_last(self, number: int, group: Op | Group) -> bool:
        """Return whether nothing but earlier items and `group`, element by element, looks at input `number`."""
        source = self.program.inputs[number].value
        seen = [value for value, roots in self.roots.items() if number in roots]
        if any(value in self.kept for value in seen) or any(value in group.operands for value in seen if value is not source):
            return False
        at = self.order[id(group)]
        return all(self.order[id(self.last_use[value])] <= at for value in seen if value in self.last_use)

    def source(self) -> str:
        inputs = ", ".join([*(self.name(item.value) for item in self.program.inputs), *self.destinations])
        lines = [line for item in self.items for line in self.lines(item)]
        outputs = [self.operand(item.value, inline=False) for item in self.program.outputs]
        late = {name: given for name, given in self.destinations.items() if name not in self.written}
        covered = {number for given in late.values() for number in given.inputs}
        risky = [value for value in dict.fromkeys(item.value for item in self.program.outputs) if self.roots.get(value, _NONE) & covered]
        for value in risky:  # what is about to be written over
            lines.append(f"{self.name(value)} = {self.name(value)}.clone()")
            self.roots[value] = _NONE
        for name, given in late.items():
            lines.append(f"{name}.copy_({outputs[given.output]})")
        for name, given in self.destinations.items():
            outputs[given.output] = name
        lines.append(f"return ({', '.join(outputs)},)" if outputs else "return ()")
        return "\n    ".join([f"def body({inputs}):", *lines]) + "\n"


def _operands(item: Op | Group) -> tuple[Value, ...]:
    """Return what an op reads, or the ops of a group, those of rank 0 included."""
    return item.operands if isinstance(item, Op) else tuple(dict.fromkeys(value for op in item.ops for value in op.operands))


def _roots(program: Program) -> dict[Value, frozenset[int]]:
    """Return for each value the numbers of the inputs of which it is, or may be, a view."""
    roots = {item.value: frozenset({number}) for number, item in enumerate(program.inputs)}
    for op in program.ops:
        if op.name in VIEWS and op.operands:
            roots[op.results[0]] = roots.get(op.operands[0], frozenset())
    return roots


def compile_program(program: LocalProgram | Program, destinations: Sequence[Destination] = (), *, device: str = "cpu") -> Body:
    """Return a function that computes `program` by PyTorch calls.

    Args:
        program: ops with local types; a program that is not sharded at all is its own local form.
        destinations: outputs that are written into memory given.
        device: where tensors are made that no operand places, e.g. `cuda:0`.

    Raises:
        LoweringError: if an op has no kernel.
    """
    plain = program.program if isinstance(program, LocalProgram) else program
    writer = _Writer(plain, destinations, device == "cpu")
    source = writer.source()
    namespace: dict[str, Any] = {
        **FUNCTIONS, "torch": torch, "device": torch.device(device), "inf": math.inf, "nan": math.nan,
    }  # fmt: skip
    exec(compile(source, "<maniple body>", "exec"), namespace)
    views = tuple(writer.roots.get(item.value, frozenset()) for item in plain.outputs)
    return Body(source, namespace["body"], views)
