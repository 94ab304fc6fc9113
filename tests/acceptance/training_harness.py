"""A model, its training step, and the comparison of a parallelized loop with an eager one; for the tests of `parallelize`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

import maniple

Batch = dict[str, Tensor]
STRATEGIES = ["dp=2", "tp=2", "dp=2 tp=2 zero=3", "dp=3 zero=2"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 10)
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.gelu(self.fc(x))))


def train_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def batch_of(number: int, rows: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(100 + number)
    return {
        "x": torch.randn(rows, 6, dtype=torch.float64, generator=generator),
        "y": torch.randint(0, 4, (rows,), generator=generator),
    }


def made(model: nn.Module | None = None, make: Callable[..., Optimizer] = AdamW, **options: Any) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = (model or Net()).double()
    return model, make(model.parameters(), **{"lr": 1e-2, **options})


def pair(model: nn.Module, optimizer: Optimizer) -> tuple[tuple[nn.Module, Optimizer], tuple[nn.Module, Optimizer]]:
    """Return the two and a copy of them."""
    return (model, optimizer), copy.deepcopy((model, optimizer))


def tensors(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(f"{prefix}.{key}", item)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from tensors(f"{prefix}.{at}", item)
    else:
        yield prefix, value


def assert_same(one: tuple[nn.Module, Optimizer], other: tuple[nn.Module, Optimizer], rtol: float = 1e-9) -> None:
    for mine, theirs in zip(one, other, strict=True):
        found, expected = dict(tensors("", mine.state_dict())), dict(tensors("", theirs.state_dict()))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, Tensor):
                assert found[name].dtype == value.dtype, name
                torch.testing.assert_close(found[name], value, rtol=rtol, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
            else:
                assert found[name] == value, name


def run(
    mine: tuple[nn.Module, Optimizer],
    theirs: tuple[nn.Module, Optimizer],
    strategy: str,
    steps: int = 3,
    function: Any = train_step,
    engine: str | None = None,
) -> maniple.Step:
    """Train both, one in parallel and one eagerly, and compare losses and state after each step."""
    step = maniple.parallelize(function, *mine, strategy=strategy, engine=engine)
    for number in range(steps):
        batch = batch_of(number)
        torch.testing.assert_close(step(batch), function(*theirs, batch), rtol=1e-10, atol=1e-12)
        assert_same(mine, theirs)
    return step
