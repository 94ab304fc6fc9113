"""Which results are written over the inputs whose new values they are: state is updated where it lies.

An output that bears the name of a parameter, a buffer or optimizer state is that state's new value. The task of the update that makes it
writes it into the input's buffer, if no point may then read what another has overwritten; otherwise the result keeps a buffer of its own,
and whoever runs the step copies it at the end. What forward and backward make, such as running statistics, is always copied: a step
that fails before its update leaves all state as it was.

Contract: bitwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from maniple.ir.program import Op, Program, Value
from maniple.lower.memory import Home, Realisation
from maniple.lower.segments import Item, Segment
from maniple.mesh.mesh import Mesh

_STATE: Final = frozenset({"parameter", "buffer", "optimizer"})


def update_in_place(program: Program, realisation: Realisation, items: Sequence[Item], mesh: Mesh, shared: tuple[str, ...]) -> None:
    """Change the homes of new state to the inputs that hold the old, where that is safe.

    Args:
        program: sharded.
        realisation: of `program`; changed.
        items: segments and collectives, in the order in which they are issued.
        mesh: the devices.
        shared: axes along which devices share memory.
    """
    old = {item.name: item.value for item in program.inputs if item.kind in _STATE}
    homes, inputs = realisation.homes, {item.value for item in program.inputs}
    ends = {item.name: homes[item.value].value for item in program.outputs}
    readers = _readers(items, realisation)
    makers = {value: number for number, item in enumerate(items) for value in _made(item)}
    apart = tuple(axis for axis in mesh.names if axis not in shared)
    together = frozenset(axis for axis in shared if mesh.size(axis) > 1)
    pairs: dict[Value, Value] = {}
    for name, new in ends.items():
        state = old.get(name)
        if state is None or new in inputs or new in pairs or new.type != state.type:
            continue
        stored, wanted = homes[new].sharding, homes[state].sharding
        same = not stored.pending and all(stored.along(axis) == wanted.along(axis) for axis in apart)
        kept = any(end is state and other != name for other, end in ends.items())
        late = items[makers[new]].phase == "update"
        if same and late and not kept and _last_read(makers[new], items[makers[new]], new, readers.get(state, ()), together):
            pairs[new] = state
    for value, home in list(homes.items()):
        if home.value in pairs:
            realisation.written.setdefault(home.value, home.sharding)
            homes[value] = Home(pairs[home.value], homes[pairs[home.value]].sharding)


def _last_read(maker: int, item: Item, new: Value, readers: Iterable[tuple[int, Value]], together: frozenset[str]) -> bool:
    """Return whether all points have read the old state when the one that makes `new` writes.

    Those that read it in the same task must read what they write, and nobody else may write that.
    """
    for number, value in readers:
        if number > maker:
            return False
        if number == maker:
            own = isinstance(item, Segment) and value.layout.dims == new.layout.dims and together <= new.layout.axes
            if not own:
                return False
    return True


def _readers(items: Sequence[Item], realisation: Realisation) -> dict[Value, list[tuple[int, Value]]]:
    """Return who reads each buffer: number of the item, and the value as it reads it."""
    found: dict[Value, list[tuple[int, Value]]] = {}
    for number, item in enumerate(items):
        made = set(_made(item)) if isinstance(item, Segment) else set()
        operands = dict.fromkeys(value for op in _ops(item) for value in op.operands if value not in made)
        for value in operands:
            found.setdefault(realisation.homes[value].value, []).append((number, value))
    return found


def _ops(item: Item) -> tuple[Op, ...]:
    return item.ops if isinstance(item, Segment) else (item,)


def _made(item: Item) -> Iterable[Value]:
    return (value for op in _ops(item) for value in op.results)
