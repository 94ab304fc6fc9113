"""Acceptance: every model under every strategy equals one device on every number of processors, and is really divided."""

from __future__ import annotations

from typing import Any, Final

import pytest
from acceptance_harness import MODELS, STRATEGIES, check, maniple, wrong

pytestmark = pytest.mark.usefixtures("captured_once", "compiled_once", "eager_once")
PROCESSORS: Final = (1, 2, 4)

FLOPS: Final = {"dp=2": 0.55, "tp=2": 0.6, "dp=2 tp=2": 0.33, "dp=4": 0.33}
"""Most FLOPs per device, of those of one device: three figures of the issue, and one for four ways."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
def test_check(model: str, strategy: str) -> None:
    reports = [checked(model, strategy, f"realm:{number}") for number in PROCESSORS]
    check_divided(model, strategy, reports[0])
    for report in reports[1:]:  # as far from one device as the first, in every tensor: the numbers do not depend on the timing
        assert report["tensors"] == reports[0]["tensors"]


@pytest.mark.parametrize("model", MODELS)
def test_check_in_private_memory(model: str) -> None:
    checked(model, STRATEGIES[-1], "reference")


def checked(model: str, strategy: str, engine: str) -> dict[str, Any]:
    status, report = check(model, strategy, "--engine", engine)
    assert not wrong(report)
    assert report["problems"] == []
    assert (status, report["equal"], report["steps"], report["dtype"]) == (0, True, 3, "float64")
    assert report["engine"] == engine
    assert report["low_precision"] == []
    assert report["max_rel_err"] <= report["tolerance"] <= 1e-6
    compared = {item["kind"] for item in report["tensors"]}
    assert compared >= {"loss", "parameter", "optimizer"} | ({"buffer"} if model == "resnet" else set())
    assert sum(item["kind"] == "loss" for item in report["tensors"]) == 3
    return report


def check_divided(model: str, strategy: str, report: dict[str, Any]) -> None:
    words = strategy.split()
    parameters, optimizer = report["parameter_bytes_per_device_ratio"], report["optimizer_bytes_per_device_ratio"]
    flops = report["flops_per_device_ratio"]
    ways = " ".join(word for word in words if not word.startswith("zero"))
    if model == "resnet":
        assert flops <= 0.75
    else:
        assert flops <= FLOPS[ways]
    if "tp=2" in words and model != "resnet":
        assert max(parameters, optimizer) <= 0.6
    if any(word.startswith("zero") for word in words):
        assert optimizer <= (0.33 if "tp=2" in words else 0.55)
    if "zero=3" in words:
        assert parameters <= (0.33 if "tp=2" in words else 0.55)
    assert set(report["collectives"]) <= {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}
    assert report["collectives"]


def test_a_model_that_a_strategy_does_not_fit_is_refused() -> None:
    result = maniple("check", "gpt2", "--strategy", "dp=16")
    assert result.exit_code == 2
    assert "16" in result.stderr
