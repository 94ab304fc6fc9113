"""How libraries notice that they are traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capture_harness import assert_same_training
from torch import Tensor, nn

from maniple.base.errors import CaptureError
from maniple.capture.torch import capture


class Careful(nn.Module):
    """Checks numbers in tensors, unless it is traced, as transformers does with masks."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.inner, self.limit = nn.Linear(6, 3), limit

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if not torch.compiler.is_compiling() and not (y < self.limit).all():
            raise ValueError("too large")
        return y


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    assert not torch.compiler.is_compiling()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def test_checks_are_left_out() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Careful(100.0).double()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    assert_same_training(make, step, [(torch.randn(4, 6, dtype=torch.float64),) for _ in range(3)])
    assert not torch.compiler.is_compiling()


def test_flag_is_put_back_after_errors() -> None:
    class Failing(Careful):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            raise ValueError("the user's own mistake")

    model = Failing(1.0)
    with pytest.raises(CaptureError, match="own mistake"):
        capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)), (torch.randn(4, 6),))
    assert not torch.compiler.is_compiling()
