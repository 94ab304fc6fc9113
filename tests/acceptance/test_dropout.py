"""Acceptance: with dropout on, every strategy draws the masks of one device; masks have the right rate, and differ where they must."""

from __future__ import annotations

import math
from typing import Final

import pytest
import torch
from acceptance_harness import STRATEGIES, check, wrong
from torch import Tensor, nn
from torch.nn import functional as F

import maniple

RATE: Final = 0.25
SHAPE: Final = (64, 128)


@pytest.mark.usefixtures("captured_once")
@pytest.mark.parametrize(("model", "strategy"), [*(("mlp", s) for s in STRATEGIES), ("gpt2", "tp=2"), ("gpt2", "dp=2 tp=2 zero=3")])
def test_every_strategy_draws_the_masks_of_one_device(model: str, strategy: str) -> None:
    status, report = check(model, strategy, "--dropout", "0.2", "--steps", "2")
    assert not wrong(report)
    assert (status, report["equal"]) == (0, True)


def test_dropout_changes_the_numbers() -> None:
    """Or the test above would show nothing."""

    assert train_once(0.0) != train_once(0.2)


def train_once(rate: float) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = maniple.parallelize(mean_step, model, optimizer, strategy="dp=2")
    return float(step(torch.ones(8, 8)))


def mean_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Masked(nn.Module):
    """Two dropouts of one weight each; what they let through is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
        self.v = nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
        self.layers = nn.ModuleList([nn.Dropout(RATE), nn.Dropout(RATE)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers[0](x * self.w), self.layers[1](x * self.v)


def masked_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> dict[str, Tensor]:
    first, second = model(x)
    loss = first.sum() + second.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss, "first": first, "second": second}


def masks(strategy: str, seed: int = 0, steps: int = 1, x: Tensor | None = None) -> tuple[list[dict[str, Tensor]], Masked]:
    torch.manual_seed(seed)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = maniple.parallelize(masked_step, model, optimizer, strategy=strategy)
    x = torch.ones(SHAPE, dtype=torch.float64) if x is None else x
    return [{key: value.clone() for key, value in step(x).items()} for _ in range(steps)], model


@pytest.mark.parametrize("strategy", ["", "dp=2", "dp=3", "dp=2 tp=2"])
def test_rate(strategy: str) -> None:
    (found,), _ = masks(strategy)
    for name in ("first", "second"):
        kept = found[name] != 0
        count = kept.numel()
        sigma = math.sqrt(RATE * (1 - RATE) / count)
        assert abs(kept.double().mean().item() - (1 - RATE)) < 4 * sigma
        torch.testing.assert_close(found[name][kept], torch.full((int(kept.sum()),), 1 / (1 - RATE), dtype=torch.float64))
        for part in kept.double().chunk(2):  # each shard draws at the rate too, and shards draw apart
            assert abs(part.mean().item() - (1 - RATE)) < 4 * sigma * math.sqrt(2)
        assert_independent(*kept.chunk(2))


@pytest.mark.parametrize("strategy", ["", "dp=2"])
def test_masks_differ_by_step_layer_and_seed(strategy: str) -> None:
    found, _ = masks(strategy, steps=3)
    drawn: list[Tensor] = [step[name] != 0 for step in found for name in ("first", "second")]
    (other,), _ = masks(strategy, seed=1)
    drawn.append(other["first"] != 0)
    for at, one in enumerate(drawn):
        for another in drawn[:at]:
            assert_independent(one, another)


def assert_independent(one: Tensor, another: Tensor) -> None:
    """Check that two masks agree as often as independent ones, within 4 sigma."""
    agree = RATE**2 + (1 - RATE) ** 2
    sigma = math.sqrt(agree * (1 - agree) / one.numel())
    assert abs((one == another).double().mean().item() - agree) < 4 * sigma


@pytest.mark.parametrize("strategy", ["", "dp=2", "tp=2", "dp=2 zero=3"])
def test_masks_are_those_of_one_device(strategy: str) -> None:
    (one,), _ = masks("")
    (found,), _ = masks(strategy)
    assert torch.equal(one["first"], found["first"])
    assert torch.equal(one["second"], found["second"])


@pytest.mark.parametrize("strategy", ["", "dp=2", "dp=2 zero=2", "dp=2 tp=2"])
def test_backward_uses_the_mask_of_forward(strategy: str) -> None:
    x = torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.5
    (found,), model = masks(strategy, x=x)
    for parameter, name in ((model.w, "first"), (model.v, "second")):
        gradient = torch.ones(SHAPE, dtype=torch.float64) - parameter.detach()  # lr is 1
        mask = (found[name] != 0).double()
        torch.testing.assert_close(gradient, mask * x / (1 - RATE), rtol=1e-12, atol=1e-12)


def test_attention_drops_too() -> None:
    """Fused attention with dropout is taken apart, so that its mask is ours as well."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q = self.fc(x)
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0, is_causal=True)

    def run(strategy: str) -> list[float]:
        torch.manual_seed(0)
        model = Attention().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = maniple.parallelize(mean_step, model, optimizer, strategy=strategy)
        x = torch.randn(4, 2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        return [float(step(x)) for _ in range(2)]

    one = run("")
    assert run("dp=2") == pytest.approx(one, rel=1e-12)
    assert run("tp=2") == pytest.approx(one, rel=1e-12)
