"""Runs `maniple check` for every model under every strategy and writes the tables of docs/results.md and README.md.

    python benchmarks/check_table.py                     # all of it, about 15 minutes on one core; rewrites the pages
    python benchmarks/check_table.py --models mlp --strategies "dp=2" "tp=2" --json out.json --no-pages

Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from pages import ROOT, machine, markdown, replace_table

from maniple import ManipleError, Strategy, api
from maniple.commands import CheckConfig, WorkloadConfig

MODELS: Final = ("mlp", "gpt2", "llama", "bert", "resnet")
STRATEGIES: Final = ("dp=2", "tp=2", "dp=2 tp=2", "dp=2 zero=1", "dp=2 zero=2", "dp=2 zero=3", "dp=4", "dp=2 tp=2 zero=3")
QUOTED: Final = (
    ("gpt2", "dp=2"),
    ("gpt2", "dp=2 zero=3"),
    ("gpt2", "tp=2"),
    ("llama", "dp=2 tp=2"),
    ("bert", "dp=2 tp=2 zero=3"),
    ("resnet", "dp=4"),
)
"""Rows that the README shows."""

Row = dict[str, Any]


def measure(model: str, strategy: str, engine: str | None) -> Row:
    """Return the report of one check as a dict; of a model that the strategy does not fit, the reason under `refused`."""
    workload = WorkloadConfig(model=model, dtype="float64")
    try:
        report = api.check(CheckConfig(workload=workload, strategy=Strategy.parse(strategy), engine=engine))
    except ManipleError as error:
        return {"model": model, "strategy": strategy, "refused": str(error)}
    row: Row = orjson.loads(orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS))
    return row


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one row, in the order of `HEADINGS`."""
    if "refused" in row:
        return (row["model"], f"`{row['strategy']}`", "refused", *("-",) * 5)
    traffic = ", ".join(f"{entry['count']} {kind}" for kind, entry in row["collectives"].items())
    kib = sum(entry["bytes"] for entry in row["collectives"].values()) / 1024
    return (
        row["model"],
        f"`{row['strategy']}`",
        f"{row['max_rel_err']:.1e}" if row["equal"] else f"**{row['max_rel_err']:.1e}, NOT EQUAL**",
        f"{row['flops_per_device_ratio']:.3f}",
        f"{row['parameter_bytes_per_device_ratio']:.3f}",
        f"{row['optimizer_bytes_per_device_ratio']:.3f}",
        traffic,
        f"{kib:,.0f}",
    )


HEADINGS: Final = ("model", "strategy", "max error", "FLOPs", "parameters", "optimizer", "collectives per step", "KiB")
RIGHT: Final = "max error,FLOPs,parameters,optimizer,KiB"


def size_cells(row: Row) -> tuple[str, ...]:
    """Return what the second table says of a row: the plan's size, and what is computed whole."""
    whole = ", ".join(f"{name} x{count}" for name, count in row["replicated_ops"].items()) or "-"
    return (row["model"], f"`{row['strategy']}`", str(row["num_ops"]), str(row["num_tasks"]), whole)


SIZE_HEADINGS: Final = ("model", "strategy", "ops", "tasks", "computed whole by every device")


def write_pages(rows: Sequence[Row]) -> None:
    """Replace the tables of docs/results.md and of the README."""
    results = ROOT / "docs" / "results.md"
    replace_table(results, "results", markdown(HEADINGS, map(cells, rows), RIGHT))
    done = [row for row in rows if "refused" not in row]
    replace_table(results, "sizes", markdown(SIZE_HEADINGS, map(size_cells, done), "ops,tasks"))
    reasons = [f"- {row['model']} under `{row['strategy']}`: {' '.join(row['refused'].split())}" for row in rows if "refused" in row]
    replace_table(results, "refused", "\n".join(reasons) or "None of these is refused.")
    replace_table(results, "machine", machine())
    quoted = [cells(row) for key in QUOTED for row in rows if (row["model"], row["strategy"]) == key]
    replace_table(ROOT / "README.md", "results", markdown(HEADINGS, quoted, RIGHT))


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--engine", help="realm, realm:4 for 4 processors, reference; by default what `check` takes")
    parser.add_argument("--json", type=Path, help="write every report to this file")
    parser.add_argument("--from-json", type=Path, help="write the pages from such a file instead of measuring")
    parser.add_argument("--no-pages", action="store_true", help="leave docs/results.md and README.md as they are")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    if options.from_json:
        rows = orjson.loads(options.from_json.read_bytes())
    else:
        for model in options.models:
            for strategy in options.strategies:
                rows.append(measure(model, strategy, options.engine))
                print(" | ".join(cells(rows[-1])), flush=True)
                if options.json:
                    options.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    if not options.no_pages:
        write_pages(rows)
    return int(not all(row.get("equal", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
