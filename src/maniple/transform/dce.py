"""Dead code elimination. Contract: bitwise."""

from __future__ import annotations

from dataclasses import replace

from maniple.ir.program import Op, Program


def dce(program: Program) -> Program:
    """Return `program` without the ops whose results nothing needs.

    An op of which some result is needed stays whole. Collectives are no exception: every device runs the same program.
    """
    needed = {item.value for item in program.outputs} | {value for _, value in program.gradients}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if any(result in needed for result in op.results):
            kept.append(op)
            needed.update(op.operands)
    return replace(program, ops=tuple(reversed(kept)))
