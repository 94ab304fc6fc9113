"""Batches and results that are dataclasses, named tuples, mappings or objects: taken, and given back as the same class."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from capture_harness import Runner
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from maniple.base.errors import CaptureError


@dataclass
class Plain:
    """What most people write."""

    x: Tensor
    y: Tensor
    name: str = "train"
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass that cannot be written to, without a dict."""

    x: Tensor
    y: Tensor


class Pair(NamedTuple):
    """A named tuple."""

    x: Tensor
    y: Tensor


class Attributes(dict[str, Any]):
    """A dict that is read through attributes."""

    __getattr__ = dict.__getitem__


class Own:
    """A class of the user's, as in PyTorch's page on collate functions."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Subclass(Own):
    """Part of it is a record."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.inner = Plain(x, y, more={"frozen": Frozen(x, y)})


KINDS: dict[str, Callable[..., Any]] = {
    "dataclass": Plain,
    "frozen dataclass": Frozen,
    "named tuple": Pair,
    "dict with attributes": lambda x, y: Attributes(x=x, y=y),
    "object": Own,
    "records in records": Subclass,
    "namespace": lambda x, y: types.SimpleNamespace(x=x, y=y),
    "ordered dict": lambda x, y: OrderedDict(y=y, x=x),
    "user dict": lambda x, y: UserDict({"x": x, "y": y}),
    "batch encoding": lambda x, y: BatchEncoding({"x": x, "y": y}),
    "model output": lambda x, y: SequenceClassifierOutput(loss=x, logits=y),
}


def fields(record: Any) -> tuple[Tensor, Tensor]:
    """Return `x` and `y` of a record."""
    if isinstance(record, SequenceClassifierOutput):
        assert record.loss is not None
        assert record.logits is not None
        return record.loss, record.logits
    return (record["x"], record["y"]) if isinstance(record, Mapping) else (record.x, record.y)


@pytest.mark.parametrize("name", KINDS)
def test_same_class_in_and_out(name: str) -> None:
    kind = KINDS[name]

    def step(model: nn.Module, optimizer: Optimizer, batch: Any) -> Any:
        x, y = fields(batch)
        made = model(x)
        loss = F.mse_loss(made, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [kind(loss.detach(), made.detach())]

    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    mine = model, SGD(model.parameters(), lr=0.1)
    theirs = copy.deepcopy(mine)
    runner = Runner(step, mine)
    for rows in (8, 8, 6):
        batch = kind(torch.randn(rows, 4).double(), torch.randn(rows, 3).double())
        [got], [expected] = runner(batch), step(*theirs, batch)
        assert type(got) is type(expected)
        for one, other in zip(fields(got), fields(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert len(runner.compiled) == 2
    assert "batch.x" in runner.changes[0] or name == "model output"


def step_of(batch: Any) -> Any:
    model = nn.Linear(4, 3).double()

    def step(model: nn.Module, optimizer: Optimizer, batch: Any) -> Any:
        loss = model(batch.x).square().mean() * getattr(batch, "scale", 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Runner(step, (model, SGD(model.parameters(), lr=0.1))), batch


def test_plain_fields_are_guards() -> None:
    x, y = torch.randn(8, 4).double(), torch.randn(8, 3).double()
    runner, batch = step_of(types.SimpleNamespace(x=x, y=y, scale=1))
    first = runner(batch)
    batch.scale = 0
    assert runner(batch) == 0
    assert first != 0
    assert "`batch.scale`" in runner.changes[0]


def test_what_a_record_may_not_hold() -> None:
    x = torch.randn(8, 4).double()
    runner, batch = step_of(types.SimpleNamespace(x=x, rows=bytearray(3)))
    with pytest.raises(CaptureError, match=r"'batch.rows' is a bytearray"):
        runner(batch)
