"""Runs task graphs on Realm: the devices of one node, in one process, over shared memory."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Final

import torch

from maniple.base.errors import EngineError
from maniple.engine.bodies import check_devices, check_inputs
from maniple.engine.protocol import CompileBody, Interrupted
from maniple.engine.realm.plan import Plan
from maniple.engine.realm.process import PROCESS
from maniple.mesh.mesh import Mesh
from maniple.taskgraph.graph import TaskGraph
from maniple.trace import Trace

NUM_PLANS: Final = 8
"""Graphs that an engine keeps plans for: batch shapes that take turns, training and evaluation."""

MAX_DEVICES: Final = 256
"""Each point task lists what it waits for: after an all-reduce that is every device."""

MAX_PROCESSORS: Final = 1024
"""Threads."""


class RealmEngine:
    """All devices in one process; point tasks run as soon as what they wait for is done.

    The result does not depend on the order: partial results are combined in the order of devices.

    Attributes:
        num_processors: threads that run bodies, one core each; devices take turns on them.
        state_changed: whether the last run failed after it had begun to update state in place.
    """

    def __init__(
        self, compile_body: CompileBody[torch.Tensor], num_processors: int | None = None, rng: random.Random | None = None
    ) -> None:
        """Make an engine that has compiled nothing yet. Realm starts with the first step.

        Args:
            compile_body: makes the body of a local program.
            num_processors: one per core that the process may use by default; may be more than there are cores.
            rng: shuffles the order of point tasks that may run, anew in each step; None takes them as they become ready.

        Raises:
            EngineError: if `num_processors` is none of 1 to `MAX_PROCESSORS`.
        """
        if num_processors is not None and not 1 <= num_processors <= MAX_PROCESSORS:
            raise EngineError(f"the realm engine takes 1 to {MAX_PROCESSORS} processors; got {num_processors}")
        self.num_processors = num_processors or len(os.sched_getaffinity(0))
        self._compile, self._rng = compile_body, rng
        self._plans: list[Plan] = []
        self.state_changed = False

    def shared_axes(self, mesh: Mesh) -> tuple[str, ...]:
        """Return all axes: memory is that of one node. See `Engine.shared_axes`."""
        return mesh.names

    @property
    def num_bodies(self) -> int:
        """Number of bodies compiled for the graph that ran last."""
        return len(self._plans[-1].bodies) if self._plans else 0

    def run(self, graph: TaskGraph, inputs: Mapping[str, torch.Tensor], trace: Trace | None = None) -> dict[str, torch.Tensor]:
        """Run the step once; see `Engine.run`.

        All that does not depend on the step is prepared when a graph is first met, and kept for the last few graphs. If a body raises, or
        Ctrl-C arrives, bodies that run are waited for and no other begins; the next step works. Once state is being updated Ctrl-C waits
        for the end of the step.

        Raises:
            EngineError: naming the task and the user's line, if an input is missing or has another shape, or a body fails; if there are
                more than `MAX_DEVICES` devices; or with the reason, if Realm cannot be had.
        """
        self.state_changed = False
        check_devices(graph, "realm", MAX_DEVICES)
        check_inputs(graph, inputs)
        with PROCESS.runtime(self.num_processors) as (runtime, helper):
            plan = self._plan(graph)
            try:
                return plan.run(runtime, helper, self.num_processors, inputs, self._rng, trace)
            except Interrupted:
                raise
            except BaseException:
                self.state_changed = plan.state_was_changing()
                raise

    def _plan(self, graph: TaskGraph) -> Plan:
        found = next((plan for plan in self._plans if plan.graph is graph), None)
        if found is None:
            found = Plan(graph, self._compile)
        self._plans = [*(plan for plan in self._plans if plan is not found), found][-NUM_PLANS:]
        return found
