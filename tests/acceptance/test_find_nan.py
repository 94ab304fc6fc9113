"""Acceptance: the first op that makes a number that is not finite is named on request; a NaN is never `equal`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from training_harness import Batch, batch_of, made, train_step
from typer.testing import CliRunner

import maniple
from maniple.base.errors import NonFiniteError
from maniple.cli.app import app

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Roots(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return torch.log(y - y.max())

def train_step(model, optimizer, batch):
    loss = model(batch["x"]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def workload():
    torch.manual_seed(0)
    model = Roots()
    return train_step, model, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.randn(8, 4)}
"""


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y / y.abs().clamp(max=1.0).floor()  # mostly x / 0


def ratio_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_the_op_is_named() -> None:
    model, optimizer = made(Ratio(), SGD)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = maniple.parallelize(ratio_step, model, optimizer, strategy="dp=2")
    found = step.find_nan(batch_of(0))
    assert found is not None
    assert (found.op, found.phase) == ("divide", "forward")
    assert found.location is not None
    assert found.location.scope == "model" or not found.location.scope
    assert Path(found.location.file) == Path(__file__)
    assert "infinite" in found.made
    assert all("finite, " in operand for operand in found.operands)
    assert "result" in found.outputs
    with pytest.raises(NonFiniteError, match="step 0: divide"):
        step.check_finite(batch_of(0))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_data_that_is_not_finite_is_named() -> None:
    step = maniple.parallelize(train_step, *made(), strategy="dp=2")
    batch = batch_of(0)
    assert step.find_nan(batch) is None
    batch["x"][1, 2] = torch.nan
    found = step.find_nan(batch)
    assert found is not None
    assert not found.op
    assert "`batch.x`" in found.made


def test_commands(tmp_path: Path) -> None:
    file = tmp_path / "roots.py"
    file.write_text(MODEL)
    line = 1 + MODEL.splitlines().index("        return torch.log(y - y.max())")
    plain = CliRunner().invoke(app, ["check", f"{file}:workload", "-s", "dp=2", "--steps", "1", "--json"])
    assert plain.exit_code == 1
    assert "holds NaN, on one device too" in plain.stdout
    for command in ("check", "train"):
        asked = CliRunner().invoke(app, [command, f"{file}:workload", "-s", "dp=2", "--steps", "1", "--find-nan"])
        assert asked.exit_code == 2
        assert "log (forward) made numbers that are not finite" in asked.stderr
        assert f"roots.py:{line}" in asked.stderr
