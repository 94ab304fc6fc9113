"""All of torch.optim: captured steps equal eager ones, with the options that change what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import Runner, all_state, assert_close, assert_same_training
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer

from maniple.base.errors import CaptureError
from maniple.capture.torch import capture

CASES: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "maximize": True, "foreach": True}),
    "sgd nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True, "fused": True}),
    "adam": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "fused": True}),
    "adam maximize": (optim.Adam, {"maximize": True, "foreach": True, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "adam tensor lr": (optim.Adam, {"lr": torch.tensor(0.01), "foreach": False}),
    "adamw": (optim.AdamW, {"amsgrad": True, "foreach": True}),
    "nadam": (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (optim.RAdam, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
    "asgd": (optim.ASGD, {"t0": 2, "lambd": 0.1, "weight_decay": 0.1, "foreach": False}),
    "adafactor": (optim.Adafactor, {"weight_decay": 0.1, "d": 1.5}),
    "adadelta": (optim.Adadelta, {"weight_decay": 0.1, "maximize": True}),
    "adagrad": (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1, "fused": True}),
    "adamax": (optim.Adamax, {"weight_decay": 0.1, "foreach": True}),
    "rmsprop": (optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "rprop": (optim.Rprop, {"maximize": True}),
    "muon": (optim.Muon, {"weight_decay": 0.2, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"}),
}
SLOW = (optim.RAdam, optim.ASGD)
"""Both ways of their branches are traced; one layer shows as much."""

NO_INITIAL_STATE = {"adagrad"}
"""Optimizers that make their state when they are made."""


def step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def batches(count: int) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 3).double(), torch.randn(8, 3).double()) for _ in range(count)]


def change_lr(optimizer: Optimizer, _number: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.8


def load_again(optimizer: Optimizer, _number: int) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_eager_ones(name: str) -> None:
    kind, options = CASES[name]

    def make() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(*(nn.Linear(3, 3, bias=name != "muon") for _ in range(1 if kind in SLOW else 2))).double()
        return model, kind(model.parameters(), **options)

    num_captures = 1 if name in NO_INITIAL_STATE else 2
    assert_same_training(make, step, batches(9), between=change_lr, num_captures=num_captures, promote=name == "muon")


def test_branches_go_both_ways() -> None:
    """RAdam's correction begins at the sixth step, ASGD's average at the second: nine steps see both."""
    rho = 2 / (1 - 0.99) - 1
    lengths = [rho - 2 * t * 0.99**t / (1 - 0.99**t) for t in range(1, 10)]
    assert min(lengths) < 5 < max(lengths)


@pytest.mark.parametrize("kind", [optim.NAdam, optim.RMSprop])
def test_capturable_is_for_graphs_of_other_kinds(kind: Any) -> None:
    """On CPUs torch itself refuses `capturable`; here it changes nothing."""

    def program(*, capturable: bool) -> str:
        model = nn.Linear(2, 1, bias=False)
        bound = model, kind(model.parameters(), capturable=capturable)
        return str(capture(step, bound, (torch.randn(4, 2), torch.randn(4, 1))).program)

    assert program(capturable=True) == program(capturable=False)


def test_state_that_is_loaded_is_used() -> None:
    kind, options = CASES["asgd"]

    def make() -> tuple[nn.Module, Optimizer]:
        model = nn.Linear(3, 3).double()
        return model, kind(model.parameters(), **options)

    assert_same_training(make, step, batches(4), between=load_again)


def test_several_optimizers_and_groups() -> None:
    def two(model: nn.Sequential, first: Optimizer, second: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def make() -> tuple[nn.Sequential, Optimizer, Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        groups = [{"params": [model[0].weight], "lr": 0.1, "momentum": 0.5}, {"params": [model[0].bias], "weight_decay": 0.3}]
        return model, optim.SGD(groups, lr=0.01), optim.RAdam(model[2].parameters())

    theirs = make()

    mine = make()
    runner = Runner(two, mine)
    for batch in batches(3):
        assert_close("loss", runner(*batch), two(*theirs, *batch), 1e-12)
        for at in (1, 2):
            optimizers: Any = mine[at], theirs[at]
            state, expected = all_state(mine[0], optimizers[0]), all_state(theirs[0], optimizers[1])
            for key, value in expected.items():
                assert_close(key, state[key], value, 1e-12)


REFUSED: dict[str, Callable[[nn.Module], Optimizer]] = {
    "LBFGS runs its closure": lambda model: optim.LBFGS(model.parameters()),
    "SparseAdam takes sparse gradients": lambda model: optim.SparseAdam(model.parameters()),
}


def test_every_optimizer_of_torch_is_compared_or_refused() -> None:
    kinds = {kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, Optimizer)} - {Optimizer}
    assert kinds == {kind for kind, _ in CASES.values()} | {optim.LBFGS, optim.SparseAdam}


@pytest.mark.parametrize("says", REFUSED)
def test_refused_by_name(says: str) -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(CaptureError, match=says) as raised:
        capture(step, (model, REFUSED[says](model)), (torch.randn(8, 6), torch.randn(8, 3)))
    assert "Adam" in raised.value.hint
