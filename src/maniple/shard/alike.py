"""Which ops and values of a program are alike, as those of repeated blocks are.

Ops are alike if they do the same on the same types, and so do the ops around them, up to `DISTANCE` uses away. Nothing is known of
modules: layers of a model are alike but for the few next to the first and the last. Only every other one of them counts as alike, as the
best way to divide a row of products is by columns and by rows in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, TypeVar

from maniple.ir.program import Op, Program, Value

Item = TypeVar("Item", Op, Value)

DISTANCE: Final = 4
"""How far to look: once for what is alike, once more when every other one is set apart. Ops further away do not matter to likeness. A
residual connection crosses a layer of a transformer in two ops."""


class Likeness:
    """Numbers that ops and values share if they are alike.

    Attributes:
        ops: number of each op.
        values: number of each value: alike are what ops alike make and use alike, in the same places.
    """

    def __init__(self, program: Program, ops: Sequence[Op], apart: Mapping[Value, Hashable], distance: float = DISTANCE) -> None:
        """Find what is alike among `ops`, and among the inputs of `program` and what `ops` make.

        Args:
            program: a whole step.
            ops: those of its ops that matter.
            apart: what else is known of some values: they are alike only if that is equal.
            distance: how far to look, twice.
        """
        self._made: dict[Value, tuple[Op, int]] = {value: (op, place) for op in ops for place, value in enumerate(op.results)}
        self._used: dict[Value, list[tuple[Op, int]]] = {}
        for op in ops:
            for place, value in enumerate(op.operands):
                self._used.setdefault(value, []).append((op, place))
        kinds = {item.value: item.kind for item in program.inputs}
        values = dict.fromkeys((*kinds, *(value for op in ops for value in (*op.operands, *op.results))))
        leaving = _leaving(program)
        self.values = _numbered({v: (v.type, kinds.get(v), apart.get(v), *leaving.get(v, ())) for v in values})
        self.ops = _numbered({op: (op.name, op.attrs, op.phase, id(op) if op.regions else 0) for op in ops})
        self._look_around(distance)
        counts: Counter[int] = Counter()
        turns: dict[Value, int] = {}
        for value, number in self.values.items():
            if kinds.get(value) == "parameter":
                turns[value] = counts[number] % 2
                counts[number] += 1
        self.values = _numbered({value: (number, turns.get(value)) for value, number in self.values.items()})
        self._look_around(distance)

    def _look_around(self, distance: float) -> None:
        """Tell apart what has other things around it."""
        known = 0
        while known < len(set(self.values.values())) and distance > 0:
            known, distance = len(set(self.values.values())), distance - 1
            of, value_of = self.ops, self.values
            self.ops = of = _numbered({op: (of[op], *(value_of[v] for v in (*op.operands, *op.results))) for op in of})
            around = {}
            for value, number in value_of.items():
                maker = self._made.get(value)
                users = sorted((of[op], place) for op, place in self._used.get(value, ()))
                around[value] = (number, (of[maker[0]], maker[1]) if maker else None, *users)
            self.values = _numbered(around)


def _leaving(program: Program) -> dict[Value, list[str]]:
    """Return what values are to the world outside of the step."""
    found: dict[Value, list[str]] = {}
    for item in program.outputs:
        found.setdefault(item.value, []).append("output")
    names = {item.name: item.value for item in program.inputs}
    for name, value in program.gradients:
        found.setdefault(value, []).append("gradient")
        if name in names:
            found.setdefault(names[name], []).append("has gradient")
    return found


def _numbered(keys: Mapping[Item, tuple[Hashable, ...]]) -> dict[Item, int]:
    """Return a number for each item, the same for the same key."""
    numbers: dict[tuple[Hashable, ...], int] = {}
    return {item: numbers.setdefault(key, len(numbers)) for item, key in keys.items()}
