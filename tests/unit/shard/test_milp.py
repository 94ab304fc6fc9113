"""Integer programs, and the solver's against every combination tried one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from maniple.base.types import TensorType
from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.ops import CATALOG, Builder, definition
from maniple.shard.choices import Choice, Choices
from maniple.shard.classes import BatchRegions
from maniple.shard.cost import CostModel
from maniple.shard.follow import change_kind
from maniple.shard.milp import Milp
from maniple.shard.options import Along, Split
from maniple.shard.solve import REFERENCE_TOKENS, solve


def test_picks_the_cheapest() -> None:
    milp = Milp()
    a, b = milp.variable(2.0, is_binary=True), milp.variable(1.0, is_binary=True)
    free = milp.variable(0.5)
    milp.row({a: 1.0, b: 1.0}, low=1.0, high=1.0)
    milp.row({b: 1.0, free: -1.0}, high=0.0)
    outcome = milp.solve(limit_s=10)
    assert outcome.is_proven
    assert outcome.values == pytest.approx((0.0, 1.0, 1.0))


def test_says_that_nothing_fits(capfd: pytest.CaptureFixture[str]) -> None:
    milp = Milp()
    milp.row({milp.variable(is_binary=True): 1.0}, low=2.0)
    outcome = milp.solve(limit_s=10)
    assert outcome.values == ()
    assert outcome.is_proven
    assert capfd.readouterr().out == ""


def small_program(seed: int) -> Program:
    """Return a few products with weights, and elementwise ops between them."""
    rng, b = random.Random(seed), Builder(CATALOG)
    x = Value("x", TensorType("f32", (8, rng.choice([32, 4096]))))
    inputs, live = [Input(x, "batch", "batch.x")], [x]
    for number in range(rng.randint(2, 3)):
        source = live[-1] if rng.random() < 0.7 else rng.choice(live)
        w = Value(f"w{number}", TensorType("f32", (source.type.shape[1], rng.choice([32, 1024, 4096]))))
        inputs.append(Input(w, "parameter", w.name))
        y = b("dot_general", source, w, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())
        same = [value for value in live if value.type == y.type]
        y = b("add", y, rng.choice(same)) if same and rng.random() < 0.6 else b(rng.choice(["negate", "tanh"]), y)
        live.append(y)
    return Program(tuple(inputs), tuple(b.ops), (Output(live[-1], "result.y"), Output(rng.choice(live[1:]), "result.z")))


def brute_force_s(program: Program, ways: int, cost: CostModel) -> float:
    """Return the least time over every combination of options and of layouts of weights."""
    regions = BatchRegions(program)
    choices = Choices(program, "tp", ways, regions, {}, cost)
    scale = REFERENCE_TOKENS / regions.num_tokens
    inputs = [item.value for item in program.inputs]
    best = float("inf")
    for stored in itertools.product(*(choices.layouts[value] for value in inputs)):
        for picked in itertools.product(*(choices.of[op] for op in program.ops)):
            made = dict(zip(inputs, stored, strict=True))
            best = min(best, _total_s(program, made, dict(zip(program.ops, picked, strict=True)), choices, scale, cost))
    return best


def _total_s(
    program: Program, made: dict[Value, Along], picked: dict[Op, Choice], choices: Choices, scale: float, cost: CostModel
) -> float:
    wanted: dict[Value, set[Along]] = {item.value: {None} for item in program.outputs}
    total = 0.0
    for op, choice in picked.items():
        made |= dict(zip(op.results, choice.option.results, strict=True))
        for value, want in zip(op.operands, choice.option.operands, strict=True):
            wanted.setdefault(value, set()).add(want)
        total += cost.compute_s(definition(op.name).flops(op) * scale * choice.share)
    for value, wants in wanted.items():
        if value in choices.weights.values and wants != {made[value]}:
            return float("inf")
        total += min(_changes_s(value, made[value], wants, choices.ways, scale, cost))
    return total


def _changes_s(value: Value, here: Along, wants: set[Along], ways: int, scale: float, cost: CostModel) -> Iterator[float]:
    """Yield the time of reaching all of `wants`: each one directly, or all by way of the whole value."""
    size = value.type.num_bytes * scale
    others = wants - {here}

    def change_s(want: Along) -> float:
        kind = change_kind(here, want)
        return cost.collective_s(kind, size / ways if kind == "all_to_all" else size, ways)

    yield 0.0 if not others or here is None else change_s(None)
    if all(isinstance(want, Split) and isinstance(here, Split) for want in others):
        yield sum(change_s(want) for want in others)


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_cheaper(seed: int) -> None:
    program, cost, ways = small_program(seed), CostModel(latency_s=1e-4), 2 + seed % 3
    solution = solve(program, "tp", ways, cost)
    assert solution.is_proven
    assert solution.seconds == pytest.approx(brute_force_s(program, ways, cost), rel=1e-6, abs=1e-7)
