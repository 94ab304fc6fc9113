"""Where buffers lie on devices that share memory, and what bodies allocate beside them: what engines and bounds on memory agree on."""

from __future__ import annotations

from dataclasses import dataclass

from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import AxisPart, Sharding
from maniple.taskgraph.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class BodyMemory:
    """The memory that a body takes beside its operands and what it is given to write to.

    Attributes:
        peak_bytes: most bytes that it has allocated at one time, results included.
        places: for each result where it may lie: `n` in the memory of operand n, or where operands end in memory given, `~n` in new memory,
            together with result n, the first one there.
        new_bytes: for each result the bytes of the new memory in which it is the first one, which may be larger than the result; else 0.
    """

    peak_bytes: int
    places: tuple[frozenset[int], ...] = ()
    new_bytes: tuple[int, ...] = ()


def in_pieces(graph: TaskGraph) -> frozenset[str]:
    """Return the buffers of which each writer's part can be a tensor of its own: every reader finds what it wants inside of one.

    Other buffers are put together in one allocation for each instance. The caller's own, inputs, are neither.
    """
    mesh = graph.mesh
    written: dict[str, Sharding] = {}
    wanted: dict[str, list[Sharding]] = {}
    for task in graph.tasks:
        for access in task.accesses:
            if access.privilege == "write":
                written.setdefault(access.buffer, access.part.sharding)
            else:
                wanted.setdefault(access.buffer, []).append(access.part.sharding)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    for name, _ in graph.outputs:
        wanted.setdefault(name, []).append(Sharding.replicated(types[name].rank))
    inputs = {name for name, _ in graph.inputs}
    return frozenset(
        name for name, part in written.items() if name not in inputs and all(is_inside(want, part, mesh) for want in wanted.get(name, ()))
    )


def is_inside(part: Sharding, whole: Sharding, mesh: Mesh) -> bool:
    """Return whether each device's part is a rectangle of some device's part under `whole`, whatever the shape.

    >>> mesh = Mesh.parse("dp=2 tp=2")
    >>> is_inside(Sharding.parse("{dp.tp,_}"), Sharding.parse("{dp,_}"), mesh)
    True
    >>> is_inside(Sharding.parse("{_,tp/3}"), Sharding.parse("{_,_}"), mesh)
    False
    """
    return all(_is_inside(mine, its, mesh) for mine, its in zip(part.dims, whole.dims, strict=True))


def _is_inside(part: tuple[AxisPart, ...], whole: tuple[AxisPart, ...], mesh: Mesh) -> bool:
    part, whole = (tuple(item for item in parts if mesh.size(item.axis) > 1) for parts in (part, whole))
    rest = part[len(whole) :]
    return part[: len(whole)] == whole and all(item.blocks == 1 for item in rest)
