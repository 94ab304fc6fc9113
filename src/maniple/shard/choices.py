"""Every way to run each op along one axis that the solver may choose from.

Splits are found by closure: the plain split of every dim to begin with; an option that takes or makes one of them gives its other
operands and results splits as well, until nothing new appears. So a split of attention heads becomes `/3` blocks of a fused weight, or
units of a head's size. Partial sums are followed in program order, from the ops that make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from maniple.base.errors import ShardingError
from maniple.ir.program import Input, Op, Program, Value
from maniple.mesh import Mesh, Sharding
from maniple.ops import CATALOG, Builder, definition
from maniple.ops.collectives import COMMUNICATING
from maniple.shard.classes import BatchRegions, Weights, step_ops
from maniple.shard.cost import CostModel
from maniple.shard.follow import free_axes
from maniple.shard.layouts import Layouts
from maniple.shard.options import Along, Option, Split, along, following, lay, making, pending_options, replicated, split_factor
from maniple.shard.propagate import propagate
from maniple.shard.reshard import Change, change_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """An option with what it costs.

    Attributes:
        share: part of the op's work that the busiest device does.
        moved: (kind, bytes) of each collective inside of an option that expands, for the program's own sizes.
    """

    option: Option
    share: float
    moved: tuple[tuple[str, float], ...] = ()


class Choices:
    """The options of every forward and backward op.

    Attributes:
        of: choices of each op, at least one.
        layouts: for each value the layouts that some choice makes, or that an input may have.
        free: values of which any layout can be made without communication.
        weights: parameters that enter contractions, and what must be divided.
        pinned: layouts of values that the user fixed.
    """

    def __init__(
        self,
        program: Program,
        axis: str,
        ways: int,
        regions: BatchRegions,
        pins: Mapping[str, Along],
        cost: CostModel,
        *,
        sp: bool = False,
        is_lenient: bool = False,
    ) -> None:
        """Enumerate them.

        Args:
            program: a whole step.
            axis: name of the axis.
            ways: its size.
            regions: of examples and tokens, which are not split.
            pins: layouts that the user fixed, by name of an input or value.
            cost: of what expansions communicate.
            sp: whether tokens may be split after all where nothing is contracted.
            is_lenient: whether contractions with parameters may be computed whole, and their parameters gathered.

        Raises:
            ShardingError: if a contraction with a parameter cannot be divided and must be.
        """
        self.program, self.ways, self.regions, self.is_lenient = program, ways, regions, is_lenient
        self._rows = BatchRegions(program, only_rows=True) if sp else regions
        self._expansion = _Expansion(axis, ways, cost)
        self.free: dict[Value, frozenset[str]] = {}
        steps = step_ops(program)
        self.ops = tuple(op for op in program.ops if op in steps)
        for op in self.ops:
            self.free.update(dict.fromkeys(op.results, free_axes(op, (axis,), lambda _value, _axis: False, self.free)))
        self.pinned = self._pinned(pins)
        self.weights = Weights(program, {value for value, layout in self.pinned.items() if not isinstance(layout, Split)})
        self._rules = {op: definition(op.name).factors(op) for op in self.ops}
        self._splits: dict[Value, dict[Split, None]] = {}
        self._found: dict[Op, dict[Option, None]] = {op: {} for op in self.ops}
        self._queue: list[tuple[Value, Split]] = []
        self._close()
        self.of: dict[Op, tuple[Choice, ...]] = {}
        self.layouts: dict[Value, dict[Along, None]] = {}
        self._settle()

    # -- splits: closure --------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        made_by, used_by = self.program.producers(), self.program.uses()
        twins = self._twins()
        self._seed()
        while self._queue:
            value, split = self._queue.pop()
            for twin in twins.get(value, ()):
                self._add_split(twin, split)
            op = made_by.get(value)
            if op is not None and op in self._found:
                for option in making(op, self._rules[op], op.results.index(value), split, self.ways):
                    self._add_option(op, option)
            for user in used_by.get(value, ()):
                self._take(user, value, split)

    def _twins(self) -> dict[Value, list[Value]]:
        """Return for each parameter its gradients and the other way round: what splits the one splits the other."""
        parameters = {item.name: item.value for item in self.program.inputs}
        twins: dict[Value, list[Value]] = {}
        for name, gradient in self.program.gradients:
            if name in parameters:
                twins.setdefault(gradient, []).append(parameters[name])
                twins.setdefault(parameters[name], []).append(gradient)
        return twins

    def _take(self, op: Op, value: Value, split: Split) -> None:
        """Add the options of `op` that take `value` split so."""
        if op not in self._found:
            return
        for number, operand in enumerate(op.operands):
            if operand is value:
                for option in following(op, self._rules[op], number, split, self.ways):
                    self._add_option(op, option)

    def _seed(self) -> None:
        values = dict.fromkeys(item.value for item in self.program.inputs)
        values |= dict.fromkeys(value for op in self.ops for value in (*op.operands, *op.results))
        for value in values:
            for dim, size in enumerate(value.type.shape):
                if size > 1:
                    self._add_split(value, Split(dim))
        for value, layout in self.pinned.items():
            if isinstance(layout, Split):
                self._add_split(value, layout)
        for op, rule in self._rules.items():
            for factor in rule.factors:
                option = split_factor(op, rule, factor, self.ways)
                if option is not None:
                    self._add_option(op, option)

    def _pinned(self, pins: Mapping[str, Along]) -> dict[Value, Along]:
        """Return the values that `pins` fixes, by the user's name of an input or by a value's name."""
        made = {value.name: value for op in self.ops for value in op.results}
        inputs = {item.name: item.value for item in self.program.inputs}
        return {named[name]: layout for named in (made, inputs) for name, layout in pins.items() if name in named}

    def _add_split(self, value: Value, split: Split) -> None:
        known = self._splits.setdefault(value, {})
        if split not in known and not self.free.get(value) and not self._is_cut(value, split):
            known[split] = None
            self._queue.append((value, split))

    def _is_cut(self, value: Value, split: Split) -> bool:
        """Return whether `split` divides what may not be divided: rows of the batch, and tokens but for plain splits under `sp`."""
        if not self.regions.is_cut(value, split, self.ways):
            return False
        return (split.blocks, split.unit) != (1, 1) or self._rows.is_cut(value, split, self.ways)

    def _add_option(self, op: Op, option: Option) -> None:
        places = [*zip(op.operands, option.operands, strict=True), *zip(op.results, option.results, strict=True)]
        splits = [(value, layout) for value, layout in places if isinstance(layout, Split)]
        if option in self._found[op] or any(self._is_cut(value, split) for value, split in splits):
            return
        is_costly = option.expands or definition(op.name).is_contraction
        if is_costly and any(self.regions.is_cut(value, split, self.ways) for value, split in splits):
            return
        self._found[op][option] = None
        for value, split in splits:
            self._add_split(value, split)

    # -- partial sums, expansions, and what must be divided ------------------------------------------------------------------------

    def _settle(self) -> None:
        for item in self.program.inputs:
            self.layouts[item.value] = self._input_layouts(item)
        for op in self.ops:
            choices = tuple(self._choices(op))
            if not choices:
                raise ShardingError(
                    f"{op.name} computes with a parameter and cannot be divided in {self.ways}: {op!r}",
                    where=op.location, hint="fewer ways, or pin the parameter as replicated in the strategy file",
                )  # fmt: skip
            self.of[op] = choices
            for number, value in enumerate(op.results):
                made = dict.fromkeys(choice.option.results[number] for choice in choices)
                self.layouts[value] = {self.pinned[value]: None} if value in self.pinned else made

    def _input_layouts(self, item: Input) -> dict[Along, None]:
        if item.value in self.pinned:
            return {self.pinned[item.value]: None}
        if item.kind not in ("parameter", "buffer"):
            return {None: None}
        splits: dict[Along, None] = dict.fromkeys(self._splits.get(item.value, ()))
        if item.value in self.weights.values and splits:
            return splits
        return {None: None, **splits}

    def _choices(self, op: Op) -> Iterator[Choice]:
        """Yield the choices of `op`, given the layouts of its operands."""
        if self.free.get(op.results[0]) if op.results else True:
            yield Choice(replicated(op), 1.0)
            return
        must_divide = op in self.weights.contractions and not self.is_lenient
        for option in (*self._candidates(op), *self._found[op]):
            if must_divide and not option.divides:
                continue
            if all(self._is_reachable(v, want) for v, want in zip(op.operands, option.operands, strict=True)):
                inside = self._expansion.of(op, option) if option.expands else (option, ())
                yield Choice(inside[0], self._share(op, option), inside[1])

    def _candidates(self, op: Op) -> Iterator[Option]:
        """Yield the options that do not divide: computing the whole op, and letting partial results pass."""
        yield replicated(op)
        kinds = sorted({k for v in op.operands for k in self.layouts.get(v, ()) if isinstance(k, str)})
        for kind in kinds:
            for option in pending_options(op, kind):
                wanted = [v for v, want in zip(op.operands, option.operands, strict=True) if want == kind]
                if any(kind in self.layouts.get(v, ()) for v in wanted):
                    yield option

    def _is_reachable(self, value: Value, want: Along) -> bool:
        here = self.layouts.get(value, {None: None})
        if want in here or (self.free.get(value) and not isinstance(want, str)):
            return True
        if value in self.weights.values and not self.is_lenient:
            return False
        return want in (None, "sum") or isinstance(want, Split)

    def _share(self, op: Op, option: Option) -> float:
        if not option.divides:
            return 1.0
        places = [*zip(op.results, option.results, strict=True), *zip(op.operands, option.operands, strict=True)]
        for value, split in places:
            if isinstance(split, Split):
                count = value.type.shape[split.dim] // (split.blocks * split.unit)
                return -(-count // self.ways) / count
        return 1.0


class _Expansion:
    """What an option that expands costs inside: its decomposition is propagated on a mesh of the one axis."""

    def __init__(self, axis: str, ways: int, cost: CostModel) -> None:
        self.mesh, self.axis, self.cost = Mesh(((axis, ways),)), axis, cost
        self.known: dict[object, tuple[Sequence[Along], tuple[tuple[str, float], ...]]] = {}

    def of(self, op: Op, option: Option) -> tuple[Option, tuple[tuple[str, float], ...]]:
        """Return the option with the layouts that its results really get, and the collectives inside."""
        same = tuple(op.operands.index(v) for v in op.operands)
        types = tuple(v.type for v in (*op.operands, *op.results))
        key = (op.name, op.attrs, types, same, option.operands)
        if key not in self.known:
            self.known[key] = self._propagate(op, option)
        results, moved = self.known[key]
        return replace(option, results=tuple(results)), moved

    def _propagate(self, op: Op, option: Option) -> tuple[list[Along], tuple[tuple[str, float], ...]]:
        builder = Builder(CATALOG, prefix="inside.")
        decompose = definition(op.name).decompose
        assert decompose is not None
        made = decompose(builder, op)
        layouts = {v: self._sharding(v, layout) for v, layout in zip(op.operands, option.operands, strict=True)}
        inputs = tuple(Input(v, "argument", f"operand{number}") for number, v in enumerate(layouts))
        gradients = tuple((str(number), value) for number, value in enumerate(made))
        program = Program(inputs, tuple(builder.ops), (), gradients)
        named = {item.name: layouts[item.value] for item in inputs}
        sharded = propagate(program, self.mesh, Layouts(named, (self.axis,)), self.cost)
        results = [along(v.layout, self.axis) for _, v in sharded.gradients]
        return results, tuple((inner.name, self._bytes(inner)) for inner in sharded.ops if inner.name in COMMUNICATING)

    def _sharding(self, value: Value, layout: Along) -> Sharding:
        return lay(Sharding.replicated(value.type.rank), self.axis, layout)

    def _bytes(self, op: Op) -> float:
        before, after = op.operands[0].layout, op.results[0].layout
        return change_bytes(before, Change(op.name, self.axis, after), op.operands[0].type, self.mesh)
