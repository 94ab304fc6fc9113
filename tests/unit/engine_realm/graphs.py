"""Small graphs, and bodies that are slow or fail."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from random_programs import random_inputs, random_program

from maniple.ir import parse_program
from maniple.kernels.torch import Body, compile_program
from maniple.lower import lower
from maniple.mesh import Mesh
from maniple.ops.localize import Destination, LocalProgram
from maniple.taskgraph import TaskGraph

TEXT = """
program {
  in %w: f64[5]{dp} parameter "w"
  in %u: f64[5]{_} parameter "u"
  %a: f64[5]{dp} = negate(%w) forward "train.py":4 @net.fc
  %b: f64[5]{_} = all_gather(%a) {axis='dp'} forward
  %c: f64[5]{_} = multiply(%b, %u) backward "train.py":5
  out %c "w"
  out %u "u"
}
"""


@dataclass
class Wrapped:
    """A body and what is done before it."""

    body: Body
    before: Callable[[], None]

    @property
    def views(self) -> tuple[frozenset[int], ...]:
        return self.body.views

    def __call__(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.before()
        return self.body(*operands)


def small_graph(mesh: str, *shared: str) -> TaskGraph:
    return lower(parse_program(TEXT), Mesh.parse(mesh), shared)


def small_inputs() -> dict[str, torch.Tensor]:
    return {"w": torch.arange(5.0, dtype=torch.float64), "u": torch.full((5,), 2.0, dtype=torch.float64)}


def fresh(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies: a step updates state where it lies."""
    return {name: tensor.clone() for name, tensor in inputs.items()}


def updated(graph: TaskGraph) -> set[str]:
    """Return the names of the inputs that the tasks write to."""
    buffers = {access.buffer for task in graph.tasks for access in task.accesses if access.privilege == "write"}
    return {name for buffer, name in graph.inputs if buffer in buffers}


def random_graph(seed: int, mesh_text: str, num_ops: int = 20) -> tuple[TaskGraph, dict[str, torch.Tensor]]:
    """Return a random graph on shared memory, and its inputs."""
    mesh = Mesh.parse(mesh_text)
    program = random_program(seed, mesh, num_ops)
    return lower(program, mesh, mesh.names), random_inputs(program, seed)


@dataclass
class Delays:
    """Bodies that sleep at random before they work."""

    rng: random.Random
    longest_s: float = 0.002

    def compile(self, local: LocalProgram, destinations: Sequence[Destination] = ()) -> Wrapped:
        return Wrapped(compile_program(local, destinations), self.sleep)

    def sleep(self) -> None:
        time.sleep(self.rng.choice((0.0, 0.0, self.rng.random() * self.longest_s)))


@dataclass
class Failing:
    """Bodies that count their calls, and one of which raises.

    Attributes:
        at: number of the call that raises, -1 for none.
        calls: number of calls so far.
    """

    at: int = -1
    error: BaseException = field(default_factory=lambda: ZeroDivisionError("on purpose"))
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compile(self, local: LocalProgram, destinations: Sequence[Destination] = ()) -> Wrapped:
        return Wrapped(compile_program(local, destinations), self.count)

    def count(self) -> None:
        with self.lock:
            number, self.calls = self.calls, self.calls + 1
        if number == self.at:
            raise self.error


def same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> bool:
    """Return whether all tensors are the same, bit by bit."""
    return got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


def mesh_texts(count: int) -> list[str]:
    """Return meshes, one for each of `count` seeds."""
    known = ("dp=2", "dp=3", "dp=2 tp=2", "dp=2 tp=3", "dp=1 tp=4", "dp=2 tp=2 cp=2", "cp=3 dp=1 tp=2")
    return list(itertools.islice(itertools.cycle(known), count))
