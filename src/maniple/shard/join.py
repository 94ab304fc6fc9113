"""Joins the choices along several axes to shardings, and finds where two axes cannot both have their way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from maniple.ir.program import Op
from maniple.mesh import Mesh, Sharding
from maniple.ops import FactorRule, definition
from maniple.ops.factors import Dim
from maniple.shard.options import Along, Option, Split, lay, replicated


def compatible(
    op: Op, chosen: Mapping[str, Option], order: Sequence[str], mesh: Mesh
) -> tuple[dict[str, Option], list[Sharding], list[Sharding]]:
    """Return options that hold at once, with the layouts of operands and results that follow.

    Args:
        op: an op of the unsharded program.
        chosen: its option along each axis.
        order: axes from major to minor. Where two cannot share a dim, the later one computes the op whole.
        mesh: sizes of the axes.
    """
    rule = definition(op.name).factors(op)
    kept: dict[str, Option] = {}
    for axis in order:
        if axis in chosen:
            fits = _fits(op, rule, {**kept, axis: chosen[axis]}, mesh)
            kept[axis] = chosen[axis] if fits else replicated(op)
    operands = [_join(v.type.rank, {a: option.operands[i] for a, option in kept.items()}) for i, v in enumerate(op.operands)]
    results = [_join(v.type.rank, {a: option.results[i] for a, option in kept.items()}) for i, v in enumerate(op.results)]
    return kept, operands, results


def _join(rank: int, layouts: Mapping[str, Along]) -> Sharding:
    sharding = Sharding.replicated(rank)
    for axis, layout in layouts.items():
        sharding = lay(sharding, axis, layout)
    return sharding


def _fits(op: Op, rule: FactorRule, chosen: Mapping[str, Option], mesh: Mesh) -> bool:
    """Return whether options can hold at once: axes that split one dim must cut it into the same blocks and units.

    In a dim of several factors they must also divide the factor evenly, so that every boundary falls between its elements.
    """
    layouts = {axis: (*option.operands, *option.results) for axis, option in chosen.items()}
    sides = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
    for i, (value, dims) in enumerate(sides):
        splits: dict[int, list[tuple[str, Split]]] = {}
        for axis in chosen:
            layout = layouts[axis][i]
            if isinstance(layout, Split):
                splits.setdefault(layout.dim, []).append((axis, layout))
        for at, shared in splits.items():
            if len({(split.blocks, split.unit) for _, split in shared}) > 1:
                return False
            ways = math.prod(mesh.size(axis) for axis, _ in shared)
            axis, split = shared[0]
            if len(shared) > 1 and len(dims[at]) > 1:
                granules = _granules(rule, dims[at], chosen[axis].name, split)
                if not granules or granules % ways or value.type.shape[at] % ways:
                    return False
    return True


def _granules(rule: FactorRule, dim: Dim, factor: str, split: Split) -> int:
    """Return how many units of `factor` a block of it has, as `split` sees them; 0 where it is not of whole units."""
    if factor not in dim:
        return 0
    outer, inner = rule.outer_inner(dim, factor)
    granule = max(split.blocks // outer, 1) * max(split.unit // inner, 1)
    return 0 if rule.sizes[factor] % granule else rule.sizes[factor] // granule
