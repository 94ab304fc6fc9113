"""State that has memory in common with other tensors of a step, and what a step does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import maniple
from maniple.base.errors import CaptureError

Batch = dict[str, Tensor]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()


def fit(model: nn.Module, optimizer: Any, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def batches(count: int = 2) -> list[Batch]:
    return [{"x": torch.randn(8, 6, dtype=torch.float64), "y": torch.randint(3, (8,))} for _ in range(count)]


def data_of_another(model: Any) -> None:
    model[2].weight = nn.Parameter(model[0].weight.data)


def transpose_of_another(model: Any) -> None:
    model[2].weight.data = model[0].weight.data.t()


def ends_in_another(model: Any) -> None:
    flat = torch.randn(60, dtype=torch.float64)
    model[0].weight.data, model[2].weight.data = flat[:36].view(6, 6), flat[20:56].view(6, 6)


def one_flat_tensor(model: Any) -> None:
    flat = torch.randn(100, dtype=torch.float64)
    model[0].weight.data, model[2].weight.data = flat[:36].view(6, 6), flat[36:72].view(6, 6)


def columns_in_turn(model: Any) -> None:
    both = torch.randn(6, 12, dtype=torch.float64)
    model[0].weight.data, model[2].weight.data = both[:, ::2], both[:, 1::2]


@pytest.mark.parametrize("engine", ["realm:2", "reference"])
@pytest.mark.parametrize("share", [data_of_another, transpose_of_another, ends_in_another])
def test_parameters_that_share_elements_are_refused(share: Callable[[Any], None], engine: str) -> None:
    model = net()
    share(model)
    step = maniple.parallelize(fit, model, SGD(model.parameters(), lr=0.1), strategy="dp=2", engine=engine)
    with pytest.raises(CaptureError, match=r"changes `0\.weight`, which shares memory with `2\.weight`"):
        step(batches()[0])


def test_parameters_that_begin_to_share_are_refused() -> None:
    model = net()
    step = maniple.parallelize(fit, model, SGD(model.parameters(), lr=0.1), strategy="dp=2")
    step(batches()[0])
    transpose_of_another(model)
    before = model[0].weight.detach().clone()
    with pytest.raises(CaptureError, match="shares memory"):
        step(batches()[0])
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("share", [one_flat_tensor, columns_in_turn])
def test_parts_of_one_tensor_that_share_no_element_train(share: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    model, other, data = net(), net(), batches(3)
    share(model)
    other.load_state_dict(model.state_dict())
    optimizer = SGD(other.parameters(), lr=0.1)
    step = maniple.parallelize(fit, model, SGD(model.parameters(), lr=0.1), strategy="dp=2 tp=2 zero=3")
    for batch in data:
        torch.testing.assert_close(step(batch), fit(other, optimizer, batch))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_batch_that_is_state_is_refused() -> None:
    def step_near(model: Any, optimizer: Any, batch: Batch) -> Tensor:
        loss = F.cross_entropy(model(batch["x"]), batch["y"]) + (model[0].weight - batch["near"]).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = net()
    step = maniple.parallelize(step_near, model, SGD(model.parameters(), lr=0.1), strategy="dp=2")
    batch = batches()[0]
    step({**batch, "near": model[0].weight.detach().clone()})
    with pytest.raises(CaptureError, match=r"shares memory with `batch\.near`"):
        step({**batch, "near": model[0].weight.detach()[:]})


def test_a_buffer_of_stride_0_that_the_step_changes_is_refused() -> None:
    def step_counts(model: Any, optimizer: Any, batch: Batch) -> Tensor:
        model.seen = model.seen + 1
        return fit(model, optimizer, batch)

    model = net()
    model.register_buffer("seen", torch.zeros(1).expand(6))
    step = maniple.parallelize(step_counts, model, SGD(model.parameters(), lr=0.1), strategy="dp=2")
    with pytest.raises(CaptureError, match="elements of `seen`, which the step changes, share memory"):
        step(batches()[0])


@pytest.mark.parametrize("engine", ["realm:2", "reference"])
def test_what_a_step_does_not_change_is_not_written(engine: str) -> None:
    """Such memory may be read-only, a mapped file, or have strides of 0."""
    weights, model = torch.ones(1, dtype=torch.float64).expand(3), net()
    model[0].requires_grad_(requires_grad=False)

    def step_weighted(model: Any, optimizer: Any, batch: Batch) -> Tensor:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], weight=weights)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    frozen = model[0].weight
    version = frozen._version
    step = maniple.parallelize(step_weighted, model, SGD(model.parameters(), lr=0.1), strategy="dp=2", engine=engine)
    assert [float(step(batch)) > 0 for batch in batches()] == [True, True]
    assert frozen._version == version
