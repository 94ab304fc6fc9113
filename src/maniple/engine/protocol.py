"""What an engine is, for any kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from maniple.mesh.mesh import Mesh
from maniple.ops.localize import Destination, LocalProgram
from maniple.taskgraph.graph import TaskGraph
from maniple.trace import Trace

Tensor = TypeVar("Tensor")
Result = TypeVar("Result")
Tensor_co = TypeVar("Tensor_co", covariant=True)


Destinations = tuple[Destination, ...]
"""In the order of the outputs."""


class Body(Protocol[Tensor_co]):
    """What one device runs of a segment.

    Attributes:
        views: for each output, the numbers of the inputs of which it may be a view.
    """

    @property
    def views(self) -> tuple[frozenset[int], ...]: ...  # noqa: D102  # above

    def __call__(self, *operands: Any) -> tuple[Tensor_co, ...]:
        """Return the outputs of the local program for its inputs: tensors, then offsets as plain integers, then destinations."""


class CompileBody(Protocol[Tensor_co]):
    """Makes bodies; the kernels of a framework."""

    def __call__(self, local: LocalProgram, destinations: Destinations = (), /) -> Body[Tensor_co]:
        """Return a body that runs `local`.

        For each of `destinations` the body takes one more operand, a tensor of the output's shape and dtype, writes the output there and
        returns that. Where it is the memory of an input, all that reads the input comes before.
        """


class Engine(Protocol[Tensor]):
    """Runs task graphs.

    Attributes:
        num_processors: bodies that run at one time, None for one on each device.
        state_changed: whether the last run, which did not come to its end, left state that is neither the old nor the new.
    """

    num_processors: int | None
    state_changed: bool

    def shared_axes(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes of `mesh` along which the devices of this engine share memory: what graphs for it are lowered with."""

    def run(self, graph: TaskGraph, inputs: Mapping[str, Tensor], trace: Trace | None = None) -> Mapping[str, Tensor]:
        """Run the step once.

        Args:
            graph: what to run.
            inputs: a whole (global) tensor for each of the graph's inputs, by name. State that tasks update may be written to.
            trace: what to record in: every point task that ran, and what the runtime did beside them. None costs nothing per task.

        Returns:
            A whole tensor for each of the graph's outputs, by name. State that was updated in place, or not at all, may be the tensor that
            was given. The others share memory neither with `inputs` nor with one another; those that are new state the caller copies to
            where the user sees it.

        Raises:
            EngineError: naming the task and the user's line. `state_changed` then tells whether state in `inputs` was written to.
            KeyboardInterrupt: if Ctrl-C arrives; once state is being written to the step first comes to its end, and `Interrupted` is
                raised instead.
        """


def uninterrupted(function: Callable[[], Result]) -> tuple[Result, bool]:
    """Call `function` until it returns; return what it does, and whether Ctrl-C arrived meanwhile.

    Args:
        function: may be called again after it was broken off anywhere.
    """
    interrupted = False
    while True:
        try:
            return function(), interrupted
        except KeyboardInterrupt:
            interrupted = True


class Interrupted(BaseException):  # like KeyboardInterrupt, which it stands for
    """Ctrl-C arrived while state was being updated, and the step has come to its end since.

    Attributes:
        outputs: what `Engine.run` would have returned.
    """

    def __init__(self, outputs: Mapping[str, Any]) -> None:
        """Keep the outputs."""
        super().__init__()
        self.outputs = outputs
