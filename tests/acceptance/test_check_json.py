"""Acceptance: `check --json` is one object with the keys that the issue names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acceptance_harness import maniple

TYPES: dict[str, type | tuple[type, ...]] = {
    "model": str, "strategy": str, "engine": str, "dtype": str, "steps": int, "equal": bool, "max_rel_err": float, "tolerance": float,
    "worst_tensor": str, "num_ops": int, "num_tasks": int, "flops_per_device_ratio": float, "state_bytes_per_device_ratio": float,
    "replicated_ops": dict, "collectives": dict, "capture_s": float, "compile_s": float, "run_s": float,
}  # fmt: skip


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    result = maniple(
        "check", "mlp", "--strategy", "dp=2 zero=2", "--steps", "2", "--batch", "8", "--seed", "3", "--engine", "reference", "--json"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("{")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("key", TYPES)
def test_key(report: dict[str, Any], key: str) -> None:
    assert type(report[key]) is TYPES[key]


def test_values(report: dict[str, Any]) -> None:
    assert (report["model"], report["strategy"], report["engine"], report["dtype"]) == ("mlp", "dp=2 zero=2", "reference", "float64")
    assert (report["steps"], report["equal"]) == (2, True)
    assert 0 <= report["max_rel_err"] <= report["tolerance"] <= 1e-6
    assert report["worst_tensor"] in {item["name"] for item in report["tensors"]}
    assert min(report["num_ops"], report["num_tasks"]) > 0
    assert 0.5 <= report["flops_per_device_ratio"] <= 0.55
    assert 0.6 < report["state_bytes_per_device_ratio"] < 0.7  # parameters whole, twice as much optimizer state halved
    assert min(report["capture_s"], report["compile_s"], report["run_s"]) > 0


def test_collectives(report: dict[str, Any]) -> None:
    assert set(report["collectives"]) == {"all_gather", "all_reduce", "reduce_scatter"}
    for traffic in report["collectives"].values():
        assert set(traffic) == {"count", "bytes"}
        assert all(type(n) is int and n > 0 for n in traffic.values())


def test_both_measures_are_reported(report: dict[str, Any]) -> None:
    for item in report["tensors"]:
        assert set(item) >= {"name", "kind", "rel_err", "noise", "tolerance", "equal"}
    assert any(item["noise"] > 0 for item in report["tensors"])


def test_replicated_ops_are_counted() -> None:
    result = maniple("check", "mlp", "--strategy", "tp=2", "--steps", "1", "--json")
    replicated = json.loads(result.stdout)["replicated_ops"]
    assert all(type(count) is int and count > 0 for count in replicated.values())
    assert replicated
