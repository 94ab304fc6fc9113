"""Acceptance: a trace of the user's own step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from acceptance_harness import maniple as command
from training_harness import batch_of, made, train_step

import maniple
from maniple.trace import Trace

ENGINES = ["reference", "realm:2"]


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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "steps", "recorded"), [("train", 6, {3, 4, 5}), ("check", 4, {2, 3}), ("train", 1, {0})])
def test_commands_record_the_last_warm_steps(engine: str, name: str, steps: int, recorded: set[int], tmp_path: Path) -> None:
    file, svg = tmp_path / "t.json", tmp_path / "t.svg"
    arguments = ["mlp", "--strategy", "dp=2", "--steps", str(steps), "--engine", engine, "--trace", str(file)]
    result = command(name, *arguments, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["trace"]
    trace = Trace.load(file)
    assert {event.step for event in trace} == recorded
    assert (found["num_steps"], found["file"]) == (len(recorded), str(file))
    assert found["num_tasks"] == sum(event.work.is_task for event in trace) > 0
    assert set(found["phase_s"]) == {"forward", "backward", "update"}
    assert 0 < found["runtime_share"] < 1
    for lane in found["lanes"]:
        assert sum(lane[f"{part}_share"] for part in ("busy", "dispatch", "serial", "idle")) == pytest.approx(1)
    again = command("trace", str(file), "--svg", str(svg), "--json")
    assert json.loads(again.stdout) == found
    assert svg.read_text(encoding="utf-8").startswith("<svg")


def test_what_cannot_be_written_or_read_is_told_first(tmp_path: Path) -> None:
    for name in ("train", "check"):
        result = command(name, "mlp", "--strategy", "dp=2", "--trace", str(tmp_path / "none" / "t.json"))
        assert result.exit_code == 2
        assert "there is no folder" in result.stderr
        assert "step 1" not in result.stderr
    result = command("trace", str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot read ")
    (tmp_path / "t.json").write_text("{}", encoding="utf-8")
    assert "is no trace" in command("trace", str(tmp_path / "t.json")).stderr
