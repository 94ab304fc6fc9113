"""Acceptance: the user's tensors are the state. They are written where they lie, and a step that fails leaves them right or refused."""

from __future__ import annotations

import copy
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from training_harness import assert_same, batch_of, made, pair, train_step

import maniple
from maniple.base.errors import EngineError
from maniple.engine.realm import RealmEngine
from maniple.kernels.torch import Body, compile_program
from maniple.ops.localize import Destination, LocalProgram


@dataclass
class Spoiled:
    """Bodies of which those of one kind raise: those that update state, or those that do not."""

    when: str = "never"
    error: BaseException = field(default_factory=lambda: ZeroDivisionError("on purpose"))

    def compile(self, local: LocalProgram, destinations: Sequence[Destination] = ()) -> Body:
        body = compile_program(local, destinations)
        kind = "update" if any(given.inputs for given in destinations) else "before"

        def run(*operands: Any) -> tuple[torch.Tensor, ...]:
            result = body(*operands)
            if self.when == kind:
                raise self.error
            return result

        return Body(body.source, run, body.views)


def stepping(bodies: Spoiled, strategy: str = "dp=2") -> tuple[Any, Any, maniple.api.Step]:
    """Return what eager trains, what Maniple trains, and the step, two steps later."""
    mine, theirs = pair(*made())
    step = maniple.parallelize(train_step, *mine, strategy=strategy, engine="realm")
    step.engine = RealmEngine(bodies.compile, 2)
    for number in range(2):
        step(batch_of(number))
        train_step(*theirs, batch_of(number))
    assert_same(mine, theirs)
    return mine, theirs, step


def addresses(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    state = [x for entry in optimizer.state.values() for x in entry.values() if isinstance(x, torch.Tensor)]
    return [x.data_ptr() for x in (*model.parameters(), *model.buffers(), *state)]


@pytest.mark.parametrize("strategy", ["", "dp=2", "tp=2", "dp=2 zero=3", "dp=2 tp=2"])
def test_steps_write_where_the_state_lies(strategy: str) -> None:
    mine, theirs, step = stepping(Spoiled(), strategy)
    before, seen = addresses(*mine), next(mine[0].parameters()).detach()
    step(batch_of(2))
    train_step(*theirs, batch_of(2))
    assert addresses(*mine) == before
    assert_same(mine, theirs)
    assert torch.equal(seen, next(mine[0].parameters()))
    floats = [name for name in step.last.plan.graph.inputs if not name[1].startswith(("optimizer.step", "batch", "lr", "betas"))]
    assert len(step.last.plan.updated) >= 0.6 * len(floats)


def test_a_step_that_fails_before_its_update_changes_nothing() -> None:
    bodies = Spoiled()
    mine, theirs, step = stepping(bodies)
    bodies.when = "before"
    with pytest.raises(EngineError, match="on purpose"):
        step(batch_of(2))
    assert_same(mine, theirs)
    bodies.when = "never"
    step(batch_of(2))
    train_step(*theirs, batch_of(2))
    assert_same(mine, theirs)


def test_a_step_that_fails_amid_its_update_is_refused_until_state_is_loaded() -> None:
    bodies = Spoiled()
    mine, theirs, step = stepping(bodies)
    saved = [copy.deepcopy(x.state_dict()) for x in mine]
    bodies.when = "update"
    with pytest.raises(EngineError, match="on purpose"):
        step(batch_of(2))
    bodies.when = "never"
    with pytest.raises(EngineError, match=r"may be old or new(.|\n)*load_state_dict"):
        step(batch_of(2))
    mine[0].load_state_dict(saved[0])
    with pytest.raises(EngineError, match="may be old or new"):  # the optimizer's state is not yet
        step(batch_of(2))
    mine[1].load_state_dict(saved[1])
    step(batch_of(2))
    train_step(*theirs, batch_of(2))
    assert_same(mine, theirs)


def test_ctrl_c_amid_the_update_lets_it_finish() -> None:
    """The interrupt is sent by a body of the update, so that it arrives while that runs."""
    bodies = Spoiled()
    mine, theirs, step = stepping(bodies)
    train_step(*theirs, batch_of(2))
    interrupt_in(step, lambda destinations: any(given.inputs for given in destinations))
    with pytest.raises(KeyboardInterrupt):
        step(batch_of(2))
    assert_same(mine, theirs)
    assert step.num_steps == 3


def interrupt_in(step: maniple.api.Step, chosen: Callable[[Sequence[Destination]], bool]) -> None:
    """Let the step's next run be interrupted while a body runs whose destinations are `chosen`."""
    first = threading.Lock()

    def compiled(local: LocalProgram, destinations: Sequence[Destination] = ()) -> Body:
        body = compile_program(local, destinations)

        def run(*operands: Any) -> tuple[torch.Tensor, ...]:
            if chosen(destinations) and first.acquire(blocking=False):  # once, whichever device comes first
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.3)  # the main thread looks up meanwhile
            return body(*operands)

        return Body(body.source, run, body.views)

    step.engine = RealmEngine(compiled, 2)


def test_an_average_outside_of_the_step_and_loading_between_steps() -> None:
    model, optimizer = made()
    average = copy.deepcopy(model)
    assert isinstance(optimizer, AdamW)
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2", engine="realm")
    views = [p.detach() for p in model.parameters()]
    for number in range(3):
        step(batch_of(number))
        with torch.no_grad():
            for mean, now in zip(average.parameters(), views, strict=True):
                mean.lerp_(now, 0.5)
    assert all(torch.equal(view, p) for view, p in zip(views, model.parameters(), strict=True))
    model.load_state_dict(average.state_dict())
    want, _ = copy.deepcopy(model), None
    step(batch_of(3))
    assert not any(torch.equal(a, b) for a, b in zip(want.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("file", "function", "line", "finishes"),
    [
        ("plan.py", "run", 1, False),
        ("plan.py", "_begin", 1, False),
        ("spawn_list.py", "run", 1, False),
        ("plan.py", "_take_outputs", 2, True),
        ("plan.py", "_clear", 2, True),
        ("binding.py", "commit", 1, True),
        ("binding.py", "commit", 4, True),
    ],
)
def test_ctrl_c_at_any_line_of_the_main_thread(file: str, function: str, line: int, finishes: bool) -> None:
    """The step happens whole, or not at all, and the next one works."""
    mine, theirs, step = stepping(Spoiled())
    interrupt_at(file, function, line)
    with pytest.raises(KeyboardInterrupt):
        step(batch_of(2))
    assert sys.gettrace() is None, "the line was never reached"
    if finishes:
        train_step(*theirs, batch_of(2))
    assert step.num_steps == 2 + finishes
    assert_same(mine, theirs)
    step(batch_of(3))
    train_step(*theirs, batch_of(3))
    assert_same(mine, theirs)


def interrupt_at(file: str, function: str, line: int) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does, before line number `line` that a function of this thread runs."""
    count = 0

    def each_line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        if count == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return each_line

    def each_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return each_line if frame.f_code.co_filename.endswith(file) and frame.f_code.co_name == function else None

    sys.settrace(each_call)
