"""Steps that read state which they also change: what is read is the old value, as in eager, wherever the new one is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import maniple

Step = Callable[[nn.Module, Optimizer, Tensor], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("a", torch.arange(16.0).reshape(4, 4))
        self.register_buffer("b", torch.arange(16.0, 32.0).reshape(4, 4))


def trained(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model.fc(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def returns_old(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Any:
    old = model.fc.weight.detach().clone().t()
    return trained(model, optimizer, x), old


def returns_a_row(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Any:
    loss = trained(model, optimizer, x)
    with torch.no_grad():
        row = model.a[0].clone()
        model.a.add_(1.0)
    return loss, row


def swaps(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Any:
    loss = trained(model, optimizer, x)
    with torch.no_grad():
        one, other = model.a.t().clone(), model.b.t().clone()
        model.a.copy_(other)
        model.b.copy_(one)
    return loss


def turns(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Any:
    loss = trained(model, optimizer, x)
    with torch.no_grad():
        model.a.copy_(model.a.t().clone())
    return loss


@pytest.mark.parametrize("engine", ["realm:1", "realm:2", "reference"])
@pytest.mark.parametrize("strategy", ["", "dp=2"])
@pytest.mark.parametrize("step", [returns_old, returns_a_row, swaps, turns])
def test_reads_are_of_the_old_state(step: Step, strategy: str, engine: str) -> None:
    for make in (SGD, AdamW):
        torch.manual_seed(0)
        mine = Net().double()
        theirs = copy.deepcopy(mine)
        optimizers = [make(model.parameters(), lr=0.1) for model in (mine, theirs)]
        parallel = maniple.parallelize(step, mine, optimizers[0], strategy=strategy, engine=engine)
        for number in range(3):
            x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
            for got, want in zip(_listed(parallel(x)), _listed(step(theirs, optimizers[1], x)), strict=True):
                torch.testing.assert_close(got, want.detach(), rtol=1e-10, atol=1e-12)
            for name, tensor in theirs.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[name], tensor, rtol=1e-10, atol=1e-12)


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
