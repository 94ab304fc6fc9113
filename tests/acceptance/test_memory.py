"""Acceptance: what a step takes on Realm is never above the bound that `explain` shows, and within 25 % of it."""

from __future__ import annotations

import json

import pytest
from acceptance_harness import maniple
from allocations import Allocations
from memory import CASES, Case, measure

pytest.importorskip("legate")
pytestmark = pytest.mark.usefixtures("captured_once")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_measured_against_the_bound(case: Case, allocations: Allocations) -> None:
    row = measure(case)
    assert row.measured <= row.bound
    assert row.measured >= 0.75 * row.bound


def test_there_are_ten_cases() -> None:
    assert len(set(CASES)) == 10


def test_explain_says_what_is_measured(allocations: Allocations) -> None:
    case = Case("mlp", 256, "dp=2", 2)
    words = ["explain", case.model, "--batch", str(case.batch), "--strategy", case.strategy, "--stage", "memory", "--engine", "realm:2"]
    memory = json.loads(maniple(*words, "--json").stdout)["memory"]
    row = measure(case, steps=2)
    assert memory["node_bytes"] == row.bound
    assert memory["state_bytes"]["parameter"] + memory["state_bytes"]["optimizer"] <= row.before
    assert sum(memory["kinds"].values()) == sum(item["bytes"] for item in memory["live"])
    assert memory["node_bytes"] == max(item["held_bytes"] + item["body_bytes"] for item in memory["tasks"])
    text = maniple(*words).stdout
    assert memory["task"] in text
    assert "inside bodies" in text
    for item in memory["live"][:10]:
        assert item["name"] in text


def test_explain_on_the_reference_engine_shows_one_device() -> None:
    memory = json.loads(maniple("explain", "mlp", "--strategy", "dp=2", "--stage", "memory", "--engine", "reference", "--json").stdout)[
        "memory"
    ]
    assert memory["node_bytes"] == memory["device_bytes"]
    assert memory["kept_bytes"] == 0
