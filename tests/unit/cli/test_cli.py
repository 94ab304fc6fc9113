from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import maniple
from maniple.base.errors import CaptureError
from maniple.base.location import Location
from maniple.cli.app import app
from maniple.commands import (
    CheckConfig,
    CheckReport,
    CommunicationRow,
    ExplainConfig,
    ExplainReport,
    Listener,
    PhaseStarted,
    Run,
    StepDone,
    TensorCheck,
    Traffic,
    TrainConfig,
    TrainReport,
)
from maniple.trace import LaneSummary, TraceSummary

RUNNER = CliRunner()


def check_report(*, equal: bool) -> CheckReport:
    tensor = TensorCheck(name="fc.weight", kind="parameter", rel_err=0.5, noise=1e-15, tolerance=1e-9, equal=equal)
    return CheckReport(
        model="mlp", strategy="dp=2", engine="reference", dtype="float64", steps=3, equal=equal, max_rel_err=0.5, tolerance=1e-9,
        worst_tensor="fc.weight", num_ops=10, num_tasks=4, flops_per_device_ratio=0.5, state_bytes_per_device_ratio=1.0,
        parameter_bytes_per_device_ratio=1.0, optimizer_bytes_per_device_ratio=1.0, replicated_ops={"add": 2},
        collectives={"all_reduce": Traffic(3, 4096)}, tensors=(tensor,), low_precision=("rms_norm",),
    )  # fmt: skip


class Api:
    """Stands for `maniple.api`: remembers what it was asked for."""

    def __init__(self, report: Any, error: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self.report, self.error = report, error

    def __call__(self, config: CheckConfig | TrainConfig | ExplainConfig, listener: Listener) -> Any:
        self.asked.append(config)
        listener(PhaseStarted("capture"))
        listener(PhaseStarted("train", 2))
        listener(StepDone(2.5, 0.5, 256, "tokens"))
        listener(StepDone(None))
        if self.error is not None:
            raise self.error
        return self.report


def install(monkeypatch: pytest.MonkeyPatch, command: str, report: Any, error: Exception | None = None) -> Api:
    api = Api(report, error)
    monkeypatch.setattr(maniple, "api", SimpleNamespace(**{command: api}), raising=False)
    return api


def test_check_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    api = install(monkeypatch, "check", check_report(equal=True))
    words = ["--steps", "5", "--batch", "4", "--seq", "8", "--dropout", "0.1", "--engine", "realm:2"]
    result = RUNNER.invoke(app, ["check", "mlp", "--strategy", "dp=2 zero=1", *words])
    assert result.exit_code == 0
    (config,) = api.asked
    assert (str(config.strategy), config.steps, config.engine) == ("dp=2 zero=1", 5, "realm:2")
    assert (config.workload.batch, config.workload.seq, config.workload.dtype, config.workload.dropout) == (4, 8, "float64", 0.1)
    assert "equal to one device" in result.stdout
    assert "all_reduce x3 (4.0 KiB)" in result.stdout
    assert "step 1/2  loss 2.5000  512 tokens/s" in result.stderr


def test_check_that_fails_exits_1_and_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "check", check_report(equal=False))
    result = RUNNER.invoke(app, ["check", "mlp", "--strategy", "dp=2"])
    assert result.exit_code == 1
    assert "NOT equal" in result.stdout
    assert "fc.weight" in result.stdout


@pytest.mark.parametrize("equal", [True, False])
def test_check_json_is_one_object(monkeypatch: pytest.MonkeyPatch, equal: bool) -> None:
    install(monkeypatch, "check", check_report(equal=equal))
    result = RUNNER.invoke(app, ["check", "mlp", "--strategy", "dp=2", "--json"])
    assert result.exit_code == (0 if equal else 1)
    found = json.loads(result.stdout)
    assert found["equal"] is equal
    assert found["collectives"] == {"all_reduce": {"count": 3, "bytes": 4096}}
    assert result.stderr == ""
    for key in ("model", "strategy", "engine", "dtype", "steps", "max_rel_err", "tolerance", "worst_tensor", "num_ops", "num_tasks"):
        assert key in found
    for key in ("flops_per_device_ratio", "state_bytes_per_device_ratio", "replicated_ops", "capture_s", "compile_s", "run_s"):
        assert key in found


def test_train_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tuple(Run(name=name, losses=(4.8, 3.2), samples_per_s=1234.0, step_s=0.05) for name in ("dp=2, reference", "one device"))
    report = TrainReport(model="gpt2", strategy="dp=2", engine="reference", steps=2, unit="tokens", runs=runs, max_loss_difference=1e-7)
    api = install(monkeypatch, "train", report)
    result = RUNNER.invoke(app, ["train", "gpt2", "--strategy", "dp=2", "--steps", "2", "--compare"])
    assert result.exit_code == 0
    assert api.asked[0].compare
    assert api.asked[0].workload.dtype == "float32"
    for word in ("one device", "4.8000", "3.2000", "1,234", "1e-07"):
        assert word in result.stdout
    as_json = RUNNER.invoke(app, ["train", "gpt2", "--strategy", "dp=2", "--json"])
    assert json.loads(as_json.stdout)["runs"][0]["losses"] == [4.8, 3.2]


def trace_summary() -> TraceSummary:
    lane = LaneSummary(
        lane="cpu0/compute", num_tasks=1234, busy_share=0.5, dispatch_share=0.25, serial_share=0.125, idle_share=0.125
    )  # fmt: skip
    return TraceSummary(
        num_steps=3, num_tasks=1234, step_s=0.0125, runtime_share=0.375, lanes=(lane,), phase_s={"forward": 0.001},
        runtime_s={"issue": 0.0005}, file="[t].json",
    )  # fmt: skip


def test_trace_shows_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    api = install(monkeypatch, "trace", trace_summary())
    result = RUNNER.invoke(app, ["trace", "t.json", "--svg", "t.svg"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert (api.asked[0].file, api.asked[0].svg) == ("t.json", "t.svg")
    for word in ("[t].json", "cpu0/compute", "1,234", "50.0%", "25.0%", "12.5%", "12.50 ms", "forward 1.00 ms", "issue 0.50 ms", "37.5%"):
        assert word in result.stdout
    found = json.loads(RUNNER.invoke(app, ["trace", "t.json", "--json"]).stdout)
    assert found["lanes"][0]["dispatch_share"] == 0.25


@pytest.mark.parametrize("command", ["train", "check"])
def test_trace_is_asked_for_and_shown(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    run = Run(name="dp=2", losses=(4.8,), samples_per_s=1.0, step_s=0.05)
    trained = TrainReport(model="m", strategy="dp=2", engine="realm", steps=1, unit="rows", runs=(run,), trace=trace_summary())
    report = trained if command == "train" else replace(check_report(equal=True), trace=trace_summary())
    api = install(monkeypatch, command, report)
    result = RUNNER.invoke(app, [command, "mlp", "--strategy", "dp=2", "--trace", "t.json"], env={"COLUMNS": "160"})
    assert api.asked[0].trace == "t.json"
    assert "37.5%" in result.stdout


def test_explain_groups_equal_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(
        CommunicationRow(
            kind="all_reduce", tensor=f"{i}", axis="tp", bytes=2048, phase="forward", why="factor k", where=f"m.py:7 (blocks.{i})"
        )
        for i in range(3)
    )
    report = ExplainReport(model="gpt2", strategy="tp=2", num_ops=5, num_tasks=6, communication=rows)
    install(monkeypatch, "explain", report)
    result = RUNNER.invoke(app, ["explain", "gpt2", "--strategy", "tp=2"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "factor k" in line]
    assert "m.py:7" in line
    assert "│     3 │" in line
    assert "6.0 KiB per device" in result.stdout


def test_explain_prints_the_text_of_a_stage_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'program {\n  in %w: f32[2]{tp} parameter "w"  ' + "x" * 300 + "[bold]\n}"
    api = install(monkeypatch, "explain", ExplainReport(model="m", strategy="", stage="program", text=text))
    result = RUNNER.invoke(app, ["explain", "m", "--stage", "program"])
    assert result.stdout == text + "\n"
    assert api.asked[0].stage == "program"


@pytest.mark.parametrize("command", ["train", "check", "explain"])
def test_errors_are_one_message_and_status_2(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    error = CaptureError("the step returns nothing", where=Location("mine.py", 3), hint="return the loss")
    install(monkeypatch, command, None, error)
    result = RUNNER.invoke(app, [command, "mlp", "--strategy", "dp=2", "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: the step returns nothing\n  at mine.py:3\n  try: return the loss\n"
    debugged = RUNNER.invoke(app, [command, "mlp", "--strategy", "dp=2", "--json", "--debug"])
    assert debugged.exit_code == 2
    assert "Traceback" in debugged.stderr
    assert "error: the step returns nothing" in debugged.stderr


@pytest.mark.parametrize("strategy", ["pp=2", "dp=0", "dp", "none.toml", "dp=2 place:w={tp}"])
def test_bad_strategies_need_no_model(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    api = install(monkeypatch, "check", None)
    result = RUNNER.invoke(app, ["check", "mlp", "--strategy", strategy])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert api.asked == []


def test_models() -> None:
    result = RUNNER.invoke(app, ["models"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert "gpt2:small" in result.stdout
    found = json.loads(RUNNER.invoke(app, ["models", "--json"]).stdout)
    assert found["llama"]["sizes"][0] == "tiny"


@pytest.mark.parametrize("arguments", [["check", "mlp"], ["check", "mlp", "--strategy", "dp=2", "--steps", "0"], ["tain"]])
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    assert RUNNER.invoke(app, arguments).exit_code == 2
