"""Checks that can only raise: traced as passed, and told of after a step in which they fail; other branches are refused.

PYTEST_DONT_REWRITE: what pytest makes of an `assert` is not what Python does.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import maniple
from maniple.base.errors import CaptureError, EngineError

Check = Callable[[Tensor], object]


def asserts(x: Tensor) -> None:
    assert torch.isfinite(x).all()
    assert not (x < -5).any(), f"too small: {x.min()}"
    assert x.min() > -5
    assert (x > -5).all() and (x < 5).all()  # noqa: PT018  # one check with two questions


def raises(x: Tensor) -> None:
    if torch.isnan(x).any() or (x.abs() > 5).any():
        text = "large" if x is not None else "small"
        raise ValueError(text)


def raises_in_else(x: Tensor) -> None:
    if (x.abs() < 5).all():
        x = x + 1
    else:
        raise ValueError


def asks_a_number(x: Tensor) -> None:
    if not math.isfinite(x.sum().item()) or x.max().item() > 5:
        raise RuntimeError(f"bad {x.sum().item():.3f}")


def inside_of_with(x: Tensor) -> None:
    with torch.no_grad():
        if (x.abs() > 5).any():
            raise ValueError
    try:
        assert (x < 5).all()
    finally:
        x = x + 1


def one_of_two_errors(x: Tensor) -> None:
    if (x > 5).any():
        if x.shape[0] > 2:
            raise ValueError
        raise TypeError


def of_torch(x: Tensor) -> None:
    F.gaussian_nll_loss(x, x, 5 - x)  # wants variances that are positive
    torch.distributions.Normal(x, 5 - x)


CHECKS: tuple[Check, ...] = (asserts, raises, raises_in_else, asks_a_number, inside_of_with, one_of_two_errors, of_torch)


def checking(check: Check) -> Callable[..., Any]:
    def step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
        check(x)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def made() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    return model, SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_passed_and_failed(check: Check) -> None:
    mine, step = made(), checking(check)
    theirs = copy.deepcopy(mine)
    run = maniple.parallelize(step, *mine, strategy="dp=2")
    for _ in range(2):
        x = torch.rand(6, 4).double()
        torch.testing.assert_close(run(x), step(*theirs, x), rtol=1e-12, atol=0)
    torch.testing.assert_close(mine[0].state_dict(), theirs[0].state_dict(), rtol=1e-12, atol=0)
    x[4, 1] = 7
    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        step(*theirs, x)
    with pytest.raises(EngineError, match="a check in the step failed") as raised:
        run(x)
    assert raised.value.where is not None
    assert raised.value.where.file == __file__
    first = check.__code__.co_firstlineno
    assert first < raised.value.where.line < first + 10
    with pytest.raises(EngineError, match=r"load_state_dict"):  # the update took place
        run(torch.rand(6, 4).double())
    mine[0].load_state_dict(theirs[0].state_dict())
    x = torch.rand(6, 4).double()
    torch.testing.assert_close(run(x), step(*theirs, x), rtol=1e-12, atol=0)
    assert len(run.compiled) == 1


def goes_on(x: Tensor) -> None:
    if (x > 5).any():
        x = x + 1
        return
    assert x.shape


def warns(x: Tensor) -> None:
    if (x > 5).any():
        print("large")  # noqa: T201  # what people write


def catches(x: Tensor) -> None:
    try:
        if (x > 5).any():
            raise ValueError  # noqa: TRY301  # what people write
    except ValueError:
        pass


def catches_what_another_raises(x: Tensor) -> None:
    try:
        raises(x)
    except (ValueError, TypeError):
        x = x + 1


def suppresses(x: Tensor) -> None:
    with contextlib.suppress(ValueError):
        raises(x)


def makes_a_bool(x: Tensor) -> None:
    if all([(x > 5).any()]):
        raise ValueError


@pytest.mark.parametrize("branch", [goes_on, warns, catches, catches_what_another_raises, suppresses, makes_a_bool])
def test_branches_are_refused(branch: Check) -> None:
    run = maniple.parallelize(checking(branch), *made(), strategy="dp=2")
    with pytest.raises(CaptureError, match="depends on a number that is known only when it runs"):
        run(torch.rand(6, 4).double())
