"""Random sharded programs: whatever the mesh, the memory and the order, tasks compute what one device computes."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import evaluate, random_inputs, random_program

from maniple.base.errors import VerifyError
from maniple.engine.reference import ReferenceEngine
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh
from maniple.taskgraph import TaskGraph, parse_taskgraph, print_taskgraph
from maniple.verify.dependences import check_dependences

MESHES = ("dp=2", "dp=3", "dp=2 tp=2", "dp=2 tp=3", "dp=1 tp=4", "dp=2 tp=2 cp=2", "cp=3 dp=1 tp=2")


def shared_of(mesh: Mesh, number: int) -> tuple[str, ...]:
    """Return one of the sets of axes, by number."""
    return tuple(axis for i, axis in enumerate(mesh.names) if number >> i & 1)


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], note: str) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}\n{note}")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(MESHES), st.integers(0, 7), st.integers(1, 25))
def test_any_program_memory_and_order(seed: int, mesh_text: str, number: int, num_ops: int) -> None:
    mesh = Mesh.parse(mesh_text)
    program = random_program(seed, mesh, num_ops)
    graph = lower(program, mesh, shared_of(mesh, number))
    check_dependences(graph)
    text = print_taskgraph(graph)
    assert print_taskgraph(parse_taskgraph(text)) == text
    inputs = random_inputs(program, seed)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    want = evaluate(program, inputs)
    engine = ReferenceEngine(compile_program, random.Random(seed))
    assert_same(engine.run(graph, inputs), want, text)
    assert_same(ReferenceEngine(compile_program).run(parse_taskgraph(text), inputs), want, text)
    assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())


def without_edge(graph: TaskGraph, number: int) -> TaskGraph:
    edges = graph.edges[:number] + graph.edges[number + 1 :]
    return TaskGraph(graph.mesh, graph.shared, graph.buffers, graph.tasks, edges, graph.segments, graph.inputs, graph.outputs)


def test_every_edge_is_needed() -> None:
    """Remove each edge of many graphs, on dims so long that no shard is empty: the checker notices every one."""
    removed = 0
    for seed, mesh_text in itertools.product(range(40), ("dp=2", "dp=2 tp=2")):
        mesh = Mesh.parse(mesh_text)
        graph = lower(random_program(seed, mesh, 20), mesh, shared_of(mesh, seed % 4))
        if any(not all(b.sharding.local_shape(b.type.shape, mesh, p)) for b in graph.buffers for p in mesh.points()):
            continue
        for number in range(len(graph.edges)):
            with pytest.raises(VerifyError, match=r"nothing orders|no task wrote"):
                check_dependences(without_edge(graph, number))
            removed += 1
    assert removed > 100
