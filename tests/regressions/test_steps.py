"""Steps that once failed, each against PyTorch on one device, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.api import check
from maniple.base.errors import EngineError, ModelError, StrategyError
from maniple.commands import CheckConfig, CheckReport, WorkloadConfig
from maniple.mesh import Strategy

STEPS = Path(__file__).with_name("steps.py")


def report(name: str, strategy: str, steps: int = 2) -> CheckReport:
    workload = WorkloadConfig(model=f"{STEPS}:{name}", dtype="float64")
    return check(CheckConfig(workload=workload, strategy=Strategy.parse(strategy), steps=steps))


@pytest.mark.parametrize(
    "name",
    [
        "first_momentum_is_gradient", "numbers_meet_constants", "two_microbatches", "closure", "gradient_is_result", "gradient_penalty",
        "update_before_second_pass", "names_that_clash", "assignments", "weight_norms",
    ],
)  # fmt: skip
def test_step_equals_one_device(name: str) -> None:
    found = report(name, "dp=2 tp=2 zero=3")
    assert found.equal, f"{found.worst_tensor}: {found.max_rel_err}"


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("dp=2 place:0.weight={dp/3,_}", "no whole number of 3 blocks"),
        ("dp=2 place:0.weight={dp*7,_}", "units of 7"),
        ("tp=2 pin:batch.x={_,_|tp:sum}", "an input is whole"),
        ("tp=2 pin:lr.0={|tp:sum}", "an input is whole"),
    ],
)
def test_layouts_that_would_change_numbers_are_refused(strategy: str, says: str) -> None:
    with pytest.raises(StrategyError, match=says):
        report("closure", strategy, steps=1)


def test_model_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be copied"):
        report("cannot_be_copied", "dp=2")


def test_more_devices_than_one_process_can_hold_are_refused() -> None:
    with pytest.raises(EngineError, match="1000000 devices"):
        report("closure", "tp=1000000")
