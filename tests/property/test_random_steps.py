"""Random training steps under random strategies give the numbers of eager PyTorch on one device, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_steps import Net, random_net
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

import maniple

STRATEGIES = (
    "dp=2", "dp=3", "tp=2", "tp=3", "dp=2 tp=2", "dp=2 tp=2 zero=1", "tp=2 dp=2 zero=2", "dp=2 tp=2 zero=3", "dp=3 zero=3", "tp=4",
    "tp=2 sp", "dp=2 tp=2 zero=3 sp", "tp=3 sp", "dp=2 tp=3 zero=2", "tp=5",
)  # fmt: skip


def train(model: Net, optimizer: Optimizer, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    loss, last = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss, last


def accumulate(model: Net, optimizer: Optimizer, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    for _ in range(2):
        loss, last = model(batch)
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss, last


def momentum(model: Net) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: Net) -> Optimizer:
    return AdamW(model.parameters(), lr=0.01)


@settings(max_examples=20)
@given(
    st.integers(0, 10**6),
    st.sampled_from(STRATEGIES),
    st.sampled_from([train, accumulate]),
    st.sampled_from([momentum, adamw]),
    st.sampled_from(["realm:1", "realm:2", "realm:4", "reference"]),
)
def test_random_step_equals_eager(seed: int, strategy: str, step: Any, make_optimizer: Any, engine: str) -> None:
    model, batch = random_net(seed)
    loss, _ = model(batch)
    assume(loss.requires_grad)
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = make_optimizer(model), make_optimizer(twin)
    parallel = maniple.parallelize(step, model, optimizer, strategy=strategy, engine=engine)
    where = "\n".join([strategy, engine, *model.recipe.text])
    for _ in range(2):
        for want, got in zip(step(twin, twin_optimizer, batch), parallel(batch), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9, msg=lambda text: f"{text}\n{where}")
    assert all(not compiled.plan.problems() for compiled in parallel.compiled), where
    scale = max(float(parameter.detach().norm()) for parameter in twin.parameters())
    for (name, got), want in zip(model.named_parameters(), twin.parameters(), strict=True):
        distance = float((got - want).detach().norm())
        assert distance == pytest.approx(0, abs=1e-7 * max(float(want.detach().norm()), 1e-3 * scale)), f"{name}\n{where}"
