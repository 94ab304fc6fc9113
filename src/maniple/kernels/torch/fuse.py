"""Ops that PyTorch computes better together: a pass over a local program right before it is written as a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from maniple.ir.program import Op, Value, sorted_attrs


def fused(ops: Sequence[Op], kept: Collection[Value]) -> list[Op]:
    """Return `ops` with each gradient of a picked log-softmax, which is that of cross entropy, as one op.

    `pick_grad` then `log_softmax_grad` would fill a tensor of the size of the logits with zeros, and read it twice.

    Args:
        ops: of a local program.
        kept: values that are used beyond them.
    """
    uses = Counter(value for op in ops for value in op.operands)
    makers = {op.results[0]: op for op in ops if op.name == "pick_grad"}
    gone: set[Op] = set()
    found = []
    for op in ops:
        pick = makers.get(op.operands[0]) if op.name == "log_softmax_grad" else None
        if pick is None or uses[op.operands[0]] > 1 or op.operands[0] in kept or not _fits(op, pick):
            found.append(op)
            continue
        gone.add(pick)
        attrs = sorted_attrs({"ignore_index": pick.integer("ignore_index")})
        found.append(replace(op, name="cross_entropy_grad", operands=(*pick.operands, op.operands[1]), attrs=attrs))
    return [op for op in found if op not in gone]


def _fits(op: Op, pick: Op) -> bool:
    """Return whether both go over the last of two dims, whole on this device."""
    kind = op.results[0].type
    return kind.rank == 2 and op.integer("dim") == 1 and len(pick.operands) == 2 and kind.num_elements > 0
