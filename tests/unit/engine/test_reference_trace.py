"""Tracing on the reference engine: one lane for each device."""

from __future__ import annotations

import itertools
import random

import pytest
from random_programs import random_inputs, random_program

from maniple.engine.reference import ReferenceEngine
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh
from maniple.taskgraph.regions import Memory
from maniple.trace import Trace

STEPS = 2


@pytest.mark.parametrize("shared", [(), ("dp",), ("dp", "tp")])
def test_point_tasks(shared: tuple[str, ...]) -> None:
    mesh = Mesh.parse("dp=2 tp=2")
    program = random_program(3, mesh, 20)
    graph = lower(program, mesh, shared)
    inputs, engine, trace = random_inputs(program, 3), ReferenceEngine(compile_program, random.Random(3)), Trace()
    engine.run(graph, inputs)
    for step in range(STEPS):
        with trace.step(step):
            engine.run(graph, inputs, trace)
    count = len(trace)
    engine.run(graph, inputs)
    assert len(trace) == count
    memory, places = Memory(mesh, shared), list(mesh.points())
    expected = [
        (task, device) for task in graph.tasks for device, place in enumerate(places)
        if any(memory.writes(task, access, place) for access in task.accesses if access.privilege == "write")
    ]  # fmt: skip
    for step in range(STEPS):
        events = [event for event in trace if event.work.is_task and event.step == step]
        found = {(event.work.name, event.device): event for event in events}
        assert len(found) == len(events) == len(expected)
        assert {(task.name, device) for task, device in expected} == set(found)
        assert sum(event.work.num_bytes for event in events) == sum(task.num_bytes for task, _ in expected)
        (span,) = (event for event in trace if event.work.kind == "step" and event.step == step)
        assert all(span.start_ns <= event.start_ns <= event.end_ns <= span.end_ns for event in events)
        assert all(event.lane == f"device{event.device}/compute" for event in events)
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(events))
        for edge in graph.edges:
            for device, place in enumerate(places):
                late = found.get((edge.after, device))
                others = [(edge.before, mesh.device(other)) for other in mesh.group(place, edge.axes)]
                assert late is None or all(found[other].end_ns <= late.start_ns for other in others if other in found)
    names = [event.work.name for event in trace if event.lane == "main/runtime"]
    assert names == ["place inputs", "take outputs"] * STEPS
