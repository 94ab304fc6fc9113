"""Ops that PyTorch computes better together: a pass over a local program right before it is written as a body.

Contract: reassociating; the fused kernels round in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from maniple.ir.program import Op, Value, sorted_attrs

Pattern = Any
"""A name that stands for a value, `$name` for one of rank 0; or op, with `name=` before it to name the result, and patterns of operands."""

_M: Final = ("new_m=add", "m", ("multiply", ("subtract", "g", "m"), "$rate1"))
_V: Final = ("new_v=add", ("multiply", "v", "$beta2"), ("multiply", ("multiply", "g", "g"), "$rate2"))
_STEP: Final = ("multiply", ("divide", _M, ("add", ("divide", ("sqrt", _V), "$correction"), "$eps")), "$size")
ADAM: Final[tuple[Pattern, ...]] = (("new_p=add", ("multiply", "p", "$kept"), _STEP), ("new_p=add", "p", _STEP))
"""The update of Adam and AdamW (Kingma, Ba 2015; Loshchilov, Hutter 2019) as PyTorch's optimizer computes it, with and without decay."""

SCALARS: Final = ("$rate1", "$beta2", "$rate2", "$correction", "$eps", "$size")


def adam_state(op: Op) -> tuple[Value, Value, Value]:
    """Return the operands of an `adam` op whose new values its results are, in the order of the results."""
    p, _, m, v, *_ = op.operands
    return p, m, v


def fused(ops: Sequence[Op], kept: Collection[Value]) -> list[Op]:
    """Return `ops` with the gradient of cross entropy and each update of Adam as one op.

    Args:
        ops: of a local program.
        kept: values that are used beyond them.
    """
    graph = _Graph(ops, kept)
    return [found for op in ops for found in (graph.replaced(op),) if found is not None and found not in graph.gone]


class _Graph:
    """Which op makes a value, and how many read it."""

    def __init__(self, ops: Sequence[Op], kept: Collection[Value]) -> None:
        self.makers = {value: op for op in ops for value in op.results}
        self.reads = Counter(value for op in ops for value in op.operands)
        self.uses = self.reads + Counter(kept)
        self.gone: set[Op] = set()
        self.new: dict[Op, Op] = {}
        for op in ops:
            made = self.cross_entropy(op) if op.name == "log_softmax_grad" else self.adam(op) if op.name == "add" else None
            if made is not None:
                self.new[op] = made

    def replaced(self, op: Op) -> Op | None:
        return None if op in self.gone else self.new.get(op, op)

    def cross_entropy(self, op: Op) -> Op | None:
        """Return the gradient of a picked log-softmax as one op: two would fill a tensor of the size of the logits and read it twice."""
        pick, kind = self.makers.get(op.operands[0]), op.results[0].type
        if pick is None or pick.name != "pick_grad" or self.uses[op.operands[0]] > 1:
            return None
        if kind.rank != 2 or op.integer("dim") != 1 or len(pick.operands) != 2 or not kind.num_elements:
            return None
        self.gone.add(pick)
        attrs = sorted_attrs({"ignore_index": pick.integer("ignore_index")})
        return replace(op, name="cross_entropy_grad", operands=(*pick.operands, op.operands[1]), attrs=attrs)

    def adam(self, op: Op) -> Op | None:
        """Return the update that ends in `op` as one op of results p, m, v; None if it is none, or something looks inside of it."""
        for pattern in ADAM:
            match = _Match({}, [])
            if not match.value(op.results[0], pattern, self.makers):
                continue
            found, inner = match.found, Counter(value for each in match.ops for value in each.operands)
            new = tuple(found[name] for name in ("new_p", "new_m", "new_v"))
            hidden = all(self.uses[v] == inner[v] for each in match.ops for v in each.results if v not in new)
            if (
                not hidden
                or any(self.reads[v] != inner[v] for v in new[1:])
                or len({v.type for v in (*new, *(found[n] for n in "pgmv"))}) > 1
            ):
                return None
            self.gone |= {each for each in match.ops if each is not op}
            scalars = [found[name] for name in (*SCALARS, *(("$kept",) if "$kept" in found else ()))]
            return replace(op, name="adam", operands=(*(found[n] for n in "pgmv"), *scalars), results=new, attrs=())
        return None


@dataclass(frozen=True, slots=True)
class _Match:
    """What the names of a pattern stand for, and the ops that it covers."""

    found: dict[str, Value]
    ops: list[Op]

    def value(self, value: Value, pattern: Pattern, makers: Mapping[Value, Op]) -> bool:
        if isinstance(pattern, str):
            return self.bind(pattern, value) and (value.type.rank == 0) == pattern.startswith("$")
        (head, *operands), op = pattern, makers.get(value)
        name, _, kind = head.rpartition("=")
        if op is None or op.name != kind or len(op.operands) != len(operands) or not self.bind(name, value):
            return False
        if op not in self.ops:
            self.ops.append(op)
        return all(self.value(v, p, makers) for v, p in zip(op.operands, operands, strict=True))

    def bind(self, name: str, value: Value) -> bool:
        return not name or self.found.setdefault(name, value) is value
