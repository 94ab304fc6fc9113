"""Acceptance: what is compiled does not grow with the mesh."""

from __future__ import annotations

from typing import Any

import pytest

from maniple import api
from maniple.commands import ExplainConfig, ExplainReport, WorkloadConfig
from maniple.mesh import Strategy


def report(strategy: str) -> ExplainReport:
    workload = WorkloadConfig(model="gpt2:small", batch=1024)
    return api.explain(ExplainConfig(workload=workload, strategy=Strategy.parse(strategy)))


@pytest.mark.usefixtures("explained_once")
def test_thousands_of_devices_are_as_many_ops_and_tasks_as_four() -> None:
    small, large = report("dp=2 tp=2"), report("dp=1024 tp=8")
    assert (large.num_ops, large.num_tasks) == (small.num_ops, small.num_tasks)
    assert large.num_tasks > 100

    def moved(found: ExplainReport) -> list[tuple[Any, ...]]:
        return [(row.kind, row.axis, row.phase, row.why) for row in found.communication]

    assert moved(large) == moved(small)
