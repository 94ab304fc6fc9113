"""What is alike is decided once: as cheaply as if each op were decided for itself, in a time that does not grow with the layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tape import Tape, mlp, transformer

from maniple.base.errors import ShardingError
from maniple.ir.program import Program
from maniple.mesh import Sharding
from maniple.shard import solve as solver
from maniple.shard.alike import DISTANCE, Likeness
from maniple.shard.cost import CostModel
from maniple.shard.milp import Milp, Outcome
from maniple.shard.options import Split
from maniple.shard.solve import Solution, solve


def row(layers: int, *, each: int = 1, residual: bool = False, width: int = 64) -> Program:
    """Products of one size in a row, `each` of them between residual connections if there are such."""
    t = Tape()
    x, labels = t.input("batch.x", 8, width, kind="batch"), t.input("batch.y", 8, kind="batch", dtype="i64")
    for i in range(layers):
        before = x
        for j in range(each):
            x = t.unary("gelu", t.linear(x, t.input(f"{i}.{j}.weight", width, width)), approximate="none")
        x = t.add(x, before) if residual else x
    return t.finish(t.cross_entropy(x, labels))


def likeness(program: Program) -> Likeness:
    return Likeness(program, [op for op in program.ops if op.phase != "update"], {})


MAKERS: dict[str, Callable[[int], Program]] = {
    "transformer": lambda n: transformer(layers=n),
    "bert": lambda n: transformer(layers=n, tied=False, fused=False, causal=False),
    "mlp": lambda n: mlp(layers=n),
    "row": row,
    "residual": lambda n: row(n, residual=True),
    "three each": lambda n: row(n, each=3, residual=True),
}


def num_variables(program: Program, distance: float, *, sp: bool) -> int:
    """Return how many variables the integer program has."""
    found: list[int] = []

    def solved(milp: Milp, **_: float) -> Outcome:
        found.append(len(milp.cost))
        return Outcome((), is_proven=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Milp, "solve", solved)
        patch.setattr(solver, "DISTANCE", distance)
        with pytest.raises(ShardingError, match="no layouts were found"):
            solve(program, "tp", 2, CostModel(), sp=sp)
    assert len(found) == 1
    return found[0]


def each_for_itself(program: Program, **options: Any) -> Solution:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "DISTANCE", math.inf)
        return solve(program, "tp", 2, CostModel(), **options)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("sp", [False, True])
def test_variables_do_not_grow_with_the_layers(make: Callable[[int], Program], *, sp: bool) -> None:
    few, many = 18, 26
    assert num_variables(make(few), DISTANCE, sp=sp) == num_variables(make(many), DISTANCE, sp=sp)
    assert num_variables(make(many), math.inf, sp=sp) > 1.3 * num_variables(make(few), math.inf, sp=sp)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("layers", [4, 12])
def test_costs_what_it_costs_without(make: Callable[[int], Program], layers: int, *, sp: bool) -> None:
    program = make(layers)
    alike, apart = solve(program, "tp", 2, CostModel(), sp=sp), each_for_itself(program, sp=sp)
    assert alike.is_proven
    assert alike.seconds == pytest.approx(apart.seconds, rel=2e-6)  # the tie-breaker's share
    assert alike.gathered == apart.gathered
    assert Counter(alike.changes) == Counter(apart.changes)


def test_products_in_a_row_are_divided_in_turns() -> None:
    inputs = solve(row(20), "tp", 2, CostModel()).inputs
    assert {frozenset((inputs[f"{i}.0.weight"], inputs[f"{i + 1}.0.weight"])) for i in range(19)} == {frozenset((Split(0), Split(1)))}


def test_one_answer() -> None:
    program = transformer(layers=12)
    first, second = (solve(program, "tp", 2, CostModel()) for _ in range(2))
    assert (first.options, first.inputs, first.seconds) == (second.options, second.inputs, second.seconds)


def test_a_pin_is_for_its_layer_alone() -> None:
    program = transformer(layers=13)
    without = solve(program, "tp", 2, CostModel()).inputs
    for layout in (None, Split(1)):
        name = "h.6.mlp.c_fc.weight"
        inputs = solve(program, "tp", 2, CostModel(), pins={name: layout}).inputs
        assert inputs[name] == layout
        assert inputs["h.1.mlp.c_fc.weight"] == without["h.1.mlp.c_fc.weight"] == Split(0)


def test_alike_are_every_other_block_but_the_first_and_last() -> None:
    program = transformer(layers=20)
    numbers = likeness(program).values
    of = {item.name: numbers[item.value] for item in program.inputs}
    middle = [of[f"h.{i}.mlp.c_fc.weight"] for i in range(8, 12)]
    assert middle[:2] == middle[2:]
    assert middle[0] != middle[1]
    assert not {of["h.0.mlp.c_fc.weight"], of["h.19.mlp.c_fc.weight"]} & set(middle)


def test_not_alike_in_one_block() -> None:
    """What attention takes as queries, keys and values has one type, but other places."""
    program = transformer(layers=20, fused=False)
    numbers = likeness(program).values
    of = {item.name: numbers[item.value] for item in program.inputs}
    assert len({of[f"h.{i}.attn.{name}.weight"] for i in (9, 10) for name in ("q", "k", "v", "c_proj")}) == 8


def test_known_apart() -> None:
    program = row(20)
    weights = {item.name: item.value for item in program.inputs if item.kind == "parameter"}
    ops = [op for op in program.ops if op.phase != "update"]
    numbers = Likeness(program, ops, {weights["9.0.weight"]: Sharding.replicated(2)}).values
    assert sum(numbers[value] == numbers[weights["9.0.weight"]] for value in weights.values()) == 1
    plain = likeness(program).values
    assert sum(plain[value] == plain[weights["9.0.weight"]] for value in weights.values()) > 1
