"""Buffers, index tasks and the dependences between them.

A task is launched once and runs at every point of the mesh; nothing here grows with the size of an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Phase, Program
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding

Privilege = Literal["read", "write", "read_write", "reduce"]
"""What a task may do to a part of a buffer, as in Legion."""

TaskKind = Literal["compute", "collective"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A distributed array.

    Along an axis on which devices have memory of their own, every device holds its own local array. Along a shared axis there is
    one allocation: split dims are views of it, a replicated value is stored once. A pending value has one partial per index of the
    pending axes.

    Attributes:
        type: global type.
        sharding: how it is stored.
    """

    name: str
    type: TensorType
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Part:
    """What each point touches of a buffer.

    Attributes:
        sharding: the point touches the region that it would hold under this layout (its pending axes are ignored).
        peers: axes along which the region is put together from all devices of the point's group: pieces where the buffer is
            split along the axis, partial results where it is pending.
    """

    sharding: Sharding
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """A privilege on a part of a buffer."""

    buffer: str
    part: Part
    privilege: Privilege


@dataclass(frozen=True, slots=True)
class Task:
    """One index task.

    Attributes:
        name: unique in its graph.
        kind: `compute` runs segment `segment`; `collective` combines its one read part into its one written part.
        op: name of the collective, or of the segment's most expensive op.
        accesses: reads in the order of the segment's inputs, then writes in the order of its outputs.
        segment: number of the segment, -1 for collectives.
        once: shared axes along which some written parts are the same at every point; of those parts only the first point is the
            writer, and a point that is no writer at all need not run.
        flops: floating-point operations of the first (largest) point.
        num_bytes: bytes that the first point reads and writes, for a collective bytes that it receives.
    """

    name: str
    kind: TaskKind
    op: str
    accesses: tuple[Access, ...]
    segment: int = -1
    once: tuple[str, ...] = ()
    flops: int = 0
    num_bytes: int = 0
    phase: Phase = "forward"
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """Point p of task `after` waits for the points of task `before` that agree with p on every axis but `axes`."""

    before: str
    after: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A step as index tasks.

    Attributes:
        shared: axes along which devices share memory.
        inputs: buffer that holds each input of the program: (buffer, input name).
        outputs: buffer that holds each output: (buffer, output name).
        segments: sharded fragments that compute tasks run, with global types and without communication.
    """

    mesh: Mesh
    shared: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    segments: tuple[Program, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
