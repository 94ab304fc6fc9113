"""Python objects that a step depends on without being given them: a change is seen, and what the step itself would change is refused."""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple

Train = Callable[[nn.Module, torch.optim.Optimizer, dict[str, Tensor]], Tensor]


SETTINGS = {"scale": 1.0}


class Options:
    """An object of a class of the user's."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.weights = [torch.ones(3), torch.ones(3)]
        self.count = 0


class Trainer:
    """Its method is the step."""

    def __init__(self) -> None:
        self.options = Options()

    def weigh(self, loss: Tensor) -> Tensor:
        return loss * self.options.scale

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
        return _update(self.weigh(F.cross_entropy(model(batch["x"]), batch["y"])), optimizer)


class Scaled(nn.Module):
    """A module that holds such an object, and whose forward names a variable of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.options = Options()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x) * self.options.scale * SETTINGS["scale"]
        return found


def _update(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _plain(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
    return _update(F.cross_entropy(model(batch["x"]), batch["y"]), optimizer)


def _rescale(options: Options, number: int) -> None:
    options.scale = 1.0 / (number + 1)


def _reads_object(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    options = Options()
    return lambda m, o, b: _update(F.cross_entropy(m(b["x"]), b["y"]) * options.scale, o), lambda n: _rescale(options, n)


def _calls_function(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    settings = {"weight": 1.0}

    def loss_of(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) * settings["weight"]

    return lambda m, o, b: _update(loss_of(m(b["x"]), b["y"]), o), lambda n: settings.update(weight=1.0 + n)


def _is_method(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    trainer = Trainer()
    return trainer.step, lambda n: _rescale(trainer.options, n)


def _uses_loss_module(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    loss_of = nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))

    def change(number: int) -> None:
        loss_of.label_smoothing = 0.1 * number
        loss_of.weight = torch.arange(1.0, 4.0, dtype=torch.float64) + number

    return lambda m, o, b: _update(loss_of(m(b["x"]), b["y"]), o), change


def _reads_list_of_tensors(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    options = Options()

    def change(number: int) -> None:
        options.weights[number % 2] = torch.arange(3.0) + number

    def train(m: nn.Module, o: torch.optim.Optimizer, b: dict[str, Tensor]) -> Tensor:
        first, second = options.weights
        return _update(F.cross_entropy(m(b["x"]), b["y"], weight=(first * second + 1).double()), o)

    return train, change


def _module_holds_object(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _plain, lambda n: _rescale(model.options, n)  # type: ignore[arg-type]  # a plain attribute


class Slotted:
    """An object without `__dict__`."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


def _module_reads_global(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _plain, lambda n: SETTINGS.update(scale=1.0 / (n + 1))


def _reads(holder: Any, get: Callable[[Any], float], put: Callable[[Any, float], object]) -> tuple[Train, Callable[[int], None]]:
    def train(m: nn.Module, o: torch.optim.Optimizer, b: dict[str, Tensor]) -> Tensor:
        return _update(F.cross_entropy(m(b["x"]), b["y"]) * get(holder), o)

    put(holder, 1.0)
    return train, lambda n: put(holder, 1.0 / (n + 1)) and None


def _set_item(holder: Any, value: float) -> None:
    holder[0] = value


def _set_scale(holder: Any, value: float) -> None:
    holder.scale = value


def _reads_deque(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads(deque([1.0]), lambda held: held[0], _set_item)


def _reads_array(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads(np.ones(3), lambda held: held[0], _set_item)


def _reads_slots(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads(Slotted(), lambda held: held.scale, _set_scale)


def _reads_class(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads(type("Settings", (), {}), lambda held: held.scale, _set_scale)


def _reads_python_module(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads(types.ModuleType("settings"), lambda held: held.scale, _set_scale)


def _reads_list_with_a_module(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    return _reads([nn.Identity(), Options()], lambda held: held[1].scale, lambda held, value: _set_scale(held[1], value))


def _sets_mode(model: nn.Module) -> tuple[Train, Callable[[int], None]]:
    def train(m: nn.Module, o: torch.optim.Optimizer, b: dict[str, Tensor]) -> Tensor:
        m.train()
        return _plain(m, o, b)

    return train, lambda _: model.eval() and None


def _batches() -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [{"x": torch.randn(6, 4, dtype=torch.float64), "y": torch.randint(3, (6,))} for _ in range(3)]


@pytest.mark.parametrize(
    "make",
    [
        _reads_object,
        _calls_function,
        _is_method,
        _uses_loss_module,
        _reads_list_of_tensors,
        _module_holds_object,
        _sets_mode,
        _module_reads_global,
        _reads_deque,
        _reads_array,
        _reads_slots,
        _reads_class,
        _reads_python_module,
        _reads_list_with_a_module,
    ],
)
def test_a_change_between_steps_is_seen(make: Callable[[nn.Module], tuple[Train, Callable[[int], None]]]) -> None:
    torch.manual_seed(0)
    first = Scaled().double()
    got: list[dict[str, Any]] = []
    for wrapped in (False, True):
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train, change = make(model)
        step = maniple.parallelize(train, model, optimizer, strategy="dp=2", engine="reference") if wrapped else None
        for number, batch in enumerate(_batches()):
            change(number)
            _ = step(batch) if step else train(model, optimizer, batch)
        got.append({**model.state_dict(), "training": torch.tensor([part.training for part in model.modules()])})
    for name, want in got[0].items():
        torch.testing.assert_close(got[1][name], want, rtol=1e-10, atol=1e-12)


def _toggles(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
    weight = model.inner.weight  # type: ignore[union-attr]  # a module
    weight.requires_grad_(not weight.requires_grad)  # type: ignore[operator,union-attr]  # a parameter
    return _plain(model, optimizer, batch)


def _counts(options: Options) -> Train:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
        options.count += 1
        return _update(F.cross_entropy(model(batch["x"]), batch["y"]) / options.count, optimizer)

    return train


@pytest.mark.parametrize(("train", "names"), [(_toggles, "inner.weight.requires_grad"), (_counts(Options()), "count=")])
def test_what_the_step_would_change_is_refused(train: Train, names: str) -> None:
    model = Scaled().double()
    step = maniple.parallelize(train, model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="dp=2", engine="reference")
    with pytest.raises(maniple.ManipleError, match=names):
        step(_batches()[0])


def test_loaded_optimizer_state_compiles_nothing() -> None:
    model = Scaled().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step = maniple.parallelize(_plain, model, optimizer, strategy="dp=2", engine="reference")
    for batch in _batches():
        step(batch)
    known = step.compiled
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(_batches()[0])
    assert step.compiled == known
