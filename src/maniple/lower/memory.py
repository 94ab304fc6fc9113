"""How collectives are realised, given the axes along which devices share memory.

Where every device has memory of its own, each collective is a task that moves data, and each value is stored as it is laid out. Along a
shared axis a replicated value is stored once and every device can read all of it, so that a change between split and replicated is no
task at all: the result is another part of the operand's buffer. An all-reduce becomes a reduce-scatter into one shared buffer: each
device combines all partial results for its own slice.

Contract: bitwise between memory domains, except that partial sums are always combined in the order of devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from maniple.base.errors import LoweringError
from maniple.ir.program import Op, Program, Value
from maniple.mesh.sharding import AxisPart, Sharding
from maniple.ops.collectives import COMMUNICATING


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value is stored.

    Attributes:
        value: the value that gives the buffer its name: the value itself, or the one of which it is another part.
        sharding: how the buffer is stored.
    """

    value: Value
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Realisation:
    """What lowering decided about memory.

    Attributes:
        homes: of every value.
        peers: for each collective that is a task, the axes along which its points gather or combine; others need no task.
        written: for values written over an input, the layout in which points write them.
    """

    homes: dict[Value, Home] = field(default_factory=dict)
    peers: dict[Op, tuple[str, ...]] = field(default_factory=dict)
    written: dict[Value, Sharding] = field(default_factory=dict)

    def read_in_part(self, op: Op) -> None:
        """Make the result of a `shard_slice`, and what has its home there, other parts of its operand's buffer."""
        (operand,), (result,) = op.operands, op.results
        for value, home in self.homes.items():
            if home.value is result:
                self.homes[value] = self.homes[operand]


def realise(program: Program, shared: tuple[str, ...]) -> Realisation:
    """Return where each value of the sharded `program` is stored and which collectives move data.

    Args:
        program: a sharded program.
        shared: axes along which devices share memory.

    Raises:
        LoweringError: if a layout change that is called local would have to communicate.
    """
    done = Realisation()
    for item in program.inputs:
        done.homes[item.value] = Home(item.value, item.value.layout)
    for op in program.ops:
        if op.name in COMMUNICATING:
            _collective(op, shared, done)
        else:
            done.homes.update((value, Home(value, value.layout)) for value in op.results)
    return done


def _collective(op: Op, shared: tuple[str, ...], done: Realisation) -> None:
    (operand,), (result,) = op.operands, op.results
    home, target = done.homes[operand], result.layout
    if set(target.pending) - set(home.sharding.pending):
        raise LoweringError(f"{op.name} cannot make a value pending: {op!r}", where=op.location)
    combined = {axis for axis, _ in home.sharding.pending} - {axis for axis, _ in target.pending}
    axes = differing_axes(home.sharding, target)
    peers = tuple(axis for axis in axes if axis in combined or axis not in shared)
    if not peers:
        done.homes[result] = home
        return
    for axis in sorted(combined & set(shared)):
        if target.along(axis) is None:
            target = divided(target, axis, result.type.shape)
    done.homes[result] = Home(result, target)
    done.peers[op] = peers


def differing_axes(stored: Sharding, wanted: Sharding) -> tuple[str, ...]:
    """Return the axes along which a device must look beyond its own index to have its region under `wanted`.

    >>> differing_axes(Sharding.parse("{dp.tp,_}"), Sharding.parse("{dp,tp}"))
    ('tp',)
    """
    axes = []
    for have, want in zip(stored.dims, wanted.dims, strict=True):
        same = 0
        while same < min(len(have), len(want)) and have[same] == want[same]:
            same += 1
        axes += [part.axis for part in have[same:]]
    pending = {axis for axis, _ in wanted.pending}
    return tuple(dict.fromkeys([*axes, *(axis for axis, _ in stored.pending if axis not in pending)]))


def divided(sharding: Sharding, axis: str, shape: tuple[int, ...]) -> Sharding:
    """Return `sharding` with `axis` splitting its largest dim, in the units in which that dim is split already.

    A value of rank 0 stays as it is.
    """
    if not shape:
        return sharding
    dim = max(range(len(shape)), key=lambda d: (shape[d], -d))
    parts = sharding.dims[dim]
    part = AxisPart(axis, parts[0].blocks, parts[0].unit) if parts else AxisPart(axis)
    return sharding.split(dim, part)


def check_readable(value: Value, home: Home, shared: tuple[str, ...], op: Op) -> None:
    """Check that each device can read its part of `value` without communication.

    Raises:
        LoweringError: naming the op that makes or reads the value.
    """
    far = [axis for axis in differing_axes(home.sharding, value.layout) if axis not in shared or axis in dict(home.sharding.pending)]
    if far:
        what = f"{op.name} reads {value!r}, of which other devices along {', '.join(far)} hold a part"
        raise LoweringError(what, where=op.location)
