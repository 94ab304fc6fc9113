"""Tracing: what a traced step records, and that others record nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import torch
from graphs import Delays, Failing, random_graph, same

from maniple.base.errors import EngineError
from maniple.engine.realm import RealmEngine
from maniple.engine.realm.schedule import schedule
from maniple.kernels.torch import compile_program
from maniple.taskgraph import TaskGraph
from maniple.trace import Event, Trace

STEPS = 2


def traced(graph: TaskGraph, inputs: dict[str, torch.Tensor], num_processors: int, seed: int) -> Trace:
    rng = random.Random(seed)
    engine = RealmEngine(Delays(rng, 0.0005).compile, num_processors, rng)
    engine.run(graph, inputs)
    trace = Trace()
    for step in range(STEPS):
        with trace.step(step):
            engine.run(graph, inputs, trace)
    return trace


def tasks_of(trace: Trace, step: int) -> dict[tuple[str, int], Event]:
    found = [event for event in trace if event.work.is_task and event.step == step]
    by_point = {(event.work.name, event.device): event for event in found}
    assert len(by_point) == len(found), "a point task is there twice"
    return by_point


CASES = [("dp=2", 2), ("dp=2 tp=2", 1), ("dp=2 tp=3", 2), ("dp=2 tp=2 cp=2", 3)]


@pytest.mark.parametrize(("mesh", "num_processors"), CASES)
def test_every_point_task_is_there_once_per_step(mesh: str, num_processors: int) -> None:
    graph, inputs = random_graph(3, mesh)
    trace = traced(graph, inputs, num_processors, 1)
    points = schedule(graph)
    for step in range(STEPS):
        found = tasks_of(trace, step)
        assert set(found) == {(graph.tasks[point.task].name, point.device) for point in points}
        assert sum(event.work.num_bytes for event in found.values()) == sum(graph.tasks[point.task].num_bytes for point in points)
        assert sum(event.work.flops for event in found.values()) == sum(graph.tasks[point.task].flops for point in points)
        for task in graph.tasks:
            event = next(event for (name, _), event in found.items() if name == task.name)
            about = event.work
            assert (about.kind, about.op, about.phase, about.location) == (task.kind, task.op, task.phase, task.location)


@pytest.mark.parametrize(("mesh", "num_processors"), CASES)
def test_events_lie_in_their_step_and_follow_the_edges(mesh: str, num_processors: int) -> None:
    graph, inputs = random_graph(4, mesh)
    trace = traced(graph, inputs, num_processors, 2)
    points = schedule(graph)
    spans = {event.step: event for event in trace if event.work.kind == "step"}
    assert set(spans) == set(range(STEPS))
    for event in trace:
        assert spans[event.step].start_ns <= event.ready_ns <= event.start_ns <= event.end_ns <= spans[event.step].end_ns
    for step in range(STEPS):
        found = tasks_of(trace, step)
        events = [found[graph.tasks[point.task].name, point.device] for point in points]
        for point, event in zip(points, events, strict=True):
            if point.after:
                assert event.ready_ns == max(events[other].end_ns for other in point.after)
        devices = list(graph.mesh.points())
        for edge in graph.edges:
            for device, place in enumerate(devices):
                others = [(edge.before, graph.mesh.device(other)) for other in graph.mesh.group(place, edge.axes)]
                late = found.get((edge.after, device))
                assert late is None or all(found[other].end_ns <= late.start_ns for other in others if other in found)


@pytest.mark.parametrize(("mesh", "num_processors"), CASES)
def test_a_processor_does_one_thing_at_a_time(mesh: str, num_processors: int) -> None:
    graph, inputs = random_graph(5, mesh)
    trace = traced(graph, inputs, num_processors, 3)
    assert {lane for lane in trace.lanes if lane.endswith("/compute")} == {f"cpu{n}/compute" for n in range(num_processors)}
    for place in {lane.partition("/")[0] for lane in trace.lanes if lane.startswith("cpu")}:
        events = sorted((e for e in trace if e.lane.startswith(place + "/")), key=lambda e: (e.start_ns, e.end_ns))
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(events))
        for before, after in itertools.pairwise(events):  # overhead is told where it is
            if after.work.is_task and before.step == after.step:
                assert after.start_ns == max(before.end_ns, after.ready_ns)


def test_what_the_runtime_does_is_there() -> None:
    graph, inputs = random_graph(6, "dp=2")
    names = Counter(event.work.name for event in traced(graph, inputs, 2, 4) if event.lane == "main/runtime")
    assert names == dict.fromkeys(("place inputs", "issue", "wait", "take outputs", "free"), STEPS)


def test_results_are_the_same_and_later_steps_are_not_traced() -> None:
    graph, inputs = random_graph(7, "dp=2 tp=2")
    engine, trace = RealmEngine(compile_program, 2), Trace()
    want = engine.run(graph, inputs)
    got = engine.run(graph, inputs, trace)
    assert same(got, want)
    count = len(trace)
    assert count >= len(schedule(graph))
    engine.run(graph, inputs)
    assert len(trace) == count


def test_a_step_that_fails_leaves_no_tasks() -> None:
    graph, inputs = random_graph(8, "dp=2")
    failing, trace = Failing(at=3), Trace()
    engine = RealmEngine(failing.compile, 2)
    with pytest.raises(EngineError, match="on purpose"), trace.step(0):
        engine.run(graph, inputs, trace)
    assert not tasks_of(trace, 0)
    assert trace.num_steps == 0
    with trace.step(1):
        engine.run(graph, inputs, trace)
    assert len(tasks_of(trace, 1)) == len(schedule(graph))
