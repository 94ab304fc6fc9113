"""From a captured program to a task graph, every stage checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from maniple.base.errors import VerifyError
from maniple.ir.program import Program
from maniple.lower import lower
from maniple.mesh import Strategy
from maniple.ops.check import check_program
from maniple.shard.divide import divide
from maniple.shard.shard import Sharded, shard
from maniple.taskgraph import TaskGraph
from maniple.transform.cse import cse
from maniple.transform.dce import dce
from maniple.verify.dependences import check_dependences
from maniple.verify.sharded import verify_sharded


@dataclass(frozen=True, slots=True)
class Plan:
    """A step, ready to run.

    Attributes:
        program: as captured, after clean-up.
        sharded: the same with a layout on every value. Its collectives are what devices with memory of their own communicate.
        divided: the same with repeated work divided over shared memory.
        graph: that as tasks.
    """

    program: Program
    sharded: Sharded
    divided: Program
    graph: TaskGraph

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the state that tasks write over where it lies."""
        inputs = {name: buffer for buffer, name in self.graph.inputs}
        return tuple(name for buffer, name in self.graph.outputs if inputs.get(name) == buffer)

    def problems(self) -> tuple[str, ...]:
        """Return what the independent checkers of types, layouts and dependences find wrong; nothing if the plan is right."""
        checks: tuple[Callable[[], None], ...] = (
            lambda: check_program(self.program),
            lambda: check_program(self.sharded.program),
            lambda: verify_sharded(self.sharded.program, self.sharded.mesh),
            *([lambda: check_program(self.divided), lambda: verify_sharded(self.divided, self.sharded.mesh)] if self.graph.shared else []),
            lambda: check_dependences(self.graph),
        )
        return tuple(problem for check in checks for problem in _problem(check))


def _problem(check: Callable[[], None]) -> Iterator[str]:
    """Yield what `check` raises as an error of verification, in words."""
    try:
        check()
    except VerifyError as error:
        yield str(error)


def compile_program(program: Program, strategy: Strategy, shared: tuple[str, ...] = (), *, idle: bool = False) -> Plan:
    """Return the plan for `program` under `strategy`.

    Args:
        program: as captured.
        strategy: how to divide it.
        shared: axes along which devices share memory.
        idle: whether devices may be left without any row of the batch, as by the last one of an epoch.

    Raises:
        StrategyError: if the strategy does not fit the program.
    """
    clean = dce(cse(program))
    sharded = shard(clean, strategy, idle=idle)
    sharded = replace(sharded, program=dce(sharded.program))
    divided = dce(divide(sharded.program, strategy.mesh, shared)) if shared else sharded.program
    return Plan(clean, sharded, divided, lower(divided, strategy.mesh, shared))
