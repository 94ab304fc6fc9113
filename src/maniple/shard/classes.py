"""Which dims hold examples or tokens, and which values are parameters in another shape.

Batch and sequence dims are found from the batch inputs: what an op's factor rule says moves together belongs together. A dim may be
batch in part only: `[batch * heads, ...]` is batch on its major side. Hence a *region* of a dim of n elements: `(lo, hi)` is the factor
of size `hi / lo` whose neighbouring indices are `lo` elements apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from maniple.ir.program import Input, Op, Program, Value
from maniple.ops import definition
from maniple.ops.factors import Dim
from maniple.shard.options import Split

Region = tuple[int, int]


def step_ops(program: Program) -> frozenset[Op]:
    """Return the ops of forward and backward, whose layouts the solver decides, with all that they depend on.

    An update is among them if the step goes on to use what it made: two optimizers that take turns, weights changed before a second pass.
    """
    made_by = program.producers()
    found: set[Op] = set()
    queue = [op for op in program.ops if op.phase != "update"]
    while queue:
        op = queue.pop()
        if op not in found:
            found.add(op)
            queue += [made_by[value] for value in op.operands if value in made_by]
    return frozenset(found)


class BatchRegions:
    """The regions of every value that hold examples, tokens or pixels.

    Attributes:
        num_tokens: how many of them there are in the largest batch input.
        num_rows: size of the largest first dim of a batch input; a batch of one row has no regions with `only_rows`.
    """

    def __init__(self, program: Program, *, only_rows: bool = False) -> None:
        """Find them, starting from the batch inputs of `program`; with `only_rows` from their first dims."""
        self._regions: dict[Value, dict[int, list[Region]]] = {}
        self._ops: dict[Value, list[Op]] = {}
        steps = step_ops(program)
        for op in program.ops:
            if op in steps:
                for value in dict.fromkeys((*op.operands, *op.results)):
                    self._ops.setdefault(value, []).append(op)
        self._places: dict[Op, tuple[tuple[int, tuple[tuple[Value, int, int], ...]], ...]] = {}
        self._queue: list[Op] = []
        self.num_tokens = self.num_rows = 1
        for item in program.inputs:
            if item.kind == "batch":
                dims = list(batch_dims(item, self._ops))
                self.num_tokens = max(self.num_tokens, math.prod(item.value.type.shape[dim] for dim in dims))
                self.num_rows = max(self.num_rows, *(item.value.type.shape[dim] for dim in dims[:1]), 1)
                for dim in dims[:1] if only_rows else dims:
                    self._add(item.value, dim, (1, item.value.type.shape[dim]))
        while self._queue:
            self._push(self._queue.pop())

    def __contains__(self, value: Value) -> bool:
        """Return whether `value` grows with the batch."""
        return value in self._regions

    def is_cut(self, value: Value, split: Split, ways: int) -> bool:
        """Return whether `split` divides examples or tokens among devices."""
        n = value.type.shape[split.dim]
        per_block = n // split.blocks
        chunk = -(-(per_block // split.unit) // ways) * split.unit
        return any(lo % per_block and chunk % hi for lo, hi in self._regions.get(value, {}).get(split.dim, ()))

    def _add(self, value: Value, dim: int, region: Region) -> None:
        lo, hi = region
        known = self._regions.setdefault(value, {}).setdefault(dim, [])
        if lo < hi and not any(a <= lo and hi <= b for a, b in known):
            known.append(region)
            self._queue += self._ops.get(value, ())

    def _push(self, op: Op) -> None:
        """Carry the regions of each operand and result of `op` to the others."""
        if op not in self._places:
            self._places[op] = tuple(_places(op))
        for size, found in self._places[op]:
            regions = {_clip(region, inner, size) for value, at, inner in found for region in self._regions.get(value, {}).get(at, ())}
            for lo, hi in sorted(regions):
                for value, at, inner in found:
                    if lo < hi:
                        self._add(value, at, (lo * inner, hi * inner))


def _places(op: Op) -> Iterator[tuple[int, tuple[tuple[Value, int, int], ...]]]:
    """Yield for each factor of `op` its size and where it stands: value, dim, and how far apart its elements are in that."""
    rule = definition(op.name).factors(op)
    places: dict[str, list[tuple[Value, int, int]]] = {}
    for value, dims in sides(op, rule.operands, rule.results):
        for at, dim in enumerate(dims):
            for factor in dim:
                places.setdefault(factor, []).append((value, at, rule.outer_inner(dim, factor)[1]))
    yield from ((rule.sizes[factor], tuple(found)) for factor, found in places.items())


def _clip(region: Region, inner: int, size: int) -> Region:
    """Return the part of `region` within a factor of `size` that stands `inner` apart, counted inside of the factor."""
    lo, hi = max(region[0], inner), min(region[1], inner * size)
    if lo >= hi:
        return (1, 1)
    if lo % inner or hi % inner:
        return (1, size)
    return (lo // inner, hi // inner)


def sides(op: Op, operands: Iterable[tuple[Dim, ...]], results: Iterable[tuple[Dim, ...]]) -> Iterator[tuple[Value, tuple[Dim, ...]]]:
    """Yield each operand and result of `op` with its dims."""
    yield from zip(op.operands, operands, strict=True)
    yield from zip(op.results, results, strict=True)


def batch_dims(item: Input, ops: dict[Value, list[Op]]) -> Iterator[int]:
    """Yield the dims of a batch input that hold examples, tokens or pixels: all but the features of a float input.

    Features are the last dim of two or three, dim 1 of more; dim 1 as well where a convolution reads the input.
    """
    kind = item.value.type
    if not kind.is_float:
        yield from range(kind.rank)
        return
    by_channel = kind.rank > 3 or any(op.name == "convolution" for op in ops.get(item.value, ()))
    feature = 1 if by_channel else max(kind.rank - 1, 1)
    yield from (dim for dim in range(kind.rank) if dim != feature)


def keeps_elements(op: Op) -> bool:
    """Return whether `op` makes each result element from operand elements at one place: elementwise, or moving them about."""
    row = definition(op.name)
    if row.is_contraction or len(op.results) != 1 or not op.operands:
        return False
    rule = row.factors(op)
    dims = rule.results[0]
    is_elementwise = all(operand == dims or not value.type.rank for value, operand in zip(op.operands, rule.operands, strict=True))
    return row.moves_data or (is_elementwise and not rule.whole)


def is_view(op: Op) -> bool:
    """Return whether `op` makes one tensor from the elements of one tensor, as many, in another shape or dtype."""
    row = definition(op.name)
    if len(op.operands) != 1 or len(op.results) != 1 or not (row.moves_data or op.name == "convert"):
        return False
    return op.operands[0].type.num_elements == op.results[0].type.num_elements


def single_use(program: Program) -> set[Value]:
    """Return the values that one op uses, once, and that do not leave the step."""
    counts = Counter(value for op in program.ops for value in op.operands)
    counts.update(value for _, value in program.gradients)
    counts.update(item.value for item in program.outputs)
    return {value for value, count in counts.items() if count == 1}


class Weights:
    """Parameters that enter a contraction, the values that are such a parameter in another shape or dtype, and what must be divided.

    Attributes:
        values: those parameters and values, and what becomes their gradients by views and sums; they may not change their layout.
        contractions: ops that compute with them, or compute their gradients.
    """

    def __init__(self, program: Program, exempt: Collection[Value] = ()) -> None:
        """Find them in `program`; `exempt` are parameters that need not be divided."""
        self._steps = step_ops(program)
        roots = self._derived(program, exempt)
        self.contractions: set[Op] = set()
        entering: set[Value] = set()
        for op in program.ops:
            if op in self._steps and definition(op.name).is_contraction:
                found = [root for value in op.operands for root in roots.get(value, ())]
                if found:
                    self.contractions.add(op)
                    entering.update(found)
        self.values = {value for value, of in roots.items() if of & entering}
        self._add_gradients(program, {item.name for item in program.inputs if item.value in entering})

    def _derived(self, program: Program, exempt: Collection[Value]) -> dict[Value, frozenset[Value]]:
        """Return for each value that is made of parameters alone, without contraction, those parameters."""
        parameters = (item.value for item in program.inputs if item.kind == "parameter" and item.value not in exempt)
        roots = {value: frozenset({value}) for value in parameters}
        for op in program.ops:
            tensors = [value for value in op.operands if value.type.rank]
            if op in self._steps and tensors and all(value in roots for value in tensors) and keeps_elements(op):
                made_of = frozenset[Value]().union(*(roots[value] for value in tensors))
                roots.update(dict.fromkeys(op.results, made_of))
        return roots

    def _add_gradients(self, program: Program, names: set[str]) -> None:
        """Add the contractions whose results flow into the gradients of `names`."""
        made_by = program.producers()
        queue = [value for name, value in program.gradients if name in names]
        seen: set[Value] = set()
        while queue:
            value = queue.pop()
            op = made_by.get(value)
            if value in seen or op is None or op not in self._steps:
                continue
            seen.add(value)
            self.values.add(value)
            if definition(op.name).is_contraction:
                self.contractions.add(op)
            elif keeps_elements(op):
                queue += op.operands
