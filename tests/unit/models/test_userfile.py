from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from maniple.base.errors import ModelError
from maniple.models import is_user_file, load

GOOD = """
import torch
from neighbour import WIDTH

def step(model, optimizer, batch):
    loss = model(batch[0]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def make():
    model = torch.nn.Linear(WIDTH, 2)
    return step, model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(4, WIDTH), torch.arange(4))

def three():
    return step, None, None

def wrong():
    return step, torch.nn.Linear(2, 2), "sgd", None

def fails():
    return {}["absent"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "broken.py").write_text("import torch\nx = (\n")
    (tmp_path / "raises.py").write_text("\n1 / 0\n")
    return tmp_path


@pytest.mark.parametrize("fake", [False, True])
def test_workload_of_a_file(folder: Path, fake: bool) -> None:
    path = list(sys.path)
    workload = load(f"{folder / 'mine.py'}:make", dtype="float64", fake=fake)
    assert sys.path == path
    assert workload.model.weight.dtype == workload.batch[0].dtype == torch.float64
    assert workload.batch[1].dtype == torch.int64
    assert isinstance(workload.model.weight, FakeTensor) is fake
    assert [p is q for p, q in zip(workload.optimizer.param_groups[0]["params"], workload.model.parameters(), strict=True)] == [True, True]
    assert workload.samples == 4
    if not fake:
        first, second = (float(workload.step(workload.model, workload.optimizer, workload.batches(i)).detach()) for i in range(2))
        assert second < first


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("none.py:make", "no file", 0),
        ("mine.py", "does not name a function", 0),
        ("mine.py:", "does not name a function", 0),
        ("mine.py:mak", r"no function 'mak'[^!]*mine.py:make", 0),
        ("mine.py:three", "tuple of 3, not four things", 16),
        ("mine.py:wrong", "a str in the place of the optimizer", 19),
        ("mine.py:fails", "KeyError", 23),
        ("broken.py:make", "SyntaxError", 2),
        ("raises.py:make", "ZeroDivisionError", 2),
    ],
)
def test_what_is_refused(folder: Path, text: str, says: str, line: int) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load(str(folder / text))
    assert (caught.value.where.line if caught.value.where else 0) == line


def test_options_of_the_zoo_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="makes its own model"):
        load(f"{folder / 'mine.py'}:make", batch=4)


def test_what_is_a_file() -> None:
    assert is_user_file("a/b.py:f")
    assert is_user_file("b.py")
    assert not is_user_file("gpt2:small")
