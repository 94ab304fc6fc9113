"""Random sharded programs on Realm give, bit by bit, what the reference engine gives: whatever the memory, the processors, the timing."""

from __future__ import annotations

import random

import pytest
import torch
from graphs import Delays, fresh, mesh_texts, random_graph, same, updated
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import random_inputs, random_program

from maniple.base.errors import EngineError
from maniple.engine.realm import RealmEngine
from maniple.engine.reference import ReferenceEngine
from maniple.ir import parse_program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh


@settings(max_examples=100)
@given(st.integers(0, 10**9), st.sampled_from(mesh_texts(7)), st.integers(0, 7), st.integers(1, 25), st.sampled_from((1, 2, 4)))
def test_equals_the_reference(seed: int, mesh_text: str, shared: int, num_ops: int, num_processors: int) -> None:
    mesh = Mesh.parse(mesh_text)
    axes = tuple(axis for i, axis in enumerate(mesh.names) if shared >> i & 1)
    program = random_program(seed, mesh, num_ops, new_state=axes == mesh.names)
    graph = lower(program, mesh, axes)
    engine, reference = RealmEngine(compile_program, num_processors), ReferenceEngine(compile_program)
    for step in range(2):  # the second one finds the first one's memory
        inputs = random_inputs(program, seed + step)
        given = fresh(inputs)
        got = engine.run(graph, given)
        assert same(got, reference.run(graph, inputs))
        changed = updated(graph)
        assert all(torch.equal(given[name], got[name] if name in changed else inputs[name]) for name in inputs)


def test_devices_with_memory_of_their_own_cannot_update_one_tensor() -> None:
    text = """
program {
  in %w: f64[4]{_} parameter "w"
  %v: f64[4]{_} = negate(%w) update
  out %v "w"
}
"""
    graph = lower(parse_program(text), Mesh.parse("dp=2"))
    with pytest.raises(EngineError, match="updates input w"):
        RealmEngine(compile_program, 2).run(graph, {"w": torch.zeros(4, dtype=torch.float64)})


@pytest.mark.parametrize("num_processors", [1, 2, 4])
def test_timing_does_not_matter(num_processors: int) -> None:
    for seed, mesh_text in enumerate(mesh_texts(7)):
        graph, inputs = random_graph(seed, mesh_text)
        want = ReferenceEngine(compile_program).run(graph, inputs)
        rng = random.Random(seed)
        engine = RealmEngine(Delays(rng).compile, num_processors, rng)
        for _ in range(10):
            assert same(engine.run(graph, fresh(inputs)), want)


def test_one_step_two_hundred_times() -> None:
    graph, inputs = random_graph(5, "dp=2 tp=2")
    want = ReferenceEngine(compile_program).run(graph, inputs)
    rng = random.Random(0)
    engine = RealmEngine(Delays(rng, 0.0005).compile, 4, rng)
    for _ in range(200):
        assert same(engine.run(graph, fresh(inputs)), want)


def test_results_that_the_caller_keeps_stay() -> None:
    graph, inputs = random_graph(5, "dp=2 tp=2")
    engine = RealmEngine(compile_program, 2)
    kept = [engine.run(graph, {name: tensor * step for name, tensor in inputs.items()}) for step in range(4)]
    for step, got in enumerate(kept):
        assert same(got, ReferenceEngine(compile_program).run(graph, {name: tensor * step for name, tensor in inputs.items()}))


def test_results_share_no_memory() -> None:
    for seed, mesh_text in enumerate(mesh_texts(14)):
        graph, inputs = random_graph(seed, mesh_text)
        engine = RealmEngine(compile_program, 2)
        before = fresh(inputs)
        there = updated(graph) | {name for buffer, name in graph.outputs if (buffer, name) in graph.inputs}
        got = {name: tensor for name, tensor in engine.run(graph, inputs).items() if name not in there}
        addresses = [tensor.untyped_storage().data_ptr() for tensor in (*got.values(), *inputs.values()) if tensor.numel()]
        assert len(set(addresses)) == len(addresses)
        want = {name: tensor.clone() for name, tensor in got.items()}
        for tensor in got.values():
            tensor.fill_(torch.nan)
        again = engine.run(graph, before)
        assert same({name: again[name] for name in want}, want)
