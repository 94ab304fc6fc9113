"""The choice for one op along one axis when no solver made it: follow the operands, at the least cost.

Propagation never begins a split of its own. Candidates are the factors along which some operand already lies split, letting a
partial result pass, and computing the whole op everywhere. A candidate costs the time to bring the operands into place, the time to
compute its share, and, if it leaves a partial result, the time to combine that one later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from maniple.base.types import TensorType
from maniple.ir.program import Op, Value
from maniple.mesh.sharding import Pending
from maniple.ops import definition
from maniple.shard.cost import CostModel
from maniple.shard.options import Along, Option, Split, following, pending_options, replicated


@dataclass(frozen=True, slots=True)
class Operand:
    """What is at hand of one operand along the axis.

    Attributes:
        layouts: layouts along the axis in which the value exists already.
        num_bytes: bytes of the value divided by what the other axes split.
        is_weak: whether it is a parameter to be gathered for use, so that its split is not followed.
        is_free: whether any layout of it can be made without communication.
    """

    layouts: tuple[Along, ...]
    num_bytes: float
    is_weak: bool
    is_free: bool


def follow(op: Op, operands: Sequence[Operand], ways: int, cost: CostModel) -> Option:
    """Return the cheapest option for `op` along an axis of `ways` devices."""
    flops = definition(op.name).flops(op)
    best: tuple[float, int] | None = None
    choice = replicated(op)
    for rank, option in enumerate(_candidates(op, operands, ways)):
        seconds = cost.compute_s(flops / ways if option.divides else flops)
        pairs = {(v, want): have for v, have, want in zip(op.operands, operands, option.operands, strict=True)}
        seconds += sum(move_s(have, want, ways, cost) for (_, want), have in pairs.items())
        for value, layout in zip(op.results, option.results, strict=True):
            if isinstance(layout, str) and not option.expands:
                seconds += cost.collective_s("all_reduce", _bytes_like(value.type, op, operands), ways)
        if best is None or (seconds, rank) < best:
            best, choice = (seconds, rank), option
    return choice


def _bytes_like(kind: TensorType, op: Op, operands: Sequence[Operand]) -> float:
    """Return the bytes of a result, divided by the other axes as much as the most divided operand is."""
    shares = [have.num_bytes / v.type.num_bytes for v, have in zip(op.operands, operands, strict=True) if v.type.num_bytes]
    return kind.num_bytes * min(shares, default=1.0)


def move_s(have: Operand, want: Along, ways: int, cost: CostModel) -> float:
    """Return the time to bring an operand into layout `want`."""
    if want in have.layouts or (have.is_free and not isinstance(want, str)):
        return 0.0
    return min(cost.collective_s(change_kind(here, want), _payload(here, want, have, ways), ways) for here in have.layouts)


def change_kind(here: Along, want: Along) -> str:
    """Return the layout change that leads from `here` to `want` along one axis."""
    if isinstance(here, str):
        return "reduce_scatter" if isinstance(want, Split) else "all_reduce"
    if here is None:
        return "to_pending" if isinstance(want, str) else "shard_slice"
    return "all_to_all" if isinstance(want, Split) else "all_gather"


def _payload(here: Along, want: Along, have: Operand, ways: int) -> float:
    return have.num_bytes / ways if isinstance(here, Split) and isinstance(want, Split) else have.num_bytes


def _candidates(op: Op, operands: Sequence[Operand], ways: int) -> Iterator[Option]:
    rule = definition(op.name).factors(op)
    by_size = sorted(range(len(operands)), key=lambda i: -operands[i].num_bytes)
    follows_weak = _only_views_weak(op, operands)
    for i in by_size:
        if operands[i].is_weak and not follows_weak:
            continue
        for layout in operands[i].layouts:
            if isinstance(layout, Split):
                yield from following(op, rule, i, layout, ways)
    if op.phase == "update":  # a gradient is read many times there: combine it once, before
        yield replicated(op)
        return
    kinds: set[Pending] = {layout for have in operands for layout in have.layouts if isinstance(layout, str)}
    for kind in sorted(kinds):
        for option in pending_options(op, kind):
            if all(want is None or kind in have.layouts for have, want in zip(operands, option.operands, strict=True)):
                yield option
    yield replicated(op)


def _only_views_weak(op: Op, operands: Sequence[Operand]) -> bool:
    """Return whether `op` merely reshapes or scales a parameter that is to be gathered: then gather after it, not before."""
    tensors = [have for value, have in zip(op.operands, operands, strict=True) if value.type.rank]
    if definition(op.name).is_contraction or not all(have.is_weak for have in tensors):
        return False
    return max(v.type.num_elements for v in op.results) <= max((v.type.num_elements for v in op.operands), default=0)


def free_axes(op: Op, axes: Iterable[str], is_whole: Callable[[Value, str], bool], free: Mapping[Value, frozenset[str]]) -> frozenset[str]:
    """Return the axes along which the op's result can be made again in any split, on the spot, rather than moved.

    Ops of cheap rows can where their operands are whole along the axis; elementwise and data-moving ops where their operands can.

    Args:
        op: the op.
        axes: all axes.
        is_whole: whether a value is at hand unsplit along an axis.
        free: axes of earlier values.
    """
    row = definition(op.name)
    if row.is_contraction or len(op.results) != 1 or op.regions or row.decompose is not None or not (row.is_cheap or op.operands):
        return frozenset()

    def movable(value: Value, axis: str) -> bool:
        return value.type.rank == 0 or axis in free.get(value, ()) or (row.is_cheap and is_whole(value, axis))

    return frozenset(axis for axis in axes if all(movable(v, axis) for v in op.operands))
