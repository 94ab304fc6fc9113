"""From a local program to a Python function of PyTorch calls."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from maniple.base.errors import LoweringError
from maniple.ir.program import Op, Program, Value
from maniple.kernels.torch.elementwise import ELEMENTWISE
from maniple.kernels.torch.emit import Emit, full, scalar
from maniple.kernels.torch.nn import NN, NN_FUNCTIONS
from maniple.kernels.torch.random import RANDOM, RANDOM_FUNCTIONS
from maniple.kernels.torch.structure import STRUCTURE
from maniple.ops.localize import LocalProgram

KERNELS: Final[Mapping[str, Emit]] = {**ELEMENTWISE, **STRUCTURE, **RANDOM, **NN}
"""How each op is written."""

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {**RANDOM_FUNCTIONS, **NN_FUNCTIONS}
"""What kernels may call by name, besides PyTorch."""


@dataclass(frozen=True, slots=True)
class Body:
    """A compiled program.

    Attributes:
        source: Python text of the function, to read.
        function: that function.
    """

    source: str
    function: Callable[..., tuple[torch.Tensor, ...]]

    def __call__(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """Run the program without gradients.

        Args:
            arguments: one for each input of the program, in order: tensors, and Python ints for offsets. They are not changed.

        Returns:
            One tensor for each output of the program. It may be an argument, a view of one or of another output, or have strides of 0:
            whoever stores it copies it.
        """
        if not torch.is_grad_enabled():  # on the threads of an engine; entering no_grad takes longer than a small op
            return self.function(*arguments)
        with torch.no_grad():
            return self.function(*arguments)


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.constants = {op.results[0]: op for op in program.ops if op.name == "constant"}
        self.names: dict[Value, str] = {}
        self.last_use = {value: op for op in program.ops for value in op.operands}
        self.kept = {item.value for item in program.outputs}

    def name(self, value: Value) -> str:
        """Return the identifier of `value`: its name, with a number so that no two are one."""
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}_" + re.sub(r"[^A-Za-z0-9_]", "_", value.name)
        return self.names[value]

    def operand(self, value: Value, *, inline: bool) -> str:
        constant = self.constants.get(value)
        if constant is None:
            return self.name(value)
        number = scalar(constant.attr("value"), value.type.dtype)
        return number if inline else full(number, value.type)

    def op(self, op: Op) -> Iterator[str]:
        if op.name not in KERNELS:
            raise LoweringError(f"there is no PyTorch kernel for {op.name}: {op!r}", where=op.location)
        operands = [self.operand(value, inline=op.name in ELEMENTWISE) for value in op.operands]
        expression = KERNELS[op.name](op, operands)
        yield f"{', '.join(self.name(result) for result in op.results)} = {expression}"
        dead = [value for value in dict.fromkeys(op.operands) if self.last_use[value] is op and value not in self.constants]
        dead += [result for result in op.results if result not in self.last_use]
        dead = [value for value in dead if value not in self.kept]
        if dead:
            yield f"del {', '.join(map(self.name, dead))}"

    def source(self) -> str:
        inputs = ", ".join(self.name(item.value) for item in self.program.inputs)
        lines = [line for op in self.program.ops if op.name != "constant" for line in self.op(op)]
        outputs = "".join(self.operand(item.value, inline=False) + ", " for item in self.program.outputs)
        lines.append(f"return ({outputs.rstrip()})" if outputs else "return ()")
        return "\n    ".join([f"def body({inputs}):", *lines]) + "\n"


def compile_program(program: LocalProgram | Program, device: str = "cpu") -> Body:
    """Return a function that computes `program` by PyTorch calls.

    Args:
        program: ops with local types; a program that is not sharded at all is its own local form.
        device: where tensors are made that no operand places, e.g. `cuda:0`.

    Raises:
        LoweringError: if an op has no kernel.
    """
    source = _Writer(program.program if isinstance(program, LocalProgram) else program).source()
    namespace: dict[str, Any] = {
        **FUNCTIONS, "torch": torch, "device": torch.device(device), "inf": math.inf, "nan": math.nan,
    }  # fmt: skip
    exec(compile(source, "<maniple body>", "exec"), namespace)
    return Body(source, namespace["body"])
