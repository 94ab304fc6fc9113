"""`maniple check` with the realm engine: whole training steps equal PyTorch's own."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from maniple import Strategy, api
from maniple.base.errors import EngineError
from maniple.cli.app import app
from maniple.commands import CheckConfig, WorkloadConfig

# what the table of the acceptance tests leaves out: one device, three ways of a batch and of weights, more devices than processors
CASES = [("mlp", "", "realm"), ("mlp", "tp=3", "realm"), ("mlp", "dp=8 zero=1", "realm:3"), ("mlp", "dp=3", "realm:4")]


@pytest.mark.parametrize(("model", "strategy", "engine"), CASES)
def test_equal_to_one_device(model: str, strategy: str, engine: str) -> None:
    config = CheckConfig(workload=WorkloadConfig(model=model, dtype="float64"), strategy=Strategy.parse(strategy), engine=engine, steps=3)
    report = api.check(config)
    assert report.equal, report.worst_tensor
    assert report.max_rel_err < 1e-9
    assert report.engine == engine
    assert report.problems == ()


def test_the_command_line_takes_it() -> None:
    done = CliRunner().invoke(app, ["check", "mlp", "--strategy", "dp=2", "--engine", "realm:2"])
    assert done.exit_code == 0, done.output
    assert "realm:2" in done.output


@pytest.mark.parametrize("name", ["realm:", "realm:x", "realm:-1", "reference:2", "legion"])
def test_what_is_no_engine_is_refused(name: str) -> None:
    with pytest.raises(EngineError, match="unknown engine"):
        api.frontends.make_engine(name, "torch")
