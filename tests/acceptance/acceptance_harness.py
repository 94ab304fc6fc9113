"""What the acceptance tests share: the command line in this process, and the figures of the issue."""

from __future__ import annotations

import json
from typing import Any, Final

from click.testing import Result
from typer.testing import CliRunner

from maniple.cli.app import app

MODELS: Final = ("mlp", "gpt2", "llama", "bert", "resnet")
STRATEGIES: Final = (
    "dp=2", "tp=2", "dp=2 tp=2", "dp=2 zero=1", "dp=2 zero=2", "dp=2 zero=3", "dp=4", "dp=2 tp=2 zero=3",
)  # fmt: skip


def maniple(*arguments: str) -> Result:
    """Run a command; what is no error made on purpose fails the test with its traceback."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def check(model: str, strategy: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run `check --json`; return exit status and report."""
    result = maniple("check", model, "--strategy", strategy, "--json", *more)
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def wrong(report: dict[str, Any]) -> set[str]:
    """Return the names of the tensors that a report finds wrong."""
    return {item["name"] for item in report["tensors"] if not item["equal"]}
