"""What an access means: which instances of a buffer a point touches, and which elements of them.

An *instance* is one allocation of a buffer. Devices along an axis of private memory have one each; devices along a shared axis have one
together, unless the buffer is pending along it: then each has its own partial result. A *region* is, per dim, the ascending ranges of
global indices; the elements of a region lie densely in that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from maniple.mesh.mesh import Mesh, Point
from maniple.mesh.sharding import AxisPart, Interval, Sharding, intervals
from maniple.taskgraph.graph import Access, Buffer, Part, Task

Region = tuple[tuple[Interval, ...], ...]
"""Per dim the ranges of global indices: ascending, not empty, not touching each other."""

InstanceKey = tuple[tuple[str, int], ...]
"""Which instance of a buffer: an index for each axis along which instances are separate."""


def normal(ranges: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the union of `ranges`, ascending, with empty ones dropped and touching ones joined.

    >>> normal([(4, 6), (0, 2), (2, 3), (5, 5)])
    ((0, 3), (4, 6))
    """
    merged: list[Interval] = []
    for lo, hi in sorted(ranges):
        if lo >= hi:
            continue
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return tuple(merged)


def length(ranges: Iterable[Interval]) -> int:
    """Return the number of indices in `ranges`."""
    return sum(hi - lo for lo, hi in ranges)


def region_shape(region: Region) -> tuple[int, ...]:
    """Return the shape of the dense array that holds `region`."""
    return tuple(length(ranges) for ranges in region)


def pieces(first: tuple[Interval, ...], second: tuple[Interval, ...]) -> list[tuple[int, int, int]]:
    """Return the common indices of two normal lists of ranges as (position in first, position in second, length).

    >>> pieces(((0, 4), (8, 12)), ((2, 10),))
    [(2, 0, 2), (4, 6, 2)]
    """
    found = []
    i = j = base_i = base_j = 0
    while i < len(first) and j < len(second):
        (lo1, hi1), (lo2, hi2) = first[i], second[j]
        lo, hi = max(lo1, lo2), min(hi1, hi2)
        if lo < hi:
            found.append((base_i + lo - lo1, base_j + lo - lo2, hi - lo))
        if hi1 <= hi2:
            i, base_i = i + 1, base_i + hi1 - lo1
        else:
            j, base_j = j + 1, base_j + hi2 - lo2
    return found


def common_elements(first: Region, second: Region) -> int:
    """Return the number of elements that two regions have in common."""
    return math.prod(sum(n for _, _, n in pieces(a, b)) for a, b in zip(first, second, strict=True))


def region_of(shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, point: Point) -> Region:
    """Return the region that the device at `point` has of a tensor of `shape` under `sharding`."""
    return tuple(normal(ranges) for ranges in sharding.region(shape, mesh, point))


@dataclass(frozen=True, slots=True)
class Memory:
    """Devices and the axes along which they share memory."""

    mesh: Mesh
    shared: tuple[str, ...]

    def separate_axes(self, sharding: Sharding) -> tuple[str, ...]:
        """Return the axes along which a buffer stored under `sharding` has one instance per index."""
        pending = dict(sharding.pending)
        return tuple(axis for axis in self.mesh.names if axis not in self.shared or axis in pending)

    def instance(self, buffer: Buffer, point: Point) -> InstanceKey:
        """Return the instance that the device at `point` writes to."""
        return tuple((axis, point[axis]) for axis in self.separate_axes(buffer.sharding))

    def touched(self, buffer: Buffer, part: Part, point: Point) -> Iterator[InstanceKey]:
        """Yield the instances that the device at `point` may touch through `part`, in device order."""
        axes = self.separate_axes(buffer.sharding)
        ranges = (range(self.mesh.size(axis)) if axis in part.peers else (point[axis],) for axis in axes)
        for index in itertools.product(*ranges):
            yield tuple(zip(axes, index, strict=True))

    def held(self, buffer: Buffer, key: InstanceKey) -> Region:
        """Return the region that an instance holds."""
        dims = zip(buffer.type.shape, buffer.sharding.dims, strict=True)
        return tuple(self._held_dim(n, parts, dict(key)) for n, parts in dims)

    def _held_dim(self, n: int, parts: tuple[AxisPart, ...], point: Point) -> tuple[Interval, ...]:
        while parts and parts[-1].axis not in point:  # the most minor shards of one allocation lie side by side
            parts = parts[:-1]
        free = tuple(part.axis for part in parts if part.axis not in point)
        return normal(item for whole in self.mesh.group(point, free) for item in intervals(n, parts, self.mesh, whole))

    def writes(self, task: Task, access: Access, point: Point) -> bool:
        """Return whether the device at `point` is the one that makes the write: the first one along `once` axes that do not split it."""
        split = access.part.sharding.axes
        return all(point[axis] == 0 or axis in split for axis in task.once)
