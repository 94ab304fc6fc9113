"""What a step returns: computed anew at each step, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from capture_harness import Runner, assert_same_result
from torch import Tensor, nn

from maniple.base.errors import CaptureError

Function = Callable[[Any, Any, Tensor], Any]


def runners(function: Function) -> tuple[Runner, Callable[[Tensor], Any]]:
    """Return a step that returns what `function(loss, optimizer, x)` does, captured and eager, on models of their own."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(2, 2).double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return function(loss.detach(), optimizer, x)

    eager = made()
    return Runner(step, made()), lambda x: step(*eager, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda loss, _o, _x: {"loss": loss.item()},
        lambda loss, _o, _x: loss.item(),
        lambda loss, _o, x: {"loss": loss.item() / x.shape[0], "n": x.numel(), "all": [loss, (loss * 2).item()]},
        lambda loss, _o, x: (loss, (x > 0).sum().item(), loss.item() > 0.1),
        lambda loss, o, _x: (loss, o.param_groups[0]["lr"], o.param_groups[0]["lr"] * 2),
        lambda loss, _o, _x: (loss, "a text", None, 3, torch.float32, 1 + 2j),
    ],
)
def test_numbers_are_computed_anew(function: Function) -> None:
    run, eager = runners(function)
    for _ in range(3):
        x = torch.randn(3, 2, dtype=torch.float64)
        assert_same_result(run(x), eager(x), 1e-12)
    assert len(run.compiled) == 1


@pytest.mark.parametrize("function", [
    lambda loss, _o, _x: (loss, f"{loss.item():.3f}"),
    lambda loss, _o, _x: (loss, f"{loss.item()}"),
    lambda loss, _o, _x: (loss, f"loss {loss:.2e}"),
    lambda loss, _o, _x: (loss, str(loss)),
    lambda loss, _o, _x: (loss, repr(loss.item())),
    lambda loss, o, _x: (loss, {"lr": f"{o.param_groups[0]['lr']:.1e}"}),
    lambda loss, _o, x: (loss, str((x > 0).sum().item())),
    lambda loss, _o, _x: {"loss": loss, f"{loss.item()}": 3},
])  # fmt: skip
def test_texts_of_numbers_are_refused(function: Function) -> None:
    with pytest.raises(CaptureError, match="text of a computed number") as caught:
        runners(function)[0](torch.randn(3, 2, dtype=torch.float64))
    assert "format it outside" in caught.value.hint
    assert repr(torch.ones(())) == "tensor(1.)"


@pytest.mark.parametrize("function", [
    lambda loss, _o, _x: "%.3f" % loss.item(),  # noqa: UP031  # what people write
    lambda loss, _o, _x: json.dumps({"loss": loss.item()}),
    lambda loss, _o, _x: np.float32(loss.item()),
    lambda loss, _o, _x: np.asarray(loss),
    lambda loss, _o, _x: (loss, {1.0, loss}),
    lambda loss, _o, _x: (loss, object()),
])  # fmt: skip
def test_other_ways_to_make_a_constant_are_refused(function: Function) -> None:
    with pytest.raises(CaptureError):
        runners(function)[0](torch.randn(3, 2, dtype=torch.float64))


def test_printing_inside_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = runners(lambda loss, _o, _x: print(f"loss {loss.item():.3f}") or loss)  # noqa: T201  # what people do
    for _ in range(2):
        run(torch.randn(3, 2, dtype=torch.float64))
    assert capsys.readouterr().out == "loss <known only when the step runs>\n"


def test_numbers_kept_outside_are_refused() -> None:
    history: list[float] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
        return loss

    model = nn.Linear(2, 2)
    with pytest.raises(CaptureError, match="`variable history`"):
        Runner(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)))(torch.ones(1, 2))
