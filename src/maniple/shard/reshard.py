"""The cheapest sequence of layout changes from one sharding to another."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from maniple.base.errors import ShardingError
from maniple.base.types import TensorType
from maniple.mesh import Mesh, Sharding
from maniple.shard.cost import CostModel


@dataclass(frozen=True, slots=True)
class Change:
    """One layout change: an op of `ops/collectives.py` along one axis, and the layout after it."""

    kind: str
    axis: str
    after: Sharding


def reshard(source: Sharding, target: Sharding, kind: TensorType, mesh: Mesh, cost: CostModel) -> tuple[tuple[Change, ...], float]:
    """Return the cheapest sequence of changes from `source` to `target`, and its time in seconds.

    Shortest path over the layouts that differ from `source` only where `target` does.

    Raises:
        ShardingError: if no sequence leads there.
    """
    order = itertools.count()
    queue: list[tuple[float, int, int, Sharding, tuple[Change, ...]]] = [(0.0, 0, next(order), source, ())]
    done: set[Sharding] = set()
    while queue:
        seconds, length, _, layout, path = heapq.heappop(queue)
        if layout == target:
            return path, seconds
        if layout in done:
            continue
        done.add(layout)
        for change in changes(layout, target):
            if change.after not in done:
                step_s = change_s(layout, change, kind, mesh, cost)
                heapq.heappush(queue, (seconds + step_s, length + 1, next(order), change.after, (*path, change)))
    raise ShardingError(f"no sequence of collectives leads from {source} to {target}")


def change_s(before: Sharding, change: Change, kind: TensorType, mesh: Mesh, cost: CostModel) -> float:
    """Return the time of one change of a value of type `kind` laid out as `before`."""
    return cost.collective_s(change.kind, change_bytes(before, change, kind, mesh), mesh.size(change.axis))


def change_bytes(before: Sharding, change: Change, kind: TensorType, mesh: Mesh) -> int:
    """Return the bytes that the first device holds of the operand; of the result for all_gather."""
    held = change.after if change.kind == "all_gather" else before
    return kind.with_shape(held.local_shape(kind.shape, mesh)).num_bytes


def changes(layout: Sharding, target: Sharding) -> Iterator[Change]:
    """Yield the single changes that may lead from `layout` towards `target`."""
    for axis in sorted(layout.axes | target.axes):
        here, there = layout.along(axis), target.along(axis)
        if here == there and layout.dims == target.dims:
            continue
        bare = layout.without(axis)
        if isinstance(here, str):  # pending
            if here != there:
                yield Change("all_reduce", axis, bare)
                yield from _splits("reduce_scatter", axis, bare, target)
        elif here is None:
            if isinstance(there, str):
                if there == "sum":
                    yield Change("to_pending", axis, bare.with_pending(axis, there))
            else:
                yield from _splits("shard_slice", axis, bare, target)
        elif layout.dims[here[0]][-1].axis == axis:
            yield Change("all_gather", axis, bare)
            yield from _splits("all_to_all", axis, bare, target)


def _splits(name: str, axis: str, bare: Sharding, target: Sharding) -> Iterator[Change]:
    """Yield the change that splits `axis` as `target` does, if the axes before it on that dim are in place."""
    there = target.along(axis)
    if not isinstance(there, tuple):
        return
    dim, part = there
    at = target.dims[dim].index(part)
    if bare.dims[dim] == target.dims[dim][:at]:
        yield Change(name, axis, bare.split(dim, part))
