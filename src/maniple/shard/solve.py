"""Layouts along a tensor-parallel axis: the cheapest choice of one option per op, as an integer program.

Minimised is the modelled time of forward and backward: each op's share of its FLOPs and the layout changes between ops, one for all
users of a value. Rules make it tensor parallelism rather than no parallelism: batch and sequence are never split
(`classes.BatchRegions`); contractions with a parameter, and those that make its gradient, are divided; such parameters are stored split
and never gathered (`classes.Weights`), unless there is no other way; a partial sum becomes whole, never split, so that what blocks hand to
each other is whole. Gradients arrive in their parameter's layout, results whole. Contract: reassociating.

Under `sp` tokens may be split where nothing is contracted, partial sums may become split, and what forward keeps for backward has a price.

What is alike (`alike.Likeness`) is laid out alike: the blocks of a model are decided once, however many there are.

Times are those of a batch of at least `REFERENCE_TOKENS`: layouts should not depend on how small a batch a program was captured with.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from maniple.base.errors import ShardingError
from maniple.ir.program import STATE_KINDS, Op, Program, Value
from maniple.ops import definition
from maniple.shard.alike import DISTANCE, Likeness
from maniple.shard.choices import Choice, Choices
from maniple.shard.classes import BatchRegions, keeps_elements, single_use
from maniple.shard.cost import CostModel
from maniple.shard.follow import change_kind
from maniple.shard.layouts import parameter_of
from maniple.shard.milp import Milp, Outcome
from maniple.shard.options import Along, Option, Split
from maniple.shard.regather import saved

REFERENCE_TOKENS: Final = 65536
LIMIT_S: Final = 300.0
_US: Final = 1e6
_TIE_US: Final = 1e-3
"""Price of letting a partial sum pass an op, and of splitting what may as well be replicated: decides among equals only."""
_AGAINST_US: Final = 1e6
"""Price of gathering a parameter that should stay divided, and of a contraction with one that is computed whole."""
_KEEP: Final = 4.0
"""Under `sp`: what an activation takes until backward counts as much as moving it so many times."""

Terms = dict[int, float]


@dataclass(frozen=True, slots=True)
class Solution:
    """The layouts that the solver chose.

    Attributes:
        options: of every forward and backward op.
        inputs: layout along the axis of each parameter and buffer, by name.
        seconds: modelled time of forward and backward, of a batch of at least `REFERENCE_TOKENS`.
        is_proven: whether no cheaper choice exists that lays out alike what is alike.
        gathered: what had to be done against the rules for parameters, each with the user's line.
        changes: (kind, shape) of each layout change that communicates, between ops.
        summary: what was decided, for people.
    """

    options: Mapping[Op, Option]
    inputs: Mapping[str, Along]
    seconds: float
    is_proven: bool
    changes: tuple[tuple[str, tuple[int, ...]], ...]
    summary: str
    gathered: tuple[str, ...] = ()

    def num_changes(self, kind: str) -> int:
        """Return the number of layout changes of a kind."""
        return sum(name == kind for name, _ in self.changes)


def solve(
    program: Program,
    axis: str,
    ways: int,
    cost: CostModel,
    *,
    pins: Mapping[str, Along] | None = None,
    sp: bool = False,
) -> Solution:
    """Return the cheapest layouts of `program` along `axis` of `ways` devices.

    Args:
        program: a whole step.
        axis: name of the tensor-parallel axis.
        ways: its size, at least 2.
        cost: times of work and of collectives.
        pins: layouts along the axis that the user fixed, by name of an input or value.
        sp: whether activations between contractions may be split too, along tokens as well, and what they take until backward counts.

    Raises:
        ShardingError: if there are no such layouts, or none is found in time.
    """
    start = time.perf_counter()
    failure = ShardingError(f"no layouts were found within {LIMIT_S:.0f} s", hint="pin the layouts of some parameters in the strategy file")
    regions = BatchRegions(program)
    for is_lenient in (False, True):
        try:
            choices = Choices(program, axis, ways, regions, pins or {}, cost, sp=sp, is_lenient=is_lenient)
        except ShardingError:
            if is_lenient:
                raise
            continue
        for distance in (DISTANCE, math.inf):
            model = _Model(choices, cost, Likeness(program, choices.ops, choices.pinned, distance), sp=sp)
            outcome = model.milp.solve(limit_s=LIMIT_S)
            if outcome.values:
                return model.read(outcome, time.perf_counter() - start)
            if not outcome.is_proven:
                raise failure
    raise failure


class _Model:
    """The integer program. Costs are in microseconds.

    Attributes:
        milp: variables and rows.
        made: for each value and layout the variables whose sum says whether it is made so.
        picked: for each op its choices, each with the variables whose sum says whether it is picked.
        changes: variable of each layout change (value, from, to).
        users: of a layout change of a parameter, the op that asked for it first.
        alike: what is alike shares its variables, so that the blocks of a model are solved once, and laid out alike.
        shared: these variables.
    """

    def __init__(self, choices: Choices, cost: CostModel, alike: Likeness, *, sp: bool = False) -> None:
        self.choices, self.cost, self.alike, self.sp = choices, cost, alike, sp
        self.scale = max(REFERENCE_TOKENS / _num_tokens(choices), 1.0)
        self.saved, self.regathered = saved(choices.program) if sp else (frozenset[Value](), frozenset[Value]())
        rows = BatchRegions(choices.program, only_rows=True)
        self.growing = rows if rows.num_rows > 1 else choices.regions
        self.milp = Milp()
        self.one = self.milp.variable()
        self.milp.row({self.one: 1.0}, low=1.0)
        self.made: dict[Value, dict[Along, list[int]]] = {}
        self.picked: dict[Op, list[tuple[Choice, list[int]]]] = {}
        self.changes: dict[tuple[Value, Along, Along], int] = {}
        self.users: dict[tuple[Value, Along, Along], Op | None] = {}
        self.single = single_use(choices.program)
        self.shared: dict[Hashable, list[int]] = {}
        for item in choices.program.inputs:
            self.add_input(item.value)
        for op in choices.ops:
            self.add_op(op)
        self.add_ends()

    # -- variables --------------------------------------------------------------------------------------------------------------

    def pick_one(self, key: Hashable, costs: Sequence[float]) -> list[int]:
        """Return variables of which exactly one is 1, the same for the same key; a lone one costs no variable."""
        if len(costs) == 1:
            self.milp.cost[self.one] += costs[0]
            return [self.one]
        if key not in self.shared:
            self.shared[key] = [self.milp.variable(is_binary=True) for _ in costs]
            self.milp.row(dict.fromkeys(self.shared[key], 1.0), low=1.0, high=1.0)
        for variable, cost in zip(self.shared[key], costs, strict=True):
            self.milp.cost[variable] += cost
        return self.shared[key]

    def add_input(self, value: Value) -> None:
        layouts = list(self.choices.layouts[value])
        key = (self.alike.values[value], *layouts)
        variables = self.pick_one(key, [_TIE_US * isinstance(layout, Split) for layout in layouts])
        self.made[value] = {layout: [variable] for layout, variable in zip(layouts, variables, strict=True)}

    def add_op(self, op: Op) -> None:
        choices = self.choices.of[op]
        main = self.main_operand(op)
        followed = self.follow(op, main) if main is not None else None
        if followed is None:
            variables = self.pick_one((self.alike.ops[op], choices), [self.op_cost(op, choice) for choice in choices])
            self.picked[op] = [(choice, [variable]) for choice, variable in zip(choices, variables, strict=True)]
            self.demand_operands(op)
        else:
            self.picked[op] = followed
            for choice, variables in followed:
                for variable in variables:
                    self.milp.cost[variable] += self.op_cost(op, choice)
        for number, value in enumerate(op.results):
            made: dict[Along, list[int]] = {}
            for choice, variables in self.picked[op]:
                layout = choice.option.results[number]
                made.setdefault(layout, []).extend(variables)
                if value in self.saved:
                    for variable in variables:
                        self.milp.cost[variable] += self.keep_cost(value, layout)
            self.made[value] = made
            if value in self.choices.pinned:
                self.demand(value, (self.choices.pinned[value],), {self.one: 1.0}, op)
                self.made[value] = {self.choices.pinned[value]: [self.one]}

    def main_operand(self, op: Op) -> int | None:
        """Return the number of the operand whose layout `op` takes over, None if it has its own choice.

        So it is for views and elementwise ops on one tensor of as many bytes, the only use of that tensor: nothing is gained by
        changing the layout before rather than after them. Views of weights always follow.
        """
        if not keeps_elements(op):
            return None
        loose = {v for v in op.operands if self.choices.free.get(v) or not v.type.rank or list(self.made[v]) == [None]}
        tensors = [number for number, v in enumerate(op.operands) if v not in loose]
        if len({op.operands[number] for number in tensors}) != 1:
            return None
        value = op.operands[tensors[0]]
        if value in self.choices.weights.values:
            return tensors[0]
        is_alone = value in self.single and value.type.num_bytes == op.results[0].type.num_bytes
        return tensors[0] if is_alone and all(v.type.rank for v in loose if not self.choices.free.get(v)) else None

    def follow(self, op: Op, main: int) -> list[tuple[Choice, list[int]]] | None:
        """Return the choices of an op that takes over its operand's layout, None if some layout of that has no or several choices."""
        followed = []
        for layout, variables in self.made[op.operands[main]].items():
            matching = [choice for choice in self.choices.of[op] if choice.option.operands[main] == layout]
            if len(matching) != 1:
                return None
            followed.append((matching[0], variables))
        return followed

    def op_cost(self, op: Op, choice: Choice) -> float:
        grows = any(value in self.growing for value in (*op.operands, *op.results))
        scale = self.scale if grows else 1.0
        seconds = self.cost.compute_s(definition(op.name).flops(op) * scale * choice.share)
        seconds += sum(self.cost.collective_s(kind, size * scale, self.choices.ways) for kind, size in choice.moved)
        num_pending = sum(isinstance(layout, str) for layout in choice.option.operands)
        is_whole = op in self.choices.weights.contractions and not choice.option.divides
        return seconds * _US + _TIE_US * num_pending + _AGAINST_US * is_whole

    def keep_cost(self, value: Value, layout: Along) -> float:
        """Return the price of keeping a value until backward: that of moving what a device holds of it `_KEEP` times."""
        size = value.type.num_bytes * (self.scale if value in self.growing else 1.0)
        if isinstance(layout, Split):
            count = value.type.shape[layout.dim] // (layout.blocks * layout.unit)
            size *= -(-count // self.choices.ways) / count
        return _KEEP * size / self.cost.bytes_per_s * _US

    # -- rows -------------------------------------------------------------------------------------------------------------------

    def demand_operands(self, op: Op) -> None:
        """Let each operand be at hand in the layout that the picked choice takes."""
        for value in dict.fromkeys(op.operands):
            if self.choices.free.get(value):
                continue
            for number in (n for n, operand in enumerate(op.operands) if operand is value):
                wanted: dict[Along, Terms] = {}
                for choice, variables in self.picked[op]:
                    terms = wanted.setdefault(choice.option.operands[number], {})
                    terms.update(dict.fromkeys(variables, 1.0))
                for layout, terms in wanted.items():
                    self.demand(value, (layout,), terms, op)
                for group in {tuple(want for want in wanted if want != here): None for here in self.made[value]}:
                    if len(group) > 1:
                        self.demand(value, group, {k: f for want in group for k, f in wanted[want].items()}, op)

    def demand(self, value: Value, layouts: tuple[Along, ...], terms: Terms, user: Op | None = None) -> None:
        """Let `value` be at hand in one of `layouts` if one of `terms` is 1.

        Rows for several layouts at once follow from those for each one where variables are 0 or 1, and make the relaxation tight.
        """
        supply = self.supply(value, layouts, user)
        if supply is None:
            return
        row = dict(terms)
        for variable, factor in supply.items():
            row[variable] = row.get(variable, 0.0) - factor
        self.milp.row(row, high=0.0)

    def supply(self, value: Value, layouts: tuple[Along, ...], user: Op | None) -> Terms | None:
        """Return variables of which one is 1 if `value` is at hand in one of `layouts`; None if it always is."""
        made = self.made[value]
        from_whole = any(layout in (None, "sum") or isinstance(layout, Split) for layout in layouts)
        direct = {*layouts, None} if from_whole else set(layouts)
        if set(made) <= direct:
            return None
        supply = {variable: 1.0 for here in made if here in direct for variable in made[here]}
        if from_whole and (self.choices.is_lenient or value not in self.choices.weights.values):
            wanted = [layout for layout in layouts if isinstance(layout, Split)]
            for here in made:
                if here not in direct:
                    targets = (None,) if isinstance(here, str) and not self.sp else (None, *wanted)
                    supply.update({self.change(value, here, want, user): 1.0 for want in targets})
        return supply

    def change(self, value: Value, here: Along, want: Along, user: Op | None) -> int:
        """Return the variable of a layout change, which there is only if the value is made in layout `here`."""
        key = (value, here, want)
        if key not in self.changes:
            kind = change_kind(here, want)
            size = float(value.type.num_bytes) * (self.scale if value in self.growing else 1.0)
            payload = size / self.choices.ways if kind == "all_to_all" else size
            times = 2 if kind == "all_gather" and value in self.regathered else 1
            (variable,) = self.shared.setdefault((self.alike.values[value], here, want, "change"), [len(self.milp.cost)])
            if variable == len(self.milp.cost):
                self.milp.variable()
            self.milp.cost[variable] += times * self.cost.collective_s(kind, payload, self.choices.ways) * _US
            if value in self.choices.weights.values:
                self.milp.cost[variable] += _AGAINST_US
                self.users[key] = user
            self.milp.row({variable: 1.0, **dict.fromkeys(self.made[value][here], -1.0)}, high=0.0)
            self.changes[key] = variable
        return self.changes[key]

    def add_ends(self) -> None:
        """Let gradients and new state arrive in the layout of the state that they are for, results whole.

        State that the step creates is laid out like its parameter. A result that is a parameter or its gradient may lie in any layout,
        from which it is made whole at the end, whatever that costs.
        """
        program = self.choices.program
        state = {item.name: item.value for item in program.inputs if item.kind in STATE_KINDS}
        parameters = {item.name: item.value.type for item in program.inputs if item.kind == "parameter"}
        made_by = program.producers()
        ends = [(name, name, value) for name, value in program.gradients if name in state]
        for item in program.outputs:
            owner = item.name if item.name in state else parameter_of(item.name, item.value.type, parameters)
            ends.append((item.name, owner, item.value))
        for name, owner, value in ends:
            if value not in self.made or self.choices.free.get(value) or (not owner and value in self.choices.weights.values):
                continue
            target = self.made[state[owner]] if owner else {None: [self.one]}
            for layout, variables in target.items():
                if value is not state.get(name):
                    self.demand(value, (layout,), dict.fromkeys(variables, 1.0), made_by.get(value))

    # -- the answer -------------------------------------------------------------------------------------------------------------

    def read(self, outcome: Outcome, seconds: float) -> Solution:
        """Return what the variables say."""

        def is_set(variables: list[int]) -> bool:
            return sum(outcome.values[variable] for variable in variables) > 0.5

        options = {op: next(choice.option for choice, terms in picked if is_set(terms)) for op, picked in self.picked.items()}
        inputs = {
            item.name: next(layout for layout, terms in self.made[item.value].items() if is_set(terms))
            for item in self.choices.program.inputs
            if item.kind in ("parameter", "buffer")
        }
        changes = tuple(
            (change_kind(here, want), value.type.shape)
            for (value, here, want), variable in self.changes.items()
            if outcome.values[variable] > 0.5
        )
        total_s = sum(cost * value for cost, value in zip(self.milp.cost, outcome.values, strict=True)) / _US
        total_s -= sum(outcome.values[self.changes[key]] for key in self.users) * _AGAINST_US / _US
        lines = _summary(options, inputs, changes, total_s, outcome, seconds)
        return Solution(options, inputs, total_s, outcome.is_proven, changes, "\n".join(lines), tuple(self.against(outcome, options)))

    def against(self, outcome: Outcome, options: Mapping[Op, Option]) -> Iterator[str]:
        """Yield what was done against the rules for parameters: what moves, for which op, and what is computed whole."""
        for (value, here, want), user in self.users.items():
            if outcome.values[self.changes[value, here, want]] > 0.5:
                yield f"{change_kind(here, want)} of %{value.name}" + (f" for {user.name}, {user.location}" if user else "")
        for op, option in options.items():
            if op in self.choices.weights.contractions and not option.divides:
                yield f"{op.name} computed whole, {op.location}"


def _num_tokens(choices: Choices) -> float:
    """Return how many tokens the step works on: those of the batch, or the most that a product takes, which patches make fewer."""
    products = [op for op in choices.ops if op.phase == "forward" and op in choices.weights.contractions]
    sizes = [max((v.type.num_elements for v in op.operands if v in choices.weights.values), default=0) for op in products]
    rows = [definition(op.name).flops(op) / (2 * size) for op, size in zip(products, sizes, strict=True) if size]
    return max(min(choices.regions.num_tokens, max(rows, default=math.inf)), 1.0)


def _summary(
    options: Mapping[Op, Option],
    inputs: Mapping[str, Along],
    changes: tuple[tuple[str, tuple[int, ...]], ...],
    total_s: float,
    outcome: Outcome,
    seconds: float,
) -> Iterator[str]:
    """Yield lines for people: what is split, what is communicated, and whether it is the best there is."""
    split = {name: layout for name, layout in inputs.items() if isinstance(layout, Split)}
    state = "proven the cheapest" if outcome.is_proven else "not proven the cheapest"
    yield f"{total_s * 1e3:.3f} ms of forward and backward, {state}, solved in {seconds:.1f} s"
    divided = sum(option.divides for option in options.values())
    yield f"{divided} of {len(options)} ops divided, {len(split)} of {len(inputs)} parameters and buffers split"
    for (kind, shape), count in sorted(Counter(changes).items()):
        yield f"{count} x {kind} of [{','.join(map(str, shape))}]"
    inside = Counter(op.name for op, option in options.items() if option.expands)
    for name, count in sorted(inside.items()):
        yield f"{count} x {name} divided inside"
    for name, layout in split.items():
        blocks = f"/{layout.blocks}" if layout.blocks > 1 else ""
        yield f"{name}: dim {layout.dim}{blocks}" + (f"*{layout.unit}" if layout.unit > 1 else "")
