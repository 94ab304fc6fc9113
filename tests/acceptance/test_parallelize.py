"""Acceptance: `maniple.parallelize` in a training loop that knows nothing of it: same numbers, same objects, same habits as eager."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from training_harness import STRATEGIES, assert_same, batch_of, made, pair, run, tensors, train_step

import maniple
from maniple.base.errors import EngineError, ManipleError
from maniple.kernels import torch as kernels
from maniple.kernels.torch import Body, compile_program
from maniple.ops.localize import Destination, LocalProgram


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loop_with_a_scheduler_outside(strategy: str) -> None:
    mine, theirs = pair(*made())
    schedulers = [OneCycleLR(optimizer, max_lr=0.05, total_steps=8) for _, optimizer in (mine, theirs)]
    step = maniple.parallelize(train_step, *mine, strategy=strategy)
    for number in range(5):
        batch = batch_of(number)
        loss = step(batch)
        torch.testing.assert_close(loss, train_step(*theirs, batch).detach(), rtol=1e-10, atol=0)
        for scheduler in schedulers:
            scheduler.step()
        assert_same(mine, theirs)
        assert mine[1].param_groups[0]["lr"] == theirs[1].param_groups[0]["lr"]
    assert step.num_steps == 5
    assert len(step.compiled) == 2  # the first step, which makes the optimizer's state, and all the others


def test_objects_stay_the_same() -> None:
    model, optimizer = made()
    before = {name: (parameter, parameter.data_ptr()) for name, parameter in model.named_parameters()}
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2")
    step(batch_of(0))
    moments = {id(p): optimizer.state[p]["exp_avg"] for p in model.parameters()}
    step(batch_of(1))
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert parameter.data_ptr() == before[name][1]
        assert optimizer.state[parameter]["exp_avg"] is moments[id(parameter)]
        assert parameter.grad is None
        assert parameter.requires_grad
        assert parameter.is_leaf


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 tp=2 zero=3"])
def test_state_loaded_midway_counts(strategy: str) -> None:
    mine, theirs = pair(*made())
    step = maniple.parallelize(train_step, *mine, strategy=strategy)
    for number in range(2):
        step(batch_of(number))
    saved = copy.deepcopy([item.state_dict() for item in mine])
    for number in range(2, 4):
        step(batch_of(number))
    for part, state in zip(mine, saved, strict=True):
        part.load_state_dict(state)
    for part, state in zip(theirs, saved, strict=True):
        part.load_state_dict(copy.deepcopy(state))
    for number in range(7, 9):
        step(batch_of(number))
        train_step(*theirs, batch_of(number))
        assert_same(mine, theirs)
    with torch.no_grad():
        for model in (mine[0], theirs[0]):
            model.fc.weight.mul_(0.5)  # type: ignore[union-attr, operator]  # a linear layer
    step(batch_of(9))
    train_step(*theirs, batch_of(9))
    assert_same(mine, theirs)


def test_state_loaded_into_a_fresh_optimizer() -> None:
    """Resuming: the first step of a process is then no first step of the optimizer."""
    old_model, old_optimizer = made()
    for number in range(2):
        train_step(old_model, old_optimizer, batch_of(number))
    mine, theirs = pair(*made())
    for model, optimizer in (mine, theirs):
        model.load_state_dict(old_model.state_dict())
        optimizer.load_state_dict(copy.deepcopy(old_optimizer.state_dict()))
    step = run(mine, theirs, "dp=2 zero=1", steps=2)
    assert len(step.compiled) == 1


def recompiles(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "maniple" and "compiling again" in record.getMessage()]


CHANGES: dict[str, tuple[Callable[[nn.Module, Optimizer], Any], str]] = {
    "weight decay": (lambda _model, optimizer: optimizer.param_groups[0].update(weight_decay=0.3), "weight_decay"),
    "eps": (lambda _model, optimizer: optimizer.param_groups[0].update(eps=1e-3), "eps"),
    "frozen": (lambda model, _optimizer: model.fc.weight.requires_grad_(requires_grad=False), "fc.weight"),
    "attribute": (lambda model, _optimizer: setattr(model.norm, "eps", 0.1), "norm"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 zero=2"])
def test_what_is_part_of_the_plan_compiles_again(name: str, strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    change, words = CHANGES[name]
    mine, theirs = pair(*made())
    step = run(mine, theirs, strategy, steps=2)
    for model, optimizer in (mine, theirs):
        change(model, optimizer)
    caplog.clear()
    with caplog.at_level(logging.INFO, "maniple"):
        for number in range(2):
            step(batch_of(number))
            train_step(*theirs, batch_of(number))
            assert_same(mine, theirs)
    (message,) = recompiles(caplog)
    assert words in message


def test_numbers_that_are_inputs_do_not_compile_again(caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = pair(*made())
    step = run(mine, theirs, "dp=2", steps=2)
    caplog.clear()
    with caplog.at_level(logging.INFO, "maniple"):
        for lr, betas in ((0.3, (0.5, 0.9)), (1e-4, (0.8, 0.99))):
            for _, optimizer in (mine, theirs):
                optimizer.param_groups[0].update(lr=lr, betas=betas)
            step(batch_of(3))
            train_step(*theirs, batch_of(3))
            assert_same(mine, theirs)
    assert recompiles(caplog) == []
    assert len(step.compiled) == 2


def test_another_batch_shape_compiles_again_and_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = pair(*made())
    step = run(mine, theirs, "dp=2", steps=2)
    caplog.clear()
    with caplog.at_level(logging.INFO, "maniple"):
        for rows in (7, 12, 7):  # 7 do not divide by 2
            step(batch_of(0, rows))
            train_step(*theirs, batch_of(0, rows))
            assert_same(mine, theirs)
    assert len(step.compiled) == 3
    assert "batch.x" in recompiles(caplog)[0]


def test_eval_mode() -> None:
    mine, theirs = pair(*made(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))))
    for model, _ in (mine, theirs):
        model.eval()
    step = run(mine, theirs, "dp=2", steps=2)
    before = mine[0].state_dict()["1.running_mean"].clone()
    mine[0].train()
    first = step(batch_of(0)).clone()
    assert not torch.equal(mine[0].state_dict()["1.running_mean"], before)
    assert not torch.equal(step(batch_of(0)), first)
    mine[0].eval()
    theirs[0].load_state_dict(mine[0].state_dict())
    theirs[1].load_state_dict(copy.deepcopy(mine[1].state_dict()))
    step(batch_of(1))
    train_step(*theirs, batch_of(1))
    assert_same(mine, theirs)


def snapshot(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return copy.deepcopy(dict(tensors("", [model.state_dict(), optimizer.state_dict()])))


def assert_untouched(before: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    now = dict(tensors("", [model.state_dict(), optimizer.state_dict()]))
    assert now.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(now[name], value) if isinstance(value, Tensor) else now[name] == value, name
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("steps", [0, 2])
def test_a_batch_that_does_not_fit_changes_nothing(steps: int) -> None:
    mine, theirs = pair(*made())
    step = run(mine, theirs, "dp=2", steps=steps)
    before = snapshot(*mine)
    bad = {"x": torch.randn(12, 5, dtype=torch.float64), "y": batch_of(0)["y"]}
    with pytest.raises(ManipleError):
        step(bad)
    assert_untouched(before, *mine)
    step(batch_of(5))
    train_step(*theirs, batch_of(5))
    assert_same(mine, theirs)


class Falling:
    """Counts the calls of all bodies; the one numbered `at` raises.

    Attributes:
        at: -1 for none.
    """

    def __init__(self) -> None:
        self.at, self.calls, self.lock = -1, 0, threading.Lock()

    def compile(self, local: LocalProgram, destinations: Sequence[Destination] = ()) -> Body:
        body = compile_program(local, destinations)

        def run(*operands: Any) -> Any:
            with self.lock:
                number, self.calls = self.calls, self.calls + 1
            if number == self.at:
                raise RuntimeError("the device fell over")
            return body(*operands)

        return Body(body.source, run, body.views)

    def count(self, call: Callable[[], Any]) -> int:
        """Return how many calls of bodies `call` makes."""
        self.calls = 0
        call()
        return self.calls


@pytest.mark.parametrize("engine", ["reference", "realm:2"])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_body_that_fails_changes_nothing_or_is_told(monkeypatch: pytest.MonkeyPatch, engine: str, steps: int, at: int) -> None:
    """Some devices have run a task, even the update, when another fails."""
    bodies = Falling()
    monkeypatch.setattr(kernels, "compile_program", bodies.compile)
    mine, theirs = pair(*made())
    twin = run(copy.deepcopy(mine), copy.deepcopy(theirs), "dp=2", steps=steps, engine=engine)
    number = bodies.count(lambda: twin(batch_of(5)))
    step = run(mine, theirs, "dp=2", steps=steps, engine=engine)
    before, saved = snapshot(*mine), [copy.deepcopy(x.state_dict()) for x in mine]
    bodies.calls, bodies.at = 0, at % number
    assert number >= 6
    with pytest.raises(EngineError, match="fell over"):
        step(batch_of(5))
    bodies.at = -1
    assert step.engine.state_changed == (engine == "realm:2" and at != 0)
    if step.engine.state_changed:
        with pytest.raises(EngineError, match="may be old or new"):
            step(batch_of(5))
        for x, state in zip(mine, saved, strict=True):
            x.load_state_dict(state)
    assert_untouched(before, *mine)
    assert step.num_steps == steps
    torch.testing.assert_close(step(batch_of(5)), train_step(*theirs, batch_of(5)).detach(), rtol=1e-10, atol=0)
    assert_same(mine, theirs)


def test_the_world_stays_as_it_is() -> None:
    model, optimizer = made(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)))
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2")
    for number in range(2):
        random_state, default = torch.get_rng_state(), torch.get_default_dtype()
        batch = batch_of(number)
        kept = copy.deepcopy(batch)
        step(batch)
        assert torch.equal(torch.get_rng_state(), random_state)
        assert torch.get_default_dtype() == default
        assert torch.is_grad_enabled()
        assert all(torch.equal(batch[key], kept[key]) for key in batch)
        assert all(parameter.grad is None for parameter in model.parameters())


def test_one_device_needs_no_words() -> None:
    mine, theirs = pair(*made())
    run(mine, theirs, "", steps=2)


def test_a_scheduler_does_not_complain(recwarn: pytest.WarningsRecorder) -> None:
    """torch warns of a scheduler that steps before its optimizer; ours has stepped."""
    model, optimizer = made()
    scheduler = StepLR(optimizer, 1)
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2")
    step(batch_of(0))
    scheduler.step()
    assert [str(item.message) for item in recwarn if "lr_scheduler" in str(item.message)] == []
