"""What forward gathered is gathered again for backward, rather than kept in between.

Under `sp` activations between products lie divided; products take them gathered. A gathered copy that backward reads again would live
from one to the other and cost the memory that `sp` is to save. So backward gathers anew, from the shards that are kept. Views and
conversions of a gathered copy are made anew with it.

Contract: bitwise.
"""

from __future__ import annotations

from dataclasses import replace

from maniple.ir.program import Op, Program, Value
from maniple.ops.collectives import COMMUNICATING, LOCAL
from maniple.shard.classes import is_view


def regather(program: Program, axis: str) -> Program:
    """Return the sharded `program`, in which backward reads nothing that forward gathered along `axis`."""
    made_by = program.producers()
    gathered: set[Value] = set()
    for op in program.ops:
        if op.phase == "forward" and _keeps_gathered(op, axis, gathered):
            gathered.update(op.results)
    again: dict[Value, Value] = {}
    names = {value.name for value in program.values()}
    ops: list[Op] = []

    def remade(value: Value) -> Value:
        if value not in gathered:
            return value
        if value not in again:
            op = made_by[value]
            operands = tuple(remade(operand) for operand in op.operands)
            again[value] = replace(value, name=_unused(value.name, names))
            ops.append(replace(op, operands=operands, results=(again[value],), phase="backward"))
        return again[value]

    for op in program.ops:
        reads_again = op.phase == "backward" and not gathered.isdisjoint(op.operands)
        operands = tuple(remade(value) for value in op.operands) if reads_again else op.operands
        ops.append(replace(op, operands=operands) if reads_again else op)
    return replace(program, ops=tuple(ops))


def saved(program: Program) -> tuple[frozenset[Value], frozenset[Value]]:
    """Return the values of forward that backward uses, and those that both use: these, if gathered, are gathered twice.

    What is a view counts as what it is a view of; among the latter are views as well.
    """
    source: dict[Value, Value] = {}
    phases: dict[Value, set[str]] = {}
    for op in program.ops:
        for value in op.operands:
            if value in source and not (op.phase == "forward" and is_view(op)):
                phases.setdefault(source[value], set()).add(op.phase)
        if op.phase == "forward":
            source.update((value, value) for value in op.results)
            if is_view(op):
                source[op.results[0]] = source.get(op.operands[0], op.results[0])
    both = {value for value, found in phases.items() if {"forward", "backward"} <= found}
    kept = frozenset(value for value, found in phases.items() if "backward" in found)
    return kept, frozenset(value for value, root in source.items() if root in both)


def _keeps_gathered(op: Op, axis: str, gathered: set[Value]) -> bool:
    """Return whether `op` gathers along `axis`, or views what was gathered."""
    if op.name in COMMUNICATING | LOCAL:
        return op.name == "all_gather" and op.attr("axis") == axis
    return is_view(op) and op.operands[0] in gathered


def _unused(name: str, names: set[str]) -> str:
    """Return a new name with the stem of `name`, and take it."""
    stem, number = name.partition("~")[0], 1
    while f"{stem}~{number}" in names:
        number += 1
    names.add(f"{stem}~{number}")
    return f"{stem}~{number}"
