"""What a captured step depends on: after a change it is captured again and computes what PyTorch does."""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from capture_harness import Runner, all_state, assert_close, assert_same_result
from torch import Tensor, nn

from maniple.base.errors import CaptureError
from maniple.capture.torch import capture, describe_change, signature
from maniple.capture.torch.plain import keep, spelled

Model, Optimizer = Any, torch.optim.Optimizer


@dataclass
class Config:
    """What many models hold."""

    scale: float = 1.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])


class Net(nn.Module):
    """A convolution, and attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, stride=(1,))
        self.activation: Callable[[Tensor], Tensor] = torch.tanh
        self.dtype = torch.float64
        self.factors = [1.0, 2.0]
        self.offset: float | None = None
        self.table = {"a": 1.0}
        self.config = Config()
        self.options = types.SimpleNamespace(power=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.conv(x)).to(self.dtype) * self.config.scale * self.factors[0] + self.table["a"]
        y = y if self.offset is None else y + self.offset
        return (y**self.options.power).double()


def step(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def made() -> tuple[Net, Optimizer]:
    torch.manual_seed(0)
    model = Net().double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output * 2


def _other_hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output * 3


def _triple(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)


@pytest.mark.parametrize(("change", "words"), [
    (lambda m: setattr(m.conv, "stride", (2,)), "`conv.stride` was (1), is (2)"),
    (lambda m: setattr(m, "activation", F.relu), "`model.activation` was tanh, is relu"),
    (lambda m: setattr(m, "dtype", torch.float32), "`model.dtype` was torch.float64, is torch.float32"),
    (lambda m: m.factors.__setitem__(0, 3.0), "`model.factors` was (1.0, 2.0), is (3.0, 2.0)"),
    (lambda m: setattr(m, "offset", 1.5), "`model.offset` was None, is 1.5"),
    (lambda m: m.table.update(a=2.0), "`model.table` was ('a', 1.0), is ('a', 2.0)"),
    (lambda m: setattr(m.config, "scale", 2.0), "`model.config` was Config(scale=1.0, sizes=(1, 2)), is Config(scale=2.0"),
    (lambda m: setattr(m.options, "power", 3), "`model.options` was SimpleNamespace(power=1), is SimpleNamespace(power=3)"),
    (lambda m: m.conv.weight.register_hook(lambda g: g * 2), "`conv.weight._backward_hooks` is new"),
    (lambda m: m.conv.weight.register_post_accumulate_grad_hook(_triple), "`conv.weight._post_accumulate_grad_hooks` is"),
    (lambda m: m.conv.register_forward_hook(_hook), "_forward_hooks"),
])  # fmt: skip
def test_change_between_steps(change: Callable[[Any], Any], words: str) -> None:
    model, optimizer = made()
    eager, eager_optimizer = copy.deepcopy((model, optimizer))
    runner = Runner(step, (model, optimizer))
    for number in range(3):
        if number == 1:
            for item in (model, eager):
                change(item)
        x = torch.randn(2, 2, 8, dtype=torch.float64)
        assert_same_result(runner(x), step(eager, eager_optimizer, x), 1e-12)
        for name, value in all_state(eager, eager_optimizer).items():
            assert_close(name, all_state(model, optimizer)[name], value, 1e-12)
    assert len(runner.compiled) == 2
    assert words in runner.changes[0]


def test_hook_exchanged_for_another() -> None:
    model, optimizer = made()
    handle = model.conv.register_forward_hook(_hook)
    runner = Runner(step, (model, optimizer))
    x = torch.randn(2, 2, 8, dtype=torch.float64)
    for hook in (None, _other_hook):
        if hook:
            handle.remove()
            model.conv.register_forward_hook(hook)
        eager = copy.deepcopy((model, optimizer))
        assert_same_result(runner(x), step(*eager, x), 1e-12)
    assert len(runner.compiled) == 2


def test_other_arguments_and_surroundings() -> None:
    model, optimizer = made()
    settings, factor, held = types.SimpleNamespace(scale=2.0), 3.0, torch.tensor(5.0, dtype=torch.float64)

    def scaled(model: Model, optimizer: Optimizer, settings: Any, x: Tensor) -> Tensor:
        return step(model, optimizer, x) * settings.scale * factor + held

    runner = Runner(scaled, (model, optimizer, settings))
    x = torch.randn(2, 2, 8, dtype=torch.float64)

    def compare() -> None:
        eager = copy.deepcopy((model, optimizer))
        assert_same_result(runner(x), scaled(*eager, settings, x), 1e-12)

    compare()
    settings.scale = 4.0
    compare()
    factor = 7.0
    compare()
    held = torch.tensor(9.0, dtype=torch.float64)
    compare()
    compare()
    assert len(runner.compiled) == 4
    assert "settings" in runner.changes[0]
    assert runner.changes[1:] == ["`variable factor` was 3.0, is 7.0", "`variable held` was Tensor, is Tensor"]


def test_counter_outside_is_refused() -> None:
    count = 0

    def counting(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return step(model, optimizer, x)

    with pytest.raises(CaptureError, match="`variable count` was 0, is 1"):
        capture(counting, made(), (torch.randn(2, 2, 8, dtype=torch.float64),))


def test_module_added_inside_is_refused() -> None:
    def adding(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
        model.extra = nn.Identity()
        return step(model, optimizer, x)

    model, optimizer = made()
    with pytest.raises(CaptureError, match=r"`model\._modules`"):
        capture(adding, (model, optimizer), (torch.randn(2, 2, 8, dtype=torch.float64),))
    assert [name for name, _ in model.named_children()] == ["conv"]


def test_scheduler_asked_inside() -> None:
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def asking(model: Model, optimizer: Optimizer, x: Tensor) -> Any:
        return step(model, optimizer, x), scheduler.get_last_lr()[0]

    with pytest.raises(CaptureError, match=r"StepLR\.get_last_lr\(\)"):
        capture(asking, (model, optimizer), (torch.randn(2, 2, 8, dtype=torch.float64),))


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ((1,), [1]), ("a", b"a"), (torch.relu, torch.tanh), ({1}, frozenset({1})), (Config(), Config(2))],
)
def test_kept_apart(one: Any, other: Any) -> None:
    assert keep(one) == keep(copy.deepcopy(one))
    assert hash(keep(one)) == hash(keep(copy.deepcopy(one)))
    assert keep(one) != keep(other)
    assert spelled(keep(one))


def test_not_kept() -> None:
    assert keep(object()) is None
    assert keep([1, object()]) is None
    assert keep(torch.ones(1)) is None


def test_record_that_holds_itself() -> None:
    record = types.SimpleNamespace(a=1)
    record.own = record
    assert keep(record) == keep(record)


def test_signature_is_fast() -> None:
    """A step is some milliseconds of work: asking whether anything changed must not be seen in it."""
    model = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 16) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, 16)).sum().backward()
    optimizer.step()
    batch = (torch.ones(1),)
    taken = []
    for _ in range(20):
        start = time.process_time()
        now = signature(step, (model, optimizer), batch)
        taken.append(time.process_time() - start)
    assert not describe_change(now, signature(step, (model, optimizer), batch))
    assert min(taken) < 0.01
