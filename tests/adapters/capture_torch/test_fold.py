"""A step whose optimizer is traced once for parameters that are alike is the program that tracing it whole gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # its usual name
from torch import nn

from maniple.capture.torch import Captured, capture, fold, locations
from maniple.ir.program import Program, Value

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "groups": lambda p: torch.optim.AdamW([{"params": p[odd::2], "lr": 0.1 * (1 + odd)} for odd in (0, 1)], maximize=True),
}


class Alike(nn.Module):
    """Layers of equal shapes, a tied one, a frozen one, and one that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.tied, self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.layers[0].weight
        self.frozen.requires_grad_(requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.layers, self.tied, self.frozen):
            x = torch.tanh(layer(x))
        return x * self.scale + self.shift


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def two_steps(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What folding left in parameters, state and views of them is read by the ops after it."""
    view = model.layers[1].weight.view(-1)
    first, second = step(model, optimizer, x), step(model, optimizer, x * 2)
    with torch.no_grad():
        model.layers[0].weight.mul_(0.5)
    return first, second, view.detach().sum(), sum(value.sum() for state in optimizer.state.values() for value in state.values())


@contextmanager
def whole() -> Iterator[None]:
    """Let steps be traced without folding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "is_apart", lambda _optimizer: False)
        yield


def meaning(program: Program, known: dict[Hashable, int]) -> dict[str, int]:
    """Return for each output and gradient a number that equal expressions, with equal phases and lines, have in common."""
    numbers: dict[Value, int] = {
        item.value: known.setdefault((item.name, item.kind, item.value.type), len(known)) for item in program.inputs
    }
    for op in program.ops:
        key = (op.name, op.attrs, op.phase, op.location, tuple(numbers[value] for value in op.operands))
        for at, value in enumerate(op.results):
            numbers[value] = known.setdefault((*key, at, value.type), len(known))
    ends = [(item.name, item.value) for item in program.outputs] + [(f"gradient of {name}", value) for name, value in program.gradients]
    return {name: numbers[value] for name, value in ends}


def assert_same(folded: Captured, plain: Captured) -> None:
    """Fail unless two captures are one program but for the order of ops."""
    known: dict[Hashable, int] = {}
    assert meaning(folded.program, known) == meaning(plain.program, known)
    assert [item.name for item in folded.program.outputs] == [item.name for item in plain.program.outputs]
    assert len(folded.program.ops) == len(plain.program.ops)
    assert folded.created == plain.created
    assert [guard.text for guard in folded.guards] == [guard.text for guard in plain.guards]


def both(function: Any, bound: Sequence[Any], args: Sequence[Any]) -> Captured:
    """Capture with and without folding; compare."""
    folded = capture(function, bound, args)
    with whole():
        assert_same(folded, capture(function, bound, args))
    return folded


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_folded_and_whole_programs_are_equal(name: str) -> None:
    model = Alike()
    bound, args = (model, OPTIMIZERS[name](list(model.parameters()))), (torch.ones(3, 4),)
    first = both(step, bound, args)
    if first.created:
        step(*bound, *args)  # makes state, of different numbers
    both(step, bound, args)


def test_state_that_the_first_of_two_updates_makes() -> None:
    model = Alike()
    both(two_steps, (model, torch.optim.Adam(model.parameters(), lr=0.1)), (torch.ones(3, 4),))


class Lion(torch.optim.Optimizer):
    """An optimizer that torch does not have, in which a parameter's place matters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        for group in self.param_groups:
            for at, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign() * group["lr"] / (1 + at))


class AdamOfPlaces(torch.optim.Adam):
    """A subclass that does something else."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        for at, parameter in enumerate(self.param_groups[0]["params"]):
            if parameter.grad is not None:
                parameter.grad.mul_(at)
        super().step()


@pytest.mark.parametrize("kind", [Lion, AdamOfPlaces])
def test_optimizers_that_are_not_torchs_own_are_traced_whole(kind: Any) -> None:
    model = Alike()
    optimizer = kind(model.parameters())
    assert not fold.is_apart(optimizer)
    both(step, (model, optimizer), (torch.ones(3, 4),))


def test_hooks_see_all_parameters() -> None:
    model, seen = Alike(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def double(found: Any, _args: object, _kwargs: object) -> None:
        parameters = found.param_groups[0]["params"]
        seen.append(len(parameters))
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(2.0)

    optimizer.register_step_pre_hook(double)
    optimizer.register_step_post_hook(double)
    both(step, (model, optimizer), (torch.ones(3, 4),))
    assert set(seen) == {len(list(model.parameters()))}


def test_ops_are_recorded_once_for_parameters_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    dispatch = locations.OriginMode.__torch_dispatch__

    def counted(mode: locations.OriginMode, func: Any, *args: Any) -> Any:
        counts.append(mode.position.num_optimizer if func.namespace == "aten" else 0)
        return dispatch(mode, func, *args)

    def num_traced(layers: int) -> int:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        counts.clear()
        capture(step, (model, torch.optim.AdamW(model.parameters())), (torch.ones(3, 4),))
        return sum(counts)

    monkeypatch.setattr(locations.OriginMode, "__torch_dispatch__", counted)
    assert num_traced(6) == num_traced(4) > 0
