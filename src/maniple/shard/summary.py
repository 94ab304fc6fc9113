"""What a sharded program communicates and what it leaves undivided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from maniple.base.location import Location
from maniple.ir.program import Op, Phase, Program
from maniple.mesh import Mesh
from maniple.ops import definition
from maniple.ops.collectives import COMMUNICATING, LOCAL
from maniple.shard.regather import saved
from maniple.shard.reshard import Change, change_bytes


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective of a sharded program.

    Attributes:
        tensor: the value as the program prints it, or the parameter whose gradient it is.
        num_bytes: bytes that a device holds of the operand; of the result for all_gather.
        why: the factor that was reduced, or the layouts that differ.
        location: the user's line that makes it necessary.
    """

    kind: str
    tensor: str
    shape: tuple[int, ...]
    axis: str
    num_bytes: int
    phase: Phase
    why: str
    location: Location | None


def communication(program: Program, mesh: Mesh) -> Iterator[Communication]:
    """Yield the collectives of a sharded program, in program order."""
    gradients = {value.name.partition("~")[0]: f"gradient of {name}" for name, value in program.gradients}
    for op in program.ops:
        if op.name in COMMUNICATING:
            source, target = op.operands[0].layout, op.results[0].layout
            axis = str(op.attr("axis"))
            num_bytes = change_bytes(source, Change(op.name, axis, target), op.operands[0].type, mesh)
            why = str(dict(op.attrs).get("why", ""))
            stem = op.operands[0].name.partition("~")[0]
            tensor = gradients.get(stem, f"%{stem}")
            yield Communication(op.name, tensor, op.operands[0].type.shape, axis, num_bytes, op.phase, why, op.location)


def totals(program: Program, mesh: Mesh) -> dict[str, dict[str, int]]:
    """Return count and bytes of the collectives by kind."""
    found: dict[str, dict[str, int]] = {}
    for item in communication(program, mesh):
        entry = found.setdefault(item.kind, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += item.num_bytes
    return dict(sorted(found.items()))


def saved_bytes(program: Program, mesh: Mesh) -> int:
    """Return the bytes that the first device keeps of what forward makes for backward; views of a value take no memory of their own."""
    kept, _ = saved(program)
    return sum(value.type.with_shape(value.layout.local_shape(value.type.shape, mesh)).num_bytes for value in kept)


def undivided(program: Program, mesh: Mesh) -> Iterator[Op]:
    """Yield the ops on tensors that every device of a mesh of several computes whole."""
    if mesh.num_devices == 1:
        return
    for op in program.ops:
        if op.name in COMMUNICATING | LOCAL or definition(op.name).flops(op) == 0:
            continue
        values = (*op.operands, *op.results)
        if any(v.type.rank for v in op.results) and not any(v.layout.axes for v in values):
            yield op
