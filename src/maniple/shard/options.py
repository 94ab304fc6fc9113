"""How an op can be divided along one mesh axis: by a factor, by partial sums, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maniple.ir.program import Op, Value
from maniple.mesh.sharding import AxisPart, Pending, Sharding
from maniple.ops import FactorRule, definition
from maniple.ops.factors import Dim


@dataclass(frozen=True, slots=True)
class Split:
    """One dim split along the axis; `blocks` and `unit` as in `AxisPart`."""

    dim: int
    blocks: int = 1
    unit: int = 1


Along = Split | Pending | None
"""The layout of a value along one axis: split, pending, or replicated."""


def along(sharding: Sharding, axis: str) -> Along:
    """Return the layout along one axis."""
    found = sharding.along(axis)
    if isinstance(found, tuple):
        dim, part = found
        return Split(dim, part.blocks, part.unit)
    return found


def lay(sharding: Sharding, axis: str, layout: Along) -> Sharding:
    """Return `sharding` with `axis`, over which it is replicated, laid out as `layout`."""
    if isinstance(layout, Split):
        return sharding.split(layout.dim, AxisPart(axis, layout.blocks, layout.unit))
    return sharding if layout is None else sharding.with_pending(axis, layout)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run an op along an axis.

    Attributes:
        name: the factor that is split, `replicated`, or `pending`.
        operands: layout that each operand must have.
        results: layout that each result then has.
        expands: whether the op's kernel cannot do it, so that its decomposition must stand in.
    """

    name: str
    operands: tuple[Along, ...]
    results: tuple[Along, ...]
    expands: bool = False

    @property
    def divides(self) -> bool:
        """Whether each device does only its share of the work."""
        return self.name not in ("replicated", "pending")


def replicated(op: Op) -> Option:
    """Return the option that every device computes the whole op."""
    return Option("replicated", (None,) * len(op.operands), (None,) * len(op.results))


def pending_options(op: Op, kind: Pending = "sum") -> Iterator[Option]:
    """Yield the options that let partial results pass through `op`, one for each set of operands it is linear in."""
    row = definition(op.name)
    sets = row.linear(op)
    if kind != "sum":
        sets = tuple(numbers for numbers in sets if row.moves_data)
    for numbers in sets:
        operands = tuple(kind if i in numbers else None for i in range(len(op.operands)))
        yield Option("pending", operands, (kind,) * len(op.results))


def canonical(n: int, blocks: int, unit: int, ways: int) -> tuple[int, int]:
    """Return the smallest unit with the same shard boundaries, for a dim of `n` split in `ways`.

    >>> canonical(768, 1, 64, 2), canonical(768, 1, 64, 8)
    ((1, 1), (1, 64))
    """
    size = n // blocks
    chunk = -(-(size // unit) // ways) * unit
    for smaller in range(1, unit):
        if unit % smaller == 0 and -(-(size // smaller) // ways) * smaller == chunk:
            return blocks, smaller
    return blocks, unit


def split_factor(op: Op, rule: FactorRule, factor: str, ways: int, *, blocks: int = 1, unit: int = 1) -> Option | None:
    """Return the option that splits `factor`, itself seen as `blocks x m x unit`; None if that cannot be.

    A factor in `rule.whole` gives an option that expands, if the op has a decomposition.
    """
    row = definition(op.name)
    size = rule.sizes[factor]
    if size % (blocks * unit) or size < 2 * blocks * unit:
        return None
    if blocks > 1 and factor in row.offsets(op):
        return None
    expands = factor in rule.whole
    if expands and row.decompose is None:
        return None

    def laid(dims: tuple[Dim, ...], shape: tuple[int, ...]) -> Along:
        for at, dim in enumerate(dims):
            if factor in dim:
                outer, inner = rule.outer_inner(dim, factor)
                return Split(at, *canonical(shape[at], outer * blocks, inner * unit, ways))
        return None

    operands = tuple(laid(dims, v.type.shape) for dims, v in zip(rule.operands, op.operands, strict=True))
    missing: Along = None if expands else rule.reduce.get(factor, "sum")
    in_operands = any(layout is not None for layout in operands)
    results = tuple(
        laid(dims, v.type.shape) or (missing if in_operands else None) for dims, v in zip(rule.results, op.results, strict=True)
    )
    return Option(factor, operands, results, expands)


def factors_of(rule: FactorRule, dims: tuple[Dim, ...], shape: Sequence[int], split: Split, ways: int) -> Iterator[tuple[str, int, int]]:
    """Yield each (factor, blocks, unit) whose split lays a value with these dims out as `split`."""
    dim = dims[split.dim]
    n = shape[split.dim]
    for factor in dim:
        outer, inner = rule.outer_inner(dim, factor)
        if split.blocks % outer:
            continue
        blocks = split.blocks // outer
        for unit in dict.fromkeys((split.unit // inner if split.unit % inner == 0 else 1, 1)):
            if rule.sizes[factor] % (blocks * unit) or rule.sizes[factor] < 2 * blocks * unit:
                continue
            if canonical(n, outer * blocks, inner * unit, ways) == (split.blocks, split.unit):
                yield factor, blocks, unit
                break


def following(op: Op, rule: FactorRule, operand: int, split: Split, ways: int) -> Iterator[Option]:
    """Yield the options that keep operand number `operand` split as it is."""
    yield from _splitting(op, rule, rule.operands[operand], op.operands[operand], split, ways)


def making(op: Op, rule: FactorRule, result: int, split: Split, ways: int) -> Iterator[Option]:
    """Yield the options that make result number `result` split like `split`."""
    yield from _splitting(op, rule, rule.results[result], op.results[result], split, ways)


def _splitting(op: Op, rule: FactorRule, dims: tuple[Dim, ...], value: Value, split: Split, ways: int) -> Iterator[Option]:
    for factor, blocks, unit in factors_of(rule, dims, value.type.shape, split, ways):
        option = split_factor(op, rule, factor, ways, blocks=blocks, unit=unit)
        if option is not None:
            yield option
