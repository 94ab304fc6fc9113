"""Acceptance: gradient scalers. An update that PyTorch leaves out is left out here too, at the same steps, with the same state after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from training_harness import Batch, Net, assert_same, batch_of, made

import maniple
from maniple.base.errors import CaptureError

Step = Callable[[nn.Module, Optimizer, GradScaler, Batch], Any]


def scaled_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, batch: Batch) -> Any:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def clipped_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, batch: Batch) -> Any:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return {"loss": loss, "norm": norm, "scale": scaler.get_scale()}


def half_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, batch: Batch) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(batch["x"].float()).float(), batch["y"])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def endless_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, batch: Batch) -> Any:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    return loss


def overflowing(number: int, bad: tuple[int, ...]) -> Batch:
    batch = batch_of(number)
    if number in bad:
        batch["x"][0, 0] = torch.inf
    return batch


def train(
    model: nn.Module, optimizer: Optimizer, scaler: GradScaler, function: Step, strategy: str, bad: tuple[int, ...]
) -> tuple[maniple.Step, list[bool]]:
    """Train two ways and compare everything; return the step, and at which steps there was an update."""
    mine, theirs = (model, optimizer, scaler), copy.deepcopy((model, optimizer, scaler))
    step = maniple.parallelize(function, *mine, strategy=strategy)
    updates = []
    for number in range(5):
        before = [parameter.detach().clone() for parameter in theirs[0].parameters()]
        batch = overflowing(number, bad)
        torch.testing.assert_close(step(batch), function(*theirs, batch), rtol=1e-10, atol=1e-10, equal_nan=True)
        assert_same(mine[:2], theirs[:2])
        assert scaler.state_dict() == theirs[2].state_dict()
        updates.append(any(not torch.equal(p, old) for p, old in zip(theirs[0].parameters(), before, strict=True)))
    return step, updates


@pytest.mark.parametrize(
    ("strategy", "function", "make", "bad"),
    [
        ("dp=2", scaled_step, AdamW, (2,)),
        ("dp=2 tp=2 zero=3", clipped_step, AdamW, (0, 1)),
        ("tp=2", scaled_step, SGD, (0, 3)),
    ],
)
def test_updates_are_left_out(strategy: str, function: Step, make: Callable[..., Optimizer], bad: tuple[int, ...]) -> None:
    options = {"momentum": 0.9, "dampening": 0.1} if make is SGD else {}
    model, optimizer = made(None, make, **options)
    step, updates = train(model, optimizer, GradScaler("cpu", init_scale=64.0, growth_interval=2), function, strategy, bad)
    assert updates == [number not in bad for number in range(5)]
    assert len(step.compiled) == 2  # with and without optimizer state


def test_overflow_of_halves() -> None:
    """A scale that float16 cannot hold halves until it can, as eagerly; a fused optimizer would unscale in its kernel."""
    torch.manual_seed(0)
    model = Net()
    optimizer = Adam(model.parameters(), lr=1e-2, fused=True)
    scaler = GradScaler("cpu", init_scale=2.0**19)
    mine, theirs = (model, optimizer, scaler), copy.deepcopy((model, optimizer, scaler))
    step = maniple.parallelize(half_step, *mine, strategy="dp=2")
    scales = []
    for number in range(5):
        torch.testing.assert_close(step(batch_of(number)), half_step(*theirs, batch_of(number)), rtol=1e-3, atol=1e-3)
        assert scaler.state_dict() == theirs[2].state_dict()
        scales.append(scaler.get_scale())
    torch.testing.assert_close(dict(model.named_parameters()), dict(theirs[0].named_parameters()), rtol=1e-2, atol=1e-3)
    assert scales[0] < 2.0**19
    assert scales[-1] == scales[-2]


def test_state_of_the_scaler_is_loaded() -> None:
    model, optimizer = made()
    scaler = GradScaler("cpu", init_scale=8.0)
    step = maniple.parallelize(clipped_step, model, optimizer, scaler, strategy="dp=2")
    assert step(batch_of(0))["scale"] == 8.0
    scaler.load_state_dict({**scaler.state_dict(), "scale": 32.0})
    assert step(batch_of(1))["scale"] == 32.0
    assert step(batch_of(2))["scale"] == 32.0
    assert len(step.compiled) == 2


def test_a_scaler_that_is_not_updated_is_refused() -> None:
    model, optimizer = made()
    step = maniple.parallelize(endless_step, model, optimizer, GradScaler("cpu"), strategy="dp=2")
    with pytest.raises(CaptureError, match=r"before scaler\.update"):
        step(batch_of(0))


def averaging_step(model: nn.Module, optimizer: Optimizer, shadow: list[Tensor], batch: Batch) -> Any:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, parameter in zip(shadow, model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)
    return loss


def test_tensors_in_a_list_are_state() -> None:
    model, optimizer = made()
    mine: Any = (model, optimizer, [parameter.detach().clone() for parameter in model.parameters()])
    theirs = copy.deepcopy(mine)
    step = maniple.parallelize(averaging_step, *mine, strategy="dp=2 zero=3")
    for number in range(3):
        torch.testing.assert_close(step(batch_of(number)), averaging_step(*theirs, batch_of(number)))
    torch.testing.assert_close(mine[2], theirs[2], rtol=1e-10, atol=1e-12)
