"""Training steps as people write them, captured and compared with eager ones over three steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import Runner, assert_close, assert_same_result
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Batch = dict[str, Tensor]
Case = tuple[tuple[Any, ...], Callable[..., Any]]


def batch() -> Batch:
    return {"x": torch.randn(8, 4).double(), "y": torch.randn(8, 3).double()}


def net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), *middle).double()


def updating(between: Callable[[nn.Module], Any]) -> Callable[..., Any]:
    """Return a step that does `between` when there are gradients, and returns what that gives beside the loss."""

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Any:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        found = between(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss, found

    return step


def clip_in_python(model: nn.Module) -> float:
    norm = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum().sqrt().item()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(min(1.0, 0.1 / (norm + 1e-6)))
    return norm


def clip(between: Callable[[nn.Module], Any]) -> Callable[[], Case]:
    def make() -> Case:
        model = net()
        return (model, SGD(model.parameters(), lr=0.1, momentum=0.9)), updating(between)

    return make


def zeros_gradients_first() -> Case:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss

    model = net()
    return (model, SGD(model.parameters(), lr=0.1)), step


def numbers() -> Case:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Any:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.tensor(loss.item()), torch.tensor([loss.item(), 2.0]), max(loss.item(), 1.0), {"none": None}

    model = net()
    return (model, SGD(model.parameters(), lr=0.1)), step


def averaged(**options: Any) -> Callable[[], Case]:
    def step(model: nn.Module, mean: AveragedModel, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean.update_parameters(model)
        return loss

    def make() -> Case:
        model = net()
        return (model, AveragedModel(model, **options), Adam(model.parameters(), lr=0.1)), step

    return make


def cumulative_batch_norm() -> Case:
    model = net(nn.BatchNorm1d(3, momentum=None))
    return (model, SGD(model.parameters(), lr=0.1)), updating(lambda _model: None)


def updates_in_backward() -> Case:
    def step(model: nn.Module, optimizers: list[Optimizer], batch: Batch) -> Tensor:
        def update(optimizer: Optimizer) -> Callable[[Tensor], None]:
            def hook(_parameter: Tensor) -> None:
                optimizer.step()
                optimizer.zero_grad()

            return hook

        pairs = zip(model.parameters(), optimizers, strict=True)
        handles = [parameter.register_post_accumulate_grad_hook(update(optimizer)) for parameter, optimizer in pairs]
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss

    model = net()
    return (model, [SGD([parameter], lr=0.1) for parameter in model.parameters()]), step


def compiled_loss() -> Case:
    loss_of = torch.compile(F.mse_loss, backend="eager")

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Any:
        loss = loss_of(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = net()
    model.compile(backend="eager")
    return (model, SGD(model.parameters(), lr=0.1)), step


def evaluation() -> Case:
    @torch.inference_mode()
    def step(model: nn.Module, batch: Batch) -> Any:
        return {"loss": F.mse_loss(model(batch["x"]), batch["y"]), "best": model(batch["x"]).argmax(-1)}

    return (net(nn.Dropout(0.5), nn.BatchNorm1d(3)).eval(),), step


def embedded(**options: Any) -> Callable[[], Case]:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        ids = (batch["x"][:, 0] * 3).long() % 10
        loss = F.mse_loss(model(ids), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def make() -> Case:
        model = nn.Sequential(nn.Embedding(10, 4, **options), nn.Linear(4, 3)).double()
        return (model, SGD(model.parameters(), lr=0.1)), step

    return make


CASES: dict[str, Callable[[], Case]] = {
    "clip by norm, foreach": clip(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)),
    "clip by largest": clip(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"))),
    "clip by value, foreach": clip(lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01, foreach=True)),
    "clip or raise": clip(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)),
    "clip in python": clip(clip_in_python),
    "zeros first": zeros_gradients_first,
    "numbers": numbers,
    "average": averaged(),
    "exponential average": averaged(multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
    "cumulative batch norm": cumulative_batch_norm,
    "updates in backward": updates_in_backward,
    "torch.compile": compiled_loss,
    "evaluation": evaluation,
    "embeddings of bounded norm": embedded(max_norm=0.5),
    "embeddings of bounded largest element": embedded(max_norm=0.2, norm_type=float("inf")),
    "gradients of embeddings by frequency": embedded(scale_grad_by_freq=True, padding_idx=1),
}


def tensors(bound: tuple[Any, ...]) -> list[Tensor]:
    return [tensor for item in bound if isinstance(item, nn.Module) for tensor in item.state_dict().values()]


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_eager_ones(name: str) -> None:
    torch.manual_seed(0)
    mine, step = CASES[name]()
    theirs = copy.deepcopy(mine)
    runner = Runner(step, mine)
    for _ in range(3):
        given = batch()
        expected = step(*theirs, given)
        assert_same_result(runner(given), expected, 1e-10)
        for got, want in zip(tensors(mine), tensors(theirs), strict=True):
            assert_close(name, got, want, 1e-10)
    assert len(runner.compiled) <= 2, runner.changes


def test_loading_state_compiles_nothing_anew() -> None:
    model = net(nn.Linear(3, 3))
    optimizer = Adam(model.parameters(), lr=0.1)
    runner = Runner(updating(lambda _model: None), (model, optimizer))
    for _ in range(3):
        runner(batch())
        state = optimizer.state_dict()
        state["state"] = dict(reversed(state["state"].items()))
        optimizer.load_state_dict(state)
    assert len(runner.compiled) == 2
