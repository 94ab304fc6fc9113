"""What an engine is, for any kind of tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from maniple.mesh.mesh import Mesh
from maniple.ops.localize import LocalProgram
from maniple.taskgraph.graph import TaskGraph
from maniple.trace import Trace

Tensor = TypeVar("Tensor")
Tensor_co = TypeVar("Tensor_co", covariant=True)


class Body(Protocol[Tensor_co]):
    """What one device runs of a segment."""

    def __call__(self, *operands: Any) -> tuple[Tensor_co, ...]:
        """Return the outputs of the local program for its inputs: tensors, then offsets as plain integers."""


class CompileBody(Protocol[Tensor_co]):
    """Makes bodies; the kernels of a framework."""

    def __call__(self, local: LocalProgram, /) -> Body[Tensor_co]:
        """Return a body that runs `local`."""


class Engine(Protocol[Tensor]):
    """Runs task graphs."""

    def shared_axes(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes of `mesh` along which the devices of this engine share memory: what graphs for it are lowered with."""

    def run(self, graph: TaskGraph, inputs: Mapping[str, Tensor], trace: Trace | None = None) -> Mapping[str, Tensor]:
        """Run the step once.

        Args:
            graph: what to run.
            inputs: a whole (global) tensor for each of the graph's inputs, by name. They are read and never written.
            trace: what to record in: every point task that ran, and what the runtime did beside them. None costs nothing per task.

        Returns:
            A whole tensor for each of the graph's outputs, by name, none of which shares memory with `inputs`. New state is among them:
            the caller copies it to where the user sees it, so that a failure leaves the user's state as it was.

        Raises:
            EngineError: naming the task and the user's line.
        """
