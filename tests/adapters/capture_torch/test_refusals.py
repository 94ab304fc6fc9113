"""What a step may not do: refused by name, with the user's line and a hint, and nothing is changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # its usual name
from capture_harness import all_state
from capture_models import Mlp
from torch import Tensor, nn

from maniple.base.errors import CaptureError
from maniple.capture.torch import capture

Model, Optimizer = nn.Module, torch.optim.Optimizer


class Counting(Mlp):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.counter += 1
        return super().forward(x)


class Remembering(Counting):
    """Keeps a list of what it saw."""

    def forward(self, x: Tensor) -> Tensor:
        self.history.append(len(x))
        return Mlp.forward(self, x)


def training(model: Model, optimizer: Optimizer, loss: Tensor) -> None:
    """The end of all steps here."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def good(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    training(model, optimizer, loss)
    return loss


def returns_nothing(model: Model, optimizer: Optimizer, x: Tensor) -> None:
    good(model, optimizer, x)


def returns_a_constant(model: Model, optimizer: Optimizer, x: Tensor) -> float:
    good(model, optimizer, x)
    return 1.0


def branches_on_loss(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    if loss > 1:
        loss = loss / 2
    training(model, optimizer, loss)
    return loss


def branches_on_item(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    if loss.item() > 1:
        loss = loss / 2
    training(model, optimizer, loss)
    return loss


def floats_the_loss(model: Model, optimizer: Optimizer, x: Tensor) -> float:
    return float(good(model, optimizer, x))


def goes_to_numpy(model: Model, optimizer: Optimizer, x: Tensor) -> Any:
    return good(model, optimizer, x).detach().numpy()


def sizes_by_item(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = good(model, optimizer, x)
    return loss + torch.ones((x > 0).sum().item())  # type: ignore[call-overload]  # an integer


def selects_by_mask(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    y = model(x)
    loss = y[y > 0].mean()
    training(model, optimizer, loss)
    return loss


def uses_nonzero(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    y = model(x)
    loss = y.sum() * torch.nonzero(x > 0).shape[0]
    training(model, optimizer, loss)
    return loss


def unmapped_op(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    y = model(x)
    loss = y.sum() + torch.geqrf(y.detach())[0].sum()
    training(model, optimizer, loss)
    return loss


def wrong_shapes(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = (model(x) @ x).mean()
    training(model, optimizer, loss)
    return loss


def never_clears(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def draws_python_numbers(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean() * random.random()
    training(model, optimizer, loss)
    return loss


def sets_lr(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    optimizer.param_groups[0]["lr"] *= 0.5
    return good(model, optimizer, x)


def replaces_a_parameter(model: Any, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = good(model, optimizer, x)
    model.fc1.weight = nn.Parameter(torch.zeros(8, 6))
    return loss


def freezes(model: Any, optimizer: Optimizer, x: Tensor) -> Tensor:
    model.fc1.weight.requires_grad_(requires_grad=False)
    return good(model, optimizer, x)


def line_of(step: Callable[..., Any], text: str) -> int:
    """Return the line of `text` in the source of `step`."""
    import inspect

    lines, first = inspect.getsourcelines(step)
    return first + next(at for at, line in enumerate(lines) if text in line)


CASES = [
    (Mlp, returns_nothing, "returns no tensor", "return the loss", ""),
    (Mlp, returns_a_constant, "returns no tensor", "return the loss", ""),
    (Mlp, branches_on_loss, "depends on a number", "torch.where", "if loss > 1"),
    (Mlp, branches_on_item, "depends on a number", "torch.where", "if loss.item()"),
    (Mlp, floats_the_loss, "depends on a number", "return the tensor", "float("),
    (Mlp, goes_to_numpy, "", "return the tensor", "numpy()"),
    (Mlp, sizes_by_item, "depends on a number", "Python number", "torch.ones("),
    (Mlp, selects_by_mask, "a shape depends", "multiply by a mask", "y[y > 0]"),
    (Mlp, uses_nonzero, "a shape depends", "multiply by a mask", "torch.nonzero("),
    (Mlp, unmapped_op, "geqrf", "add a row", "geqrf("),
    (Mlp, wrong_shapes, "RuntimeError", "runs on its own", "model(x) @ x"),
    (Mlp, never_clears, "leaves a gradient in `fc1.weight.grad`", "zero_grad", ""),
    (Mlp, draws_python_numbers, "random numbers", "outside", ""),
    (Mlp, sets_lr, "param_groups[0]['lr']", "outside", ""),
    (Mlp, replaces_a_parameter, "`fc1.weight`", "outside", ""),
    (Mlp, freezes, "`fc1.weight.requires_grad`", "outside", ""),
    (Counting, good, "`model.counter`", "outside", ""),
    (Remembering, good, "`model.history`", "outside", ""),
]


@pytest.mark.parametrize(("make", "step", "what", "hint", "line"), CASES, ids=[f"{c[1].__name__}-{c[0].__name__}" for c in CASES])
def test_refused_and_nothing_changed(make: Callable[[], Any], step: Callable[..., Any], what: str, hint: str, line: str) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = copy.deepcopy(all_state(model, optimizer)), torch.get_rng_state(), random.getstate()
    attributes = {key: copy.copy(value) for key, value in vars(model).items() if not key.startswith("_")}
    objects = list(model.parameters()), optimizer.param_groups, optimizer.state
    with pytest.raises(CaptureError) as caught:
        capture(step, (model, optimizer), (torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),))
    assert what in caught.value.what
    assert hint in caught.value.hint
    if line:
        assert caught.value.where is not None
        assert (caught.value.where.file, caught.value.where.line) == (__file__, line_of(step, line))
    after = all_state(model, optimizer)
    assert before[0].keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before[0].items())
    assert torch.equal(before[1], torch.get_rng_state())
    assert before[2] == random.getstate()
    assert {key: value for key, value in vars(model).items() if not key.startswith("_")} == attributes
    assert all(one is other for one, other in zip(model.parameters(), objects[0], strict=True))
    assert optimizer.param_groups is objects[1]
    assert optimizer.state is objects[2]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("is_argument", [False, True])
def test_scheduler_inside(is_argument: bool) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)

    def step(model: Model, optimizer: Optimizer, *rest: Any) -> Tensor:
        loss = good(model, optimizer, rest[-1])
        scheduler.step()
        return loss

    before = scheduler.state_dict()
    bound = (model, optimizer, scheduler) if is_argument else (model, optimizer)
    with pytest.raises(CaptureError, match=r"OneCycleLR\.step") as caught:
        capture(step, bound, (torch.randn(4, 6),))
    assert caught.value.where is not None
    assert caught.value.where.line == line_of(step, "scheduler.step()")
    assert scheduler.state_dict() == before


def test_leftover_gradient() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.ones_like(model.fc1.weight)
    model.fc1.weight.grad = kept
    with pytest.raises(CaptureError, match=r"fc1\.weight\.grad.*before the step"):
        capture(good, (model, optimizer), (torch.randn(4, 6),))
    assert model.fc1.weight.grad is kept
    assert torch.equal(kept, torch.ones_like(kept))

    def clears_first(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        return good(model, optimizer, x)

    capture(clears_first, (model, optimizer), (torch.randn(4, 6),))
    assert model.fc1.weight.grad is kept


def test_gradient_read_before_backward() -> None:
    def step(model: Any, optimizer: Optimizer, x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean() + model.fc1.weight.grad.sum()
        training(model, optimizer, loss)
        return loss

    model = Mlp()
    with pytest.raises(CaptureError, match=r"gradient of fc1\.weight"):
        capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)), (torch.randn(4, 6),))


def test_batch_of_something_else() -> None:
    model = Mlp()
    with pytest.raises(CaptureError, match=r"batch\.x.* is a ndarray"):
        capture(good, (model, torch.optim.SGD(model.parameters(), lr=0.1)), ({"x": torch.randn(4, 6).numpy()},))


def test_other_default_dtype_inside_is_undone() -> None:
    def step(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        raise ValueError("the user's own mistake")

    model = Mlp()
    with pytest.raises(CaptureError, match="the user's own mistake"):
        capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)), (torch.randn(4, 6),))
    assert torch.get_default_dtype() == torch.float32


def test_functional_losses_need_no_module_argument() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), torch.zeros(()))
        training(model, optimizer, loss)
        return loss

    with pytest.raises(CaptureError):
        capture(step, (), (torch.randn(4, 6),))
