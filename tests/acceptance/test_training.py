"""Acceptance: parallelized steps with other optimizers, frozen and tied weights, accumulated and clipped gradients equal eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from training_harness import STRATEGIES, Batch, Net, assert_same, batch_of, made, pair, run

import maniple


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_frozen_parameters(strategy: str) -> None:
    model, optimizer = made()
    model.fc.requires_grad_(requires_grad=False)
    mine, theirs = pair(model, optimizer)
    before = model.fc.weight.detach().clone()  # type: ignore[union-attr, operator]  # a linear layer
    run(mine, theirs, strategy)
    assert torch.equal(mine[0].fc.weight, before)  # type: ignore[arg-type, union-attr]  # the same


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_parameter_groups(strategy: str) -> None:
    torch.manual_seed(0)
    model = Net().double()
    rest = [*model.norm.parameters(), *model.head.parameters()]
    groups = [{"params": model.fc.parameters(), "lr": 0.1, "weight_decay": 0.5}, {"params": rest}]
    mine, theirs = pair(model, AdamW(groups, lr=1e-3, weight_decay=0.0))
    run(mine, theirs, strategy)


OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {}),
    "momentum": (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True}),
    "maximize": (SGD, {"maximize": True, "lr": 1e-3}),
    "adam": (Adam, {"weight_decay": 0.1}),
    "amsgrad": (Adam, {"amsgrad": True}),
    "adamw": (AdamW, {"betas": (0.7, 0.9), "eps": 1e-4}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["dp=2 tp=2", "dp=2 zero=3"])
def test_optimizers(name: str, strategy: str) -> None:
    make, options = OPTIMIZERS[name]
    mine, theirs = pair(*made(None, make, **options))
    run(mine, theirs, strategy)


def accumulating_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 zero=1", "dp=2 zero=2", "dp=2 zero=3", "dp=2 tp=2 zero=2"])
def test_gradient_accumulation(strategy: str) -> None:
    mine, theirs = pair(*made())
    run(mine, theirs, strategy, function=accumulating_step)


def test_zero_2_divides_gradients_while_they_accumulate() -> None:
    model, optimizer = made()
    step = maniple.parallelize(accumulating_step, model, optimizer, strategy="dp=2 zero=2")
    step(batch_of(0))
    gradients = dict(step.last.plan.sharded.program.gradients)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, value in gradients.items():
        assert value.sharding is not None
        assert isinstance(value.sharding.along("dp"), tuple), name


def clipping_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach(), "norm": norm}


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 zero=1", "dp=2 zero=2", "dp=2 zero=3", "tp=2", "dp=2 tp=2 zero=3"])
def test_clipping_by_the_global_norm(strategy: str) -> None:
    mine, theirs = pair(*made(None, SGD, lr=0.5))
    step = maniple.parallelize(clipping_step, *mine, strategy=strategy)
    for number in range(3):
        got, expected = step(batch_of(number)), clipping_step(*theirs, batch_of(number))
        assert expected["norm"] > 0.05  # or clipping would do nothing
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=0)
        assert_same(mine, theirs)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(14, 6)
        self.fc = nn.Linear(6, 6)
        self.head = nn.Linear(6, 14, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.fc(self.table(ids)).tanh())


def tied_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    ids = (batch["x"] * 3).long().abs() % 14
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tied_weights(strategy: str) -> None:
    mine, theirs = pair(*made(Tied()))
    run(mine, theirs, strategy, function=tied_step)
    assert mine[0].head.weight is mine[0].table.weight  # type: ignore[union-attr]  # layers
