"""Cuts a sharded program into segments: ops of one phase between two communications.

Greedy, in program order. A collective that needs the open segment closes it. One that does not is issued before it, so that it stays open:
the updates of all parameters become one segment after all reductions of gradients. An all-gather, which grows memory, is issued as late
as possible: right before the segment that needs it. The update at the end of the step, in which parameters do not depend on one another,
is put in order of the number of communications before each op.
"""

from __future__ import annotations

from dataclasses import dataclass

from maniple.base.errors import LoweringError
from maniple.ir.program import Op, Phase, Program, Value
from maniple.lower.memory import Realisation
from maniple.ops import definition
from maniple.ops.collectives import COMMUNICATING


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Ops that run as one task body."""

    ops: tuple[Op, ...]
    phase: Phase


Item = Segment | Op
"""A segment, or a collective that moves data."""


def split(program: Program, realisation: Realisation) -> list[Item]:
    """Return the segments and collectives of `program`, in the order in which they are issued.

    Rank-0 constants and the like are repeated in each segment that uses them.

    Raises:
        LoweringError: if an op runs regions, which have no lowering to tasks.
    """
    splitter = _Splitter(program, realisation)
    for op in _update_by_level(program.ops, realisation):
        splitter.add(op)
    return splitter.finish()


class _Splitter:
    def __init__(self, program: Program, realisation: Realisation) -> None:
        self.realisation = realisation
        self.escaping = _escaping(program, realisation)
        self.moved = {op.operands[0] for op in realisation.peers}
        self.items: list[Item] = []
        self.open: list[Op] = []
        self.made: set[Value] = set()  # by the open segment
        self.phase: Phase = "forward"
        self.late: dict[Value, Op] = {}  # gathers not issued yet, by result
        self.cheap: dict[Value, Op] = {}

    def add(self, op: Op) -> None:
        if op.regions:
            raise LoweringError(f"{op.name} runs regions, which cannot be lowered to tasks", where=op.location, hint="inline them first")
        if op.name in COMMUNICATING:
            if op in self.realisation.peers:
                self.collective(op)
        elif self.is_part(op):
            self.realisation.read_in_part(op)
        elif self.is_cheap(op):
            self.cheap.update((value, op) for value in op.results)
        else:
            self.compute(op)

    def is_part(self, op: Op) -> bool:
        """Return whether `op` takes a slice of what lies in a buffer already, so that whoever reads the slice can read that part."""
        if op.name != "shard_slice" or op.results[0] in self.moved:
            return False
        return self.base(op.operands[0]) not in self.made and op.operands[0] not in self.cheap

    def is_cheap(self, op: Op) -> bool:
        if any(value in self.escaping for value in op.results):
            return False
        small = all(value.type.rank == 0 for value in op.results)
        return all(value in self.cheap for value in op.operands) and (small or definition(op.name).is_cheap)

    def compute(self, op: Op) -> None:
        bases = [self.base(value) for value in op.operands]
        moved = any(base is not value and base in self.made for base, value in zip(bases, op.operands, strict=True))
        if moved or op.phase != self.phase or any(base in self.late for base in bases):
            self.close()
        self.issue(bases)
        self.phase = op.phase
        self.pull(op.operands)
        self.append(op)

    def collective(self, op: Op) -> None:
        base = self.base(op.operands[0])
        if op.name == "all_gather":
            self.late[op.results[0]] = op
            return
        if base in self.made or base in self.late:
            self.close()
        self.issue([base])
        self.items.append(op)

    def base(self, value: Value) -> Value:
        return self.realisation.homes[value].value

    def pull(self, values: tuple[Value, ...]) -> None:
        """Put the cheap ops that make `values` into the open segment."""
        for value in values:
            if value in self.cheap and value not in self.made:
                self.pull(self.cheap[value].operands)
                self.append(self.cheap[value])

    def append(self, op: Op) -> None:
        self.open.append(op)
        self.made.update(op.results)

    def issue(self, values: list[Value]) -> None:
        """Issue the late gathers that make `values`."""
        for value in values:
            if value in self.late:
                op = self.late.pop(value)
                self.issue([self.base(op.operands[0])])
                self.items.append(op)

    def close(self) -> None:
        if self.open:
            self.items.append(Segment(tuple(self.open), self.phase))
        self.open, self.made = [], set()

    def finish(self) -> list[Item]:
        self.close()
        self.issue(list(self.late))
        return self.items


def _update_by_level(ops: tuple[Op, ...], realisation: Realisation) -> list[Op]:
    """Return `ops`, the update at their end sorted by how many times its own results are communicated before an op."""
    computing = [op.name not in COMMUNICATING and op.phase != "update" for op in ops]
    start = max((at + 1 for at, found in enumerate(computing) if found), default=0)
    levels: dict[Value, int] = {}
    made: set[Value] = set()

    def level(op: Op) -> int:
        found = max((levels.get(value, 0) for value in op.operands), default=0)
        if op.name not in COMMUNICATING:
            made.update(op.results)
        elif realisation.homes[op.operands[0]].value in made:
            found += 1
        levels.update(dict.fromkeys(op.results, found))
        return found

    return [*ops[:start], *sorted(ops[start:], key=level)]


def _escaping(program: Program, realisation: Realisation) -> set[Value]:
    """Return the values that need a buffer: collectives read them, the program returns them, or ops read another part of them."""
    homes = realisation.homes
    found = {homes[item.value].value for item in program.outputs}
    for op in program.ops:
        if op in realisation.peers:
            found.add(homes[op.operands[0]].value)
        elif op.name not in COMMUNICATING:
            found |= {homes[value].value for value in op.operands if homes[value].value is not value}
    return found
