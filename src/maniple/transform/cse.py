"""Common subexpression elimination. Contract: bitwise."""

from __future__ import annotations

from dataclasses import replace

from maniple.ir.program import Op, Output, Program, Value


def cse(program: Program) -> Program:
    """Return `program` with each op kept once among those of equal name, attributes, operands and result types.

    Runs before sharding, so that it never joins the gathers of a parameter (`zero=3`). Random ops carry their number as an attribute, so
    that distinct ones stay distinct. Ops with regions stay.
    """
    same: dict[Value, Value] = {}
    seen: dict[object, Op] = {}
    ops: list[Op] = []
    for op in program.ops:
        operands = tuple(same.get(value, value) for value in op.operands)
        key = (op.name, operands, op.attrs, tuple((v.type, v.sharding) for v in op.results))
        if not op.regions and key in seen:
            same.update(zip(op.results, seen[key].results, strict=True))
            continue
        seen[key] = replace(op, operands=operands)
        ops.append(seen[key])
    outputs = tuple(Output(same.get(item.value, item.value), item.name) for item in program.outputs)
    gradients = tuple((name, same.get(value, value)) for name, value in program.gradients)
    return replace(program, ops=tuple(ops), outputs=outputs, gradients=gradients)
