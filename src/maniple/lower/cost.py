"""Work and bytes of tasks and programs, counted on the first device, whose shards are largest."""

from __future__ import annotations

from collections.abc import Mapping

from maniple.ir.program import STATE_KINDS, InputKind, Op, Output, Program
from maniple.mesh.mesh import Mesh
from maniple.ops import definition
from maniple.ops.localize import localize


def op_flops(fragment: Program, mesh: Mesh) -> list[int]:
    """Return the floating-point operations of each op of `fragment` on the first device of `mesh`."""
    point = dict.fromkeys(mesh.names, 0)
    local = localize(fragment, mesh, point).program.ops
    return [definition(whole.name).flops(op) for whole, op in zip(fragment.ops, local, strict=True)]


def program_flops(program: Program, mesh: Mesh) -> int:
    """Return the floating-point operations of a program on the first device of `mesh`.

    With `Mesh()` the program counts as a whole, whatever its layouts: axes that a mesh lacks have size 1.
    """
    axes = dict.fromkeys(axis for value in program.values() for axis in sorted(value.layout.axes))
    ones = tuple((axis, 1) for axis in axes if axis not in mesh.names)
    return sum(op_flops(program, Mesh((*mesh.axes, *ones))))


def collective_bytes(op: Op, mesh: Mesh) -> int:
    """Return the bytes that the first device receives in a collective along private memory.

    Those of the algorithms that move least: for n devices and a local operand (of all_gather: result) of b bytes, all_reduce
    2b(n-1)/n, the others b(n-1)/n (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH").
    """
    (operand,), (result,) = op.operands, op.results
    ways = mesh.size(str(op.attr("axis")))
    held = result if op.name == "all_gather" else operand
    rounds = 2 if op.name == "all_reduce" else 1
    return rounds * held.local_bytes(mesh) * (ways - 1) // ways


def state_bytes(program: Program, mesh: Mesh) -> Mapping[InputKind, int]:
    """Return the bytes of state that the first device holds, by kind, from the layouts of the program's inputs.

    State that only leaves the program is what the optimizer makes in the first step.
    """
    totals: dict[InputKind, int] = dict.fromkeys(sorted(STATE_KINDS), 0)
    names = set()
    for item in program.inputs:
        names.add(item.name)
        if item.kind in STATE_KINDS:
            totals[item.kind] += item.value.local_bytes(mesh)
    for output in program.outputs:
        if output.name not in names and not is_result(output):
            totals["optimizer"] += output.value.local_bytes(mesh)
    return totals


def is_result(output: Output) -> bool:
    """Return whether an output is what the step returns, not state."""
    return output.name == "result" or output.name.startswith("result.")
