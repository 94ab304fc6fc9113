"""Reported cases about state that outlives a layout, and about sizes as they were reported; see test_reported_cases.py for the list."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

import maniple

F64 = torch.float64
Batch = dict[str, Tensor]


def train_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def batch_of(number: int) -> Batch:
    generator = torch.Generator().manual_seed(number)
    return {"x": torch.randn(6, 5, dtype=F64, generator=generator), "y": torch.randint(7, (6,), generator=generator)}


def made() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 7)]
    model = nn.Sequential(*layers).double()
    return model, Adam(model.parameters(), lr=0.01)


def eager_losses() -> list[float]:
    bound = made()
    return [float(train_step(*bound, batch_of(number))) for number in range(6)]


def losses(bound: tuple[nn.Module, Optimizer], strategy: str, numbers: range) -> list[float]:
    step = maniple.parallelize(train_step, *bound, strategy=strategy)
    return [float(step(batch_of(number))) for number in numbers]


@pytest.mark.parametrize(
    ("before", "after"),
    [("dp=2", "tp=4"), ("tp=2", "dp=6 zero=3"), ("dp=4 zero=3", "dp=3 zero=3"), ("dp=4 zero=3", "dp=5 zero=1"), ("dp=2 tp=2 zero=2", "")],
)
def test_training_goes_on_under_another_strategy(before: str, after: str) -> None:
    """Case 12, torchtitan#811, #1483; Megatron#659, #1517, and case 2's vectors of length 6: its parts without files and pipelines."""
    first, second = made(), made()
    found = losses(first, before, range(3))
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(copy.deepcopy(first[1].state_dict()))
    found += losses(second, after, range(3, 6))
    assert found == pytest.approx(eager_losses(), rel=1e-9)
    assert list(first[0].state_dict()) == list(second[0].state_dict()) == list(made()[0].state_dict())


@pytest.mark.parametrize("strategy", ["tp=2", "dp=4 zero=3", "dp=2 tp=2 zero=3"])
def test_rows_permuted_while_loading(strategy: str) -> None:
    """Case 12: a transform that mixes the divided dim, between steps; units that change places change nothing."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def permute(bound: tuple[Any, Optimizer]) -> None:
        one, other = bound[0][0], bound[0][2]
        state = bound[1].state
        with torch.no_grad():
            for parameter, dim in ((one.weight, 0), (one.bias, 0), (other.weight, 1)):
                for tensor in (parameter, state[parameter]["exp_avg"], state[parameter]["exp_avg_sq"]):
                    tensor.copy_(tensor.detach().index_select(dim, order))

    bound = made()
    step = maniple.parallelize(train_step, *bound, strategy=strategy)
    found = []
    for number in range(6):
        found.append(float(step(batch_of(number))))
        if number == 2:
            permute(bound)
    assert found == pytest.approx(eager_losses(), rel=1e-9)


class TiedTable(nn.Module):
    """Looks up and predicts with one table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding(*table.shape, dtype=F64)
        self.head = nn.Linear(*reversed(table.shape), bias=False, dtype=F64)
        self.head.weight = self.table.weight
        if not table.is_meta:
            with torch.no_grad():
                self.table.weight.copy_(table)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids))
        return found


CASE_10 = torch.tensor([[0.1, 0.2], [0.3, -0.1], [0.0, 0.5], [-0.2, 0.4]], dtype=F64)
CASE_10_GRADIENT = [[-0.031099, 0.113039], [-0.055869, 0.035520], [0.078614, -0.071208], [-0.040834, -0.001902]]


@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("strategy", ["dp=2 zero=3", "tp=2 place:table.weight={tp,_}", "dp=2 tp=2 zero=1"])
def test_tied_embedding_is_one_parameter(strategy: str, on_meta: bool) -> None:
    """Case 10, torchtitan#2495, #3775, piper#13: the whole gradient, one tensor after the step, also when made on meta first."""
    with torch.device("meta" if on_meta else "cpu"):
        model = TiedTable(CASE_10.to("meta") if on_meta else CASE_10)
    if on_meta:
        model.to_empty(device="cpu")
        model.head.weight = model.table.weight
        model.load_state_dict({"table.weight": CASE_10, "head.weight": CASE_10})
    step = maniple.parallelize(train_step, model, SGD(model.parameters(), lr=1.0), strategy=strategy)
    loss = step({"x": torch.tensor([0, 1, 1, 3]), "y": torch.tensor([1, 1, 3, 2])})
    assert float(loss) == pytest.approx(1.3684361, abs=1e-7)
    assert model.head.weight is model.table.weight
    torch.testing.assert_close(CASE_10 - model.table.weight.detach(), torch.tensor(CASE_10_GRADIENT, dtype=F64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("strategy", ["dp=8 zero=3", "tp=4"])
def test_a_vocabulary_of_32001(strategy: str) -> None:
    """Case 11, thunder#248: nothing divides it, and no pads enter the softmax or the norm."""
    torch.manual_seed(0)
    model = TiedTable(torch.randn(32001, 2, dtype=F64))
    twin = copy.deepcopy(model)
    batch = {"x": torch.tensor([0, 32000, 5, 32000, 7, 8, 9, 1]), "y": torch.tensor([32000, 4, 31999, 2, 3, 0, 1, 32000])}

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    got = maniple.parallelize(step, model, SGD(model.parameters(), lr=1.0), strategy=strategy)(batch)
    expected = step(twin, SGD(twin.parameters(), lr=1.0), batch)
    assert float(got) == pytest.approx(float(expected), rel=1e-12)
    torch.testing.assert_close(model.table.weight, twin.table.weight, rtol=1e-12, atol=1e-15)
