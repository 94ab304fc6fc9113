"""Reads and writes regions of a buffer's instances: pieces from several instances put together, partial results combined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from maniple.engine.tensors import COMBINERS
from maniple.mesh.sharding import Pending
from maniple.taskgraph.regions import Region, pieces, region_shape


@dataclass(slots=True)
class Instance:
    """One allocation of a buffer: a dense tensor with the elements of `region`.

    Attributes:
        owned: whether nothing else shares the tensor's memory, so that it may be written to.
    """

    tensor: torch.Tensor
    region: Region
    owned: bool = False


def gather(wanted: Region, instances: Sequence[Instance]) -> torch.Tensor:
    """Return the elements of `wanted` as one dense tensor; a view if one instance holds them side by side.

    Args:
        wanted: region to read.
        instances: at least one; together they hold the region. Where several hold an element, the last one counts.
    """
    for instance in instances:
        view = _view(wanted, instance)
        if view is not None:
            return view
    result = instances[0].tensor.new_empty(region_shape(wanted))
    for instance in instances:
        _copy(instance.tensor, instance.region, result, wanted)
    return result


def combine(kind: Pending, partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum, maximum or minimum of partial results, taken in the order given."""
    combiner = COMBINERS[kind]
    result = partials[0]
    for partial in partials[1:]:
        result = combiner(result, partial)
    return result


def scatter(tensor: torch.Tensor, region: Region, held: Region, old: Instance | None) -> Instance:
    """Return the instance that holds `held`, with `tensor` in the place of `region`.

    Args:
        tensor: dense elements of `region`.
        region: where they belong; part of `held`.
        held: region of the whole instance.
        old: what the instance held so far; changed in place if it owns its memory.
    """
    if region == held:
        return Instance(tensor, held)
    if old is None:
        old = Instance(tensor.new_empty(region_shape(held)), held, owned=True)
    elif not old.owned:
        old = Instance(old.tensor.clone(), held, owned=True)
    _copy(tensor, region, old.tensor, held)
    return old


def _view(wanted: Region, instance: Instance) -> torch.Tensor | None:
    if wanted == instance.region:
        return instance.tensor
    view = instance.tensor
    for dim, (want, have) in enumerate(zip(wanted, instance.region, strict=True)):
        if want == have:
            continue
        found = pieces(have, want)
        if len(found) != 1 or found[0][2] != sum(hi - lo for lo, hi in want):
            return None
        view = view.narrow(dim, found[0][0], found[0][2])
    return view


def _copy(source: torch.Tensor, source_region: Region, target: torch.Tensor, target_region: Region) -> None:
    dims = [pieces(a, b) for a, b in zip(source_region, target_region, strict=True)]
    for piece in itertools.product(*dims):
        source_view, target_view = source, target
        for dim, (at_source, at_target, size) in enumerate(piece):
            source_view = source_view.narrow(dim, at_source, size)
            target_view = target_view.narrow(dim, at_target, size)
        target_view.copy_(source_view)
