"""Acceptance: a trace of the user's own step."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from training_harness import batch_of, made, train_step

import maniple

ENGINES = ["reference", pytest.param("realm:2", marks=pytest.mark.skipif(find_spec("legate") is None, reason="legate is not installed"))]


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_inside_are_recorded(engine: str) -> None:
    model, optimizer = made()
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2", engine=engine)
    for number in range(2):
        step(batch_of(number))
    with step.trace() as trace:
        step(batch_of(2))
        with step.trace() as inner:
            step(batch_of(3))
        step(batch_of(4))
    count = len(trace)
    step(batch_of(5))
    assert len(trace) == count
    assert (trace.num_steps, inner.num_steps) == (2, 1)
    assert {event.step for event in trace} == {2, 4}
    assert {event.step for event in inner} == {3}
    tasks = [event for event in inner if event.work.is_task]
    assert {event.work.name for event in tasks} == {task.name for task in step.last.plan.graph.tasks}
    assert {event.work.phase for event in tasks} == {"forward", "backward", "update"}
    main = [event.work.name for event in inner if event.lane == "main/runtime"]
    assert main[:2] == ["find plan", "bind"]
    assert main[-2:] == ["commit", "make result"]
    (span,) = (event for event in inner if event.work.kind == "step")
    assert all(span.start_ns <= event.start_ns <= event.end_ns <= span.end_ns for event in inner)
