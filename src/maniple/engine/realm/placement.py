"""Where the data of a graph lies while a step runs, and how each point reaches its parts: decided once for all steps.

Tensors lie in numbered slots. An input has one slot, the whole tensor, of which points read views. What one point writes of a buffer is
a *piece*, a tensor as the body made it, if every reader finds what it wants in one piece. Otherwise the pieces are put into one
*allocation*, which is kept between steps; its parts that points touch are views, made once, in slots of their own. What is written to an
input, new state, goes into the caller's tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from maniple.base.errors import EngineError
from maniple.mesh.sharding import Pending, Sharding
from maniple.taskgraph.graph import Access, Buffer, Part, Task, TaskGraph
from maniple.taskgraph.regions import InstanceKey, Memory, Region, pieces, region_of, region_shape
from maniple.taskgraph.storage import in_pieces

Index = tuple[slice, ...]
"""A rectangle of a tensor."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a point finds a tensor: in a slot, or a rectangle of what is there."""

    slot: int
    index: Index | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """A new tensor put together from copies, each of a source into a rectangle."""

    shape: tuple[int, ...]
    dtype: str
    copies: tuple[tuple[Source, Index], ...]


Read = Source | Gather


@dataclass(frozen=True, slots=True)
class Combine:
    """Partial results to be combined in the order given."""

    kind: Pending
    partials: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Where a point leaves a tensor of `shape`.

    Attributes:
        slot: where it is put as it is; -1 if it goes into memory that is there.
        target: memory that takes it whole.
        copies: otherwise, each rectangle of it and the memory that takes that.
        is_update: whether that memory is the caller's.
    """

    buffer: str
    shape: tuple[int, ...]
    slot: int = -1
    target: Source | None = None
    copies: tuple[tuple[Index, Source], ...] = ()
    is_update: bool = False


@dataclass(slots=True)
class Allocation:
    """A tensor kept between steps.

    Attributes:
        returned: whether the caller gets it, and may keep it.
        views: slot of each rectangle that points touch.
    """

    shape: tuple[int, ...]
    dtype: str
    returned: bool
    views: dict[int, Index] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor that holds `region`."""

    region: Region
    slot: int
    allocation: Allocation | None = None
    is_input: bool = False


class Placement:
    """The slots of a graph.

    Attributes:
        inputs: slot of each input, by the input's name.
        temporary: slots that hold a body's result; the others are set before a step begins.
        allocations: tensors kept between steps.
        names: buffer of each slot.
        updated: slots of inputs that tasks write to.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Decide for every buffer of `graph`.

        Raises:
            EngineError: if a task writes to an input of which every device has an instance of its own.
        """
        self.graph, self.memory = graph, Memory(graph.mesh, graph.shared)
        self.points = list(graph.mesh.points())
        self.inputs: dict[str, int] = {}
        self.temporary: set[int] = set()
        self.allocations: list[Allocation] = []
        self.names: list[str] = []
        self.updated: set[int] = set()
        self._buffers = {buffer.name: buffer for buffer in graph.buffers}
        self._regions: dict[tuple[str, Sharding, int], Region] = {}
        self._places: dict[tuple[str, InstanceKey], list[_Place]] = {}
        self._view_slots: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        self._place_inputs()
        self._place_written()

    @property
    def num_slots(self) -> int:
        """Number of slots."""
        return len(self.names)

    def read(self, access: Access, device: int) -> Read | Combine:
        """Return how `device` gets what it reads.

        Raises:
            EngineError: if nothing writes it.
        """
        return self._read(self._buffers[access.buffer], access.part, device)

    def whole(self, name: str) -> Read | Combine:
        """Return how to get the global tensor of buffer `name`."""
        buffer = self._buffers[name]
        return self._read(buffer, _whole(buffer), 0)

    def write(self, task: Task, access: Access, device: int) -> Write | None:
        """Return where `device` leaves what it writes; None if another device is the writer."""
        point = self.points[device]
        if not self.memory.writes(task, access, point):
            return None
        buffer = self._buffers[access.buffer]
        region = self._region(buffer, access.part.sharding, device)
        shape = access.part.sharding.local_shape(buffer.type.shape, self.memory.mesh, point)
        places = self._places[buffer.name, self.memory.instance(buffer, point)]
        for place in places:
            if place.allocation is None and not place.is_input and place.region == region:
                return Write(buffer.name, shape, place.slot)
        copies = [
            (source, self._source(place, target))
            for place in places
            if place.allocation is not None or place.is_input
            for source, target in _rectangles(region, place.region)
        ]
        is_update = any(place.is_input for place in places)
        if len(copies) == 1 and _covers(copies[0][0], shape):
            return Write(buffer.name, shape, target=copies[0][1], is_update=is_update)
        return Write(buffer.name, shape, copies=tuple(copies), is_update=is_update)

    def _new_slot(self, buffer: str) -> int:
        self.names.append(buffer)
        return len(self.names) - 1

    def _slot_of(self, index: Index, place: _Place) -> int:
        """Return the slot of a rectangle of an allocation."""
        assert place.allocation is not None
        key = (place.slot, tuple((s.start, s.stop) for s in index))
        if key not in self._view_slots:
            self._view_slots[key] = self._new_slot(self.names[place.slot])
            place.allocation.views[self._view_slots[key]] = index
        return self._view_slots[key]

    def _region(self, buffer: Buffer, sharding: Sharding, device: int) -> Region:
        key = (buffer.name, sharding, device)
        if key not in self._regions:
            self._regions[key] = region_of(buffer.type.shape, sharding, self.memory.mesh, self.points[device])
        return self._regions[key]

    def _keys(self, buffer: Buffer) -> Iterable[InstanceKey]:
        return dict.fromkeys(self.memory.instance(buffer, point) for point in self.points)

    def _place_inputs(self) -> None:
        for name, source in self.graph.inputs:
            buffer = self._buffers[name]
            self.inputs[source] = self._new_slot(name)
            place = _Place(tuple(((0, n),) if n else () for n in buffer.type.shape), self.inputs[source], is_input=True)
            self._places.update(((name, key), [place]) for key in self._keys(buffer))

    def _place_written(self) -> None:
        written: dict[tuple[str, InstanceKey], list[Region]] = {}
        for task, device in itertools.product(self.graph.tasks, range(len(self.points))):
            point = self.points[device]
            for access in task.accesses:
                if access.privilege == "write" and self.memory.writes(task, access, point):
                    buffer = self._buffers[access.buffer]
                    region = self._region(buffer, access.part.sharding, device)
                    written.setdefault((buffer.name, self.memory.instance(buffer, point)), []).append(region)
        returned, apart = {name for name, _ in self.graph.outputs}, in_pieces(self.graph)
        for (name, key), regions in written.items():
            if (name, key) in self._places:
                self._update(name)
                continue
            if name in apart:
                self._places[name, key] = [_Place(region, self._new_slot(name)) for region in regions if _size(region)]
                self.temporary.update(place.slot for place in self._places[name, key])
            else:
                self._places[name, key] = [self._allocate(name, key, returned=name in returned)]

    def _update(self, name: str) -> None:
        """Note that a task writes to the input that is buffer `name`."""
        if self.memory.separate_axes(self._buffers[name].sharding):
            what = f"a task updates input {name}, of which the devices of {self.memory.mesh} have instances of their own"
            raise EngineError(what, hint="lower the program with the shared axes of the engine")
        self.updated.add(next(self.inputs[source] for buffer, source in self.graph.inputs if buffer == name))

    def _allocate(self, name: str, key: InstanceKey, *, returned: bool) -> _Place:
        buffer = self._buffers[name]
        held = self.memory.held(buffer, key)
        slot = self._new_slot(name)
        allocation = Allocation(region_shape(held), buffer.type.dtype, returned)
        allocation.views[slot] = tuple(slice(0, n) for n in allocation.shape)
        self.allocations.append(allocation)
        return _Place(held, slot, allocation)

    def _groups(self, buffer: Buffer, part: Part, device: int) -> list[list[InstanceKey]]:
        """Return the instances that a read touches, in one group for each partial result."""
        combined = {axis for axis, _ in buffer.sharding.pending} & set(part.peers)
        groups: dict[InstanceKey, list[InstanceKey]] = {}
        for key in self.memory.touched(buffer, part, self.points[device]):
            groups.setdefault(tuple(item for item in key if item[0] in combined), []).append(key)
        return list(groups.values())

    def _read(self, buffer: Buffer, part: Part, device: int) -> Read | Combine:
        kinds = {kind for axis, kind in buffer.sharding.pending if axis in part.peers}
        if len(kinds) > 1:
            raise EngineError(f"buffer {buffer.name} is pending in two ways at once: {buffer.sharding}")
        wanted = self._region(buffer, part.sharding, device)
        partials = []
        for keys in self._groups(buffer, part, device):
            missing = [key for key in keys if (buffer.name, key) not in self._places]
            if missing:
                raise EngineError(f"buffer {buffer.name} is read at {dict(missing[0])} before it is written")
            partials.append(self._find(buffer, wanted, [place for key in keys for place in self._places[buffer.name, key]]))
        return Combine(kinds.pop(), tuple(partials)) if kinds and len(partials) > 1 else partials[0]

    def _find(self, buffer: Buffer, wanted: Region, places: Sequence[_Place]) -> Read:
        for place in places:
            index = rectangle(wanted, place.region)
            if index is not None:
                return self._source(place, index)
        copies = []
        for place in places:
            copies += [(self._source(place, have), want) for have, want in _rectangles(place.region, wanted)]
        return Gather(region_shape(wanted), buffer.type.dtype, tuple(copies))

    def _source(self, place: _Place, index: Index) -> Source:
        if _covers(index, region_shape(place.region)):
            return Source(place.slot)
        return Source(place.slot, index) if place.allocation is None else Source(self._slot_of(index, place))


def _whole(buffer: Buffer) -> Part:
    return Part(Sharding.replicated(buffer.type.rank), tuple(sorted(buffer.sharding.axes)))


def _covers(index: Index, shape: tuple[int, ...]) -> bool:
    """Return whether a rectangle is all of a tensor."""
    return all(s.stop - s.start == n for s, n in zip(index, shape, strict=True))


def _size(region: Region) -> int:
    return math.prod(region_shape(region))


def rectangle(wanted: Region, have: Region) -> Index | None:
    """Return where the elements of `wanted` lie in a dense tensor of `have`, if they lie in one rectangle.

    >>> rectangle((((2, 4),),), (((0, 2), (2, 8)),))
    (slice(2, 4, None),)
    """
    if not _size(wanted):
        return None
    index = []
    for want, has in zip(wanted, have, strict=True):
        found = pieces(has, want)
        size = sum(hi - lo for lo, hi in want)
        if sum(n for _, _, n in found) != size or found[-1][0] + found[-1][2] - found[0][0] != size:
            return None
        index.append(slice(found[0][0], found[0][0] + size))
    return tuple(index)


def _rectangles(first: Region, second: Region) -> Iterator[tuple[Index, Index]]:
    """Yield the common elements of two regions as pairs of rectangles of the dense tensors that hold them."""
    for piece in itertools.product(*(pieces(a, b) for a, b in zip(first, second, strict=True))):
        yield tuple(slice(at, at + n) for at, _, n in piece), tuple(slice(at, at + n) for _, at, n in piece)
