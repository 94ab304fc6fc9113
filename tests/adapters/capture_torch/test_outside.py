"""Tensors that the step's code holds without being given them: read anew at each step, and refused where that is not enough."""

from __future__ import annotations

import gc
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from capture_harness import Runner
from torch import Tensor, nn

from maniple.base.errors import CaptureError


def runner(function: Callable[[Any, Tensor], Any]) -> Runner:
    """Return a captured step that returns what `function(model, x)` does."""
    model = nn.Linear(2, 2)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
        result = function(model, x)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return result

    return Runner(step, (model, torch.optim.SGD(model.parameters(), lr=0.0)))


@pytest.mark.parametrize(
    "function",
    [
        lambda t, x: x * t,
        lambda t, x: x * (t * t + 1),
        lambda t, x: t,
        lambda t, x: x.clone().mul_(t),
        lambda t, x: torch.where(t > 2.5, x, -x),
    ],
)
def test_read_anew(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, held = torch.ones(1, 2), torch.tensor(2.0)
    run = runner(lambda _model, x: function(held, x))
    assert torch.equal(run(x), function(held, x))
    held.fill_(3.0)
    assert torch.equal(run(x), function(held, x))
    assert len(run.compiled) == 1


def test_made_inside_is_a_constant() -> None:
    run = runner(lambda _model, x: x * torch.tensor(2.0) + torch.ones(()))
    assert torch.equal(run(torch.ones(1, 2)), torch.full((1, 2), 3.0))
    assert not [item.name for item in run.compiled[0][0].program.inputs if item.name.startswith("constant")]


HELD = torch.tensor([2.0])
NEEDS_GRADIENT = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda _m, x: x * HELD.item(), "makes a Python number"),
        (lambda _m, x: x * float(HELD), "makes a Python number"),
        (lambda _m, x: x if HELD > 1 else -x, "makes a Python number"),
        (lambda _m, x: x * HELD.tolist()[0], r"tolist\(\)"),
        (lambda _m, x: x * HELD.numpy()[0], r"numpy\(\)"),
        (lambda m, x: x * m(x).detach().numpy()[0], r"numpy\(\)"),
        (lambda m, x: x * m(x).tolist()[0], r"tolist\(\)"),
        (lambda _m, x: x * HELD.add_(1), "changes a tensor"),
        (lambda _m, x: torch.add(x[0, :1], 1, out=HELD), "changes a tensor"),
        (lambda _m, x: x * NEEDS_GRADIENT, "gradient of a tensor"),
    ],
)
def test_refused(function: Callable[..., Tensor], says: str) -> None:
    with pytest.raises(CaptureError, match=says) as caught:
        runner(function)(torch.ones(1, 2))
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
    assert HELD.item() == 2
    assert NEEDS_GRADIENT.grad is None
    assert HELD.numpy().tolist() == [2]


def test_teacher_without_gradients() -> None:
    teacher, x = nn.Linear(2, 2), torch.ones(1, 2)

    def distil(_model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            return teacher(x)

    run = runner(distil)
    for factor in (1, 2):
        teacher.weight.data *= factor
        assert torch.equal(run(x), teacher(x))
    assert len(run.compiled) == 1


def test_no_garbage_is_collected_during_a_trace() -> None:
    """If what a failed trace left is freed in the middle of an op of the next trace, torch stops that."""
    collected: SimpleQueue[str] = SimpleQueue()  # no guard looks into it
    inside: SimpleQueue[str] = SimpleQueue()

    def function(_model: nn.Module, x: Tensor) -> Tensor:
        inside.put("a call")
        cycles: list[Any] = [[] for _ in range(100)]
        for cycle in cycles:
            cycle.append(cycle)
        assert collected.empty()
        return x * 2

    def note(phase: str, _info: dict[str, int]) -> None:
        if not inside.empty():
            collected.put(phase)

    threshold = gc.get_threshold()
    gc.set_threshold(10)
    gc.callbacks.append(note)
    try:
        runner(function)(torch.ones(1, 2))
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    assert not inside.empty()
