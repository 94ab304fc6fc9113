"""A step traced with what is remembered of earlier ops is the step traced without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import capture_models as models
import pytest
import torch
import torch.nn.functional as F  # its usual name
from test_fold import assert_same
from torch import nn

from maniple.capture.torch import Captured, capture, quick


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *args: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(*args).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss


class Writer(nn.Module):
    """Writes into views of tensors that other views are of, and reads them after; draws random numbers; keeps numbers that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x)
            whole = x.clone()
            left, right = whole[:, :2], whole[:, 2:]
            both = left.t()
            left[0] += right[0] * torch.tensor(2.0) ** at
            right.t()[1:] *= 3
            x = F.dropout(torch.cat([both.t(), right], dim=-1) * whole, 0.1).relu_()
            self.seen[at:] += x.detach().sum(0)[at:]
            values, indices = x.max(dim=-1, keepdim=True)
            x = x + values * indices
        return torch.where(x > 1, x, 2 * x).to(torch.bfloat16)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": lambda: (models.Gpt(0.1), (torch.zeros(2, models.LENGTH, dtype=torch.int64),)),
    "writer": lambda: (Writer(), (torch.ones(3, 4),)),
    "convolution": lambda: (
        nn.Sequential(*(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)) for _ in range(3))),
        (torch.ones(2, 2, 4, 4),),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = MODELS[name]()
    bound = (model, torch.optim.SGD(model.parameters(), lr=0.1))
    memories = []
    made = quick.Memory.__init__

    def noted(memory: quick.Memory, *given: Any, **named: Any) -> None:
        made(memory, *given, **named)
        memories.append(memory)

    monkeypatch.setattr(quick.Memory, "__init__", noted)
    remembered = capture(step, bound, args)
    assert memories[-1].num_quick > 20
    monkeypatch.setattr(quick.Memory, "form", lambda _memory, _func: "")
    assert_equal(remembered, capture(step, bound, args))
    assert memories[-1].num_quick == 0


def assert_equal(remembered: Captured, plain: Captured) -> None:
    assert_same(remembered, plain)
    ours, theirs = ([(op.name, op.attrs, op.location) for op in item.program.ops] for item in (remembered, plain))
    assert ours == theirs


def test_alike_operands_of_an_op_without_a_row_are_two() -> None:
    """The second `tanh` is remembered from the first; what `logaddexp` is made of must not take the one for the other."""

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp(x.tanh(), y.tanh())

    captured = capture(twice, [], [torch.ones(3), torch.ones(3)])
    inputs = {item.value for item in captured.program.inputs}
    assert inputs <= {value for op in captured.program.ops for value in op.operands}
