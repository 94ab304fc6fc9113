"""Finds the op that makes the first number that is not finite: the step is run op by op, and what is not finite is traced back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniple.base.location import Location
from maniple.ir.program import Op, Program, Value


@dataclass(frozen=True, slots=True)
class Look:
    """What is in a tensor.

    Attributes:
        num_nan: elements that are not a number.
        num_inf: elements that are infinite.
        low: least finite element.
        high: greatest finite element.
    """

    num_nan: int
    num_inf: int
    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """Whether every element is."""
        return not self.num_nan and not self.num_inf

    def __str__(self) -> str:
        """Return it in words."""
        bad = [f"{count} {word}" for count, word in ((self.num_nan, "NaN"), (self.num_inf, "infinite")) if count]
        return " and ".join(bad) or f"finite, {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Where numbers that are not finite begin.

    Attributes:
        op: name of the op that made them, or empty if an input held them.
        made: what it made, or the input.
        operands: what it made them of.
        outputs: results and state of the step that are not finite because of it or after it.
        phase: forward, backward or update.
        location: the user's line and module.
    """

    op: str
    made: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    phase: str = ""
    location: Location | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if not self.op:
            return f"what the step is given is not finite: {self.made}"
        return f"{self.op} ({self.phase}) made numbers that are not finite: {self.made}, of {'; '.join(self.operands) or 'nothing'}"


def find_nonfinite(
    program: Program,
    inputs: Mapping[str, Any],
    evaluate: Callable[[Op, Sequence[Any]], Sequence[Any]],
    look: Callable[[Any], Look],
) -> NonFinite | None:
    """Return the first op whose results are not finite though its operands are, on the way to an output that is not; None if all are.

    If there is no such op, but infinite numbers become NaN (a softmax of nothing but minus infinity), the op that does that.

    Args:
        program: a step on one device.
        inputs: its tensors by name.
        evaluate: computes an op's results of its operands.
        look: looks into a tensor.
    """
    seen = _run(program, inputs, evaluate, look)
    given = {item.value for item in program.inputs}
    ends = [item for item in program.outputs if not seen[item.value].is_finite and item.value not in given]
    wanted = {item.value for item in ends}
    path = []
    for op in reversed(program.ops):
        if not wanted.isdisjoint(op.results):
            path.append(op)
            wanted.update(value for value in op.operands if not seen[value].is_finite)
    outputs = tuple(item.name for item in ends)
    for makes in (_is_origin, _makes_nan):
        for op in reversed(path):
            if makes(op, seen):
                made = next(value for value in op.results if not seen[value].is_finite)
                operands = tuple(_shown(value, seen) for value in op.operands)
                return NonFinite(op.name, _shown(made, seen), operands, outputs, op.phase, op.location)
    bad = next((item for item in program.inputs if item.value in wanted), None)
    return None if bad is None else NonFinite("", f"`{bad.name}`, {bad.value.type}: {seen[bad.value]}", (), outputs)


def _is_origin(op: Op, seen: Mapping[Value, Look]) -> bool:
    return bool(op.operands) and all(seen[value].is_finite for value in op.operands)


def _makes_nan(op: Op, seen: Mapping[Value, Look]) -> bool:
    return any(seen[value].num_nan for value in op.results) and not any(seen[value].num_nan for value in op.operands)


def _shown(value: Value, seen: Mapping[Value, Look]) -> str:
    return f"%{value.name}, {value.type}: {seen[value]}"


def _run(
    program: Program,
    inputs: Mapping[str, Any],
    evaluate: Callable[[Op, Sequence[Any]], Sequence[Any]],
    look: Callable[[Any], Look],
) -> dict[Value, Look]:
    """Compute every value, look at it, and let it go after its last use."""
    last = {value: number for number, op in enumerate(program.ops) for value in op.operands}
    held = {item.value: inputs[item.name] for item in program.inputs}
    seen = {value: look(tensor) for value, tensor in held.items()}
    for number, op in enumerate(program.ops):
        made = dict(zip(op.results, evaluate(op, [held[value] for value in op.operands]), strict=True))
        seen.update((value, look(tensor)) for value, tensor in made.items())
        held.update(made)
        for value in {*op.operands, *op.results}:
            if last.get(value, number) <= number:
                held.pop(value, None)
    return seen
