"""Acceptance: every stage prints, parses back and prints the same; the communication table says what, where, how much and why."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from acceptance_harness import maniple

from maniple.api import compile_program
from maniple.api.explain import steady_program
from maniple.commands import ExplainConfig, WorkloadConfig
from maniple.ir.text import parse_program, print_program
from maniple.mesh import Strategy
from maniple.ops.collectives import COMMUNICATING
from maniple.shard.summary import communication
from maniple.taskgraph.text import parse_taskgraph, print_taskgraph

pytestmark = pytest.mark.usefixtures("explained_once")
CASES = [("gpt2", "dp=2 tp=2 zero=3"), ("resnet", "dp=2"), ("llama", "dp=2 tp=2"), ("mlp", "dp=2 zero=2")]


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_explain(model: str, strategy: str) -> None:
    """In one test per model: the capture takes most of the time, and workers would each do it."""
    for stage in ("program", "sharded", "tasks"):
        check_text_form_reads_back(model, strategy, stage)
    check_the_communication_table_is_complete(model, strategy)


def check_text_form_reads_back(model: str, strategy: str, stage: str) -> None:
    result = maniple("explain", model, "--strategy", strategy, "--stage", stage)
    assert result.exit_code == 0
    text = result.stdout.rstrip("\n")
    parsed = print_taskgraph(parse_taskgraph(text)) if stage == "tasks" else print_program(parse_program(text))
    assert parsed == text
    if stage == "program":
        assert not re.search(r"= (all_reduce|all_gather|reduce_scatter|all_to_all)\(", text)
    elif stage == "sharded":
        assert "{dp" in text or "{tp" in text
    else:
        assert "edge " in text
        assert "task all_reduce" in text or "task reduce_scatter" in text


def test_a_parsed_plan_means_the_same() -> None:
    """Not only the text: the parsed program has the same collectives, and the same graph comes of it."""
    workload = WorkloadConfig(model="mlp")
    program = steady_program(ExplainConfig(workload=workload, strategy=Strategy.parse("")))
    strategy = Strategy.parse("dp=2 tp=2 zero=3")
    plan = compile_program(program, strategy)
    again = compile_program(parse_program(print_program(program)), strategy)
    assert print_program(again.sharded.program) == print_program(plan.sharded.program)
    assert parse_taskgraph(print_taskgraph(plan.graph)) == plan.graph or print_taskgraph(again.graph) == print_taskgraph(plan.graph)
    parsed = parse_program(print_program(plan.sharded.program))
    assert list(communication(parsed, strategy.mesh)) == list(communication(plan.sharded.program, strategy.mesh))


def check_the_communication_table_is_complete(model: str, strategy: str) -> None:
    result = maniple("explain", model, "--strategy", strategy, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    text = maniple("explain", model, "--strategy", strategy, "--stage", "sharded").stdout
    collectives = [name for name in re.findall(r"= (\w+)\(", text) if name in COMMUNICATING]
    moving = [name for name in collectives if name not in {"shard_slice", "to_pending"}]
    rows = report["communication"]
    assert [row["kind"] for row in rows if row["kind"] in set(moving)] == moving
    axes = {word.split("=")[0] for word in strategy.split()} - {"zero"}
    for row in rows:
        assert row["axis"] in axes, row
        assert row["bytes"] > 0, row
        assert row["phase"] in {"forward", "backward", "update"}
        assert re.fullmatch(r"(%|gradient of )\S+ \[[\d,]*\]", row["tensor"]), row
        assert re.fullmatch(r"(sum|max|min) over \w+ \(\d+\) in \w+|.*\{.*\}, not \{.*\}|leaves the step as \{.*\}", row["why"]), row
        match = re.match(r"(.+):(\d+)(?: \(.*\))?$", row["where"])
        assert match, row
        assert int(match[2]) <= len(Path(match[1]).read_text(encoding="utf-8").splitlines())
    assert report["strategy"] == strategy
    assert report["stage"] is None


def test_json_of_a_stage_holds_its_text() -> None:
    text = maniple("explain", "mlp", "--strategy", "dp=2", "--stage", "tasks").stdout
    report = json.loads(maniple("explain", "mlp", "--strategy", "dp=2", "--stage", "tasks", "--json").stdout)
    assert report["text"] + "\n" == text
    assert (report["stage"], report["model"], report["num_tasks"]) == ("tasks", "mlp", text.count("\n  task "))


def test_the_table_shows_every_column() -> None:
    result = maniple("explain", "mlp", "--strategy", "dp=2 tp=2")
    for word in ("collective", "axis", "tensor", "each", "why", "where", "all_reduce", "per device"):
        assert word in result.stdout
