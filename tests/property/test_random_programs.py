"""Random programs over the whole op set, divided at random, give the numbers of one device, in float64.

`HYPOTHESIS_PROFILE=hours python -m pytest tests/property/test_random_programs.py -k layouts` runs for hours, on new examples each time.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from sampled_programs import all_samples, evaluate, random_layout, sampled_program, unequal
from torch import Tensor

from maniple.engine.realm import RealmEngine
from maniple.engine.reference import ReferenceEngine
from maniple.ir.program import Program
from maniple.ir.text import print_program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh, Sharding, Strategy
from maniple.mesh.strategy import Pin, Placement
from maniple.ops import CATALOG
from maniple.ops.check import check_program
from maniple.ops.collectives import COMMUNICATING, LOCAL
from maniple.shard.cost import CostModel
from maniple.shard.divide import divide
from maniple.shard.layouts import Layouts
from maniple.shard.propagate import propagate
from maniple.shard.shard import shard
from maniple.transform.dce import dce
from maniple.verify.dependences import check_dependences
from maniple.verify.sharded import verify_sharded

MESHES = ("dp=2", "dp=3", "tp=5", "dp=2 tp=2", "dp=3 tp=2", "tp=2 dp=4", "dp=2 tp=2 cp=2")
STRATEGIES = ("tp=2", "tp=3", "dp=2 tp=2", "dp=2 tp=3 zero=1", "tp=2 dp=2 zero=2 sp", "dp=3 zero=3", "tp=4 sp", "dp=4 zero=2")
COSTS = (CostModel(), *[CostModel(flops_per_s=1e9, bytes_per_s=1e15, latency_s=1e-10)] * 3)
"""Links as they are, over which small programs are left whole, and ones that cost nothing, so that what can be divided is."""
TOLERANCE = 1e-9


@functools.cache
def samples() -> dict[str, list[Any]]:
    return all_samples()


def layouts_of(program: Program, mesh: Mesh, rng: random.Random, *, pending: bool) -> tuple[dict[str, Sharding], dict[str, Sharding]]:
    """Return random layouts of inputs, and of values that are pinned."""
    inputs, pins = rng.choice([(1.0, 0.4), (0.8, 0.15)])
    made = [value for op in program.ops for value in op.results]
    return (
        {item.name: random_layout(rng, item.value.type, mesh) for item in program.inputs if rng.random() < inputs},
        {v.name: random_layout(rng, v.type, mesh, may_be_pending=pending) for v in made if rng.random() < pins},
    )


def divided_at_random(program: Program, mesh: Mesh, rng: random.Random) -> Program:
    """Return `program` with random layouts of its inputs, and some values pinned."""
    inputs, pins = layouts_of(program, mesh, rng, pending=True)
    order = tuple(rng.sample(mesh.names, len(mesh.names)))
    return propagate(program, mesh, Layouts(inputs, order, pins=pins), rng.choice(COSTS))


def divided_by_strategy(program: Program, strategy: Strategy, rng: random.Random) -> tuple[Program, Mesh]:
    """Return `program` divided as `strategy` says, at times with random pins and placements, and the mesh."""
    if strategy.size("dp") > 1 and not any(item.kind == "batch" and item.value.type.rank for item in program.inputs):
        strategy = Strategy.parse("tp=3 sp")
    if rng.random() < 0.5:
        inputs, values = layouts_of(program, strategy.mesh, rng, pending=True)
        parameters = {item.name for item in program.inputs if item.kind == "parameter"}
        placements = tuple(Placement(name, layout) for name, layout in inputs.items() if name in parameters)
        pins = tuple(Pin(name, layout) for name, layout in {**values, **inputs}.items() if name not in parameters)
        strategy = replace(strategy, placements=placements, pins=pins)
    return shard(program, strategy, rng.choice(COSTS), idle=True).program, strategy.mesh


def run(program: Program, mesh: Mesh, tensors: dict[str, Tensor], *, shared: bool, engine: str) -> dict[str, Tensor]:
    """Return what the sharded program computes, every stage checked."""
    axes = mesh.names if shared else ()
    program = dce(program)
    check_program(program)
    verify_sharded(program, mesh)
    if shared:
        program = dce(divide(program, mesh, axes))
        verify_sharded(program, mesh)
    graph = lower(program, mesh, axes)
    check_dependences(graph)
    given = {item.name: tensors[item.name].clone() for item in program.inputs}
    runner = RealmEngine(compile_program, 2) if engine == "realm" else ReferenceEngine(compile_program)
    return dict(runner.run(graph, given))


def check(seed: int, num_ops: int, mesh_text: str, *, by_strategy: bool, shared: bool, engine: str) -> None:
    """Draw a program and a way to divide it, and compare."""
    program, tensors = sampled_program(seed, num_ops, samples())
    program = dce(program)
    check_program(program)
    rng = random.Random(seed)
    if by_strategy:
        sharded, mesh = divided_by_strategy(program, Strategy.parse(mesh_text), rng)
    else:
        mesh = Mesh.parse(mesh_text)
        sharded = divided_at_random(program, mesh, rng)
    try:
        want = evaluate(program, tensors)
    except torch.linalg.LinAlgError:  # a matrix that has no inverse
        reject()
    wrong = unequal(run(sharded, mesh, tensors, shared=shared, engine=engine), want, TOLERANCE)
    if wrong:
        nudged = {name: t * (1 + 1e-14) if t.is_floating_point() else t for name, t in tensors.items()}
        unstable = unequal(evaluate(program, nudged), want, TOLERANCE)
        assert set(wrong) <= set(unstable), f"{wrong}\n{print_program(sharded)}"


def test_every_row_is_drawn_from() -> None:
    assert set(samples()) == set(CATALOG) - COMMUNICATING - LOCAL - {"local_slice", "keep_at_zero"}


def test_programs_reach_every_row() -> None:
    """What an unused result leaves out of a program counts for nothing."""
    drawn = (dce(sampled_program(seed, 8, samples())[0]) for seed in range(300))
    reached = {op.name for program in drawn for op in program.ops}
    assert reached >= set(samples())


@pytest.mark.parametrize(("text", "by_strategy"), [*((text, False) for text in MESHES), *((text, True) for text in STRATEGIES)])
def test_programs_are_divided(text: str, by_strategy: bool) -> None:
    """That an op is computed whole everywhere is right of all programs, so that most must do something else."""
    num_idle, num_programs = 0, 12
    for seed in range(num_programs):
        program, rng = dce(sampled_program(seed, 8, samples())[0]), random.Random(seed)
        if by_strategy:
            sharded, _ = divided_by_strategy(program, Strategy.parse(text), rng)
        else:
            sharded = divided_at_random(program, Mesh.parse(text), rng)
        num_idle += not any(v.layout.axes for op in sharded.ops if op.name not in COMMUNICATING | LOCAL for v in op.operands)
    assert num_idle <= num_programs // 3


@settings(max_examples=settings().max_examples * 3)
@given(st.integers(0, 10**9), st.integers(1, 12), st.sampled_from(MESHES), st.booleans(), st.sampled_from(("reference", "realm")))
def test_random_layouts(seed: int, num_ops: int, mesh: str, shared: bool, engine: str) -> None:
    check(seed, num_ops, mesh, by_strategy=False, shared=shared or engine == "realm", engine=engine)


@settings(max_examples=settings().max_examples * 3)
@given(st.integers(0, 10**9), st.integers(1, 10), st.sampled_from(STRATEGIES), st.booleans(), st.sampled_from(("reference", "realm")))
def test_random_strategies(seed: int, num_ops: int, strategy: str, shared: bool, engine: str) -> None:
    check(seed, num_ops, strategy, by_strategy=True, shared=shared or engine == "realm", engine=engine)
