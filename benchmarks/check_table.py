"""Runs `maniple check` for every model under every strategy and writes the tables of docs/results.md and README.md.

    python benchmarks/check_table.py                     # all of it, about an hour on one core; rewrites the pages
    python benchmarks/check_table.py --models mlp --strategies "dp=2" "tp=2" --json out.json --no-pages
    python benchmarks/check_table.py --models gpt2 llama --json a.json --resume --no-pages    # some of it, taken up again
    python benchmarks/check_table.py --from-json a.json b.json                                # the pages, from several runs

Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from pages import ROOT, machine, markdown, replace_table

sys.path.insert(0, str(ROOT / "tests" / "acceptance"))
from hf_families import FAMILIES, ROWS, TOKENS, write
from sharing import share_captures, share_oracles

from maniple import ManipleError, Strategy, api, models
from maniple.capture.torch.captured import Captured
from maniple.commands import CheckConfig, WorkloadConfig
from maniple.models import ZOO
from maniple.verify.compare import Tensor

MODELS: Final = (*ZOO, *(f"hf:{name}" for name in FAMILIES))
"""The zoo, and the families of tests/acceptance/hf_families.py, whose config.json is written to a folder of its own."""

STRATEGIES: Final = (
    "dp=2", "tp=2", "dp=2 tp=2", "dp=2 zero=1", "dp=2 zero=3", "dp=3", "dp=2 tp=2 zero=3", "dp=2 tp=2 zero=3 sp",
)  # fmt: skip
QUOTED: Final = (
    ("gpt2", "dp=2"),
    ("gpt2", "dp=2 zero=3"),
    ("gpt2", "tp=2"),
    ("llama", "dp=2 tp=2"),
    ("bert", "dp=2 tp=2 zero=3"),
    ("mixtral", "tp=2"),
    ("resnet", "dp=3"),
)
"""Rows that the README shows."""

Row = dict[str, Any]


def workload_of(model: str, folder: Path) -> WorkloadConfig:
    """Return what `check` is told of a model; a family's config.json is written into `folder`."""
    name = model.removeprefix("hf:")
    if name not in FAMILIES or name == model:
        return WorkloadConfig(model=model, dtype="float64")
    return WorkloadConfig(model=write(folder, name), batch=ROWS, seq=TOKENS, dtype="float64")


def measure(model: str, workload: WorkloadConfig, strategy: str, engine: str | None) -> Row:
    """Return the report of one check as a dict; of a model that is refused, the reason under `refused`."""
    try:
        report = api.check(CheckConfig(workload=workload, strategy=Strategy.parse(strategy), engine=engine))
    except ManipleError as error:
        return {"model": model, "strategy": strategy, "refused": str(error)}
    except Exception as error:  # noqa: BLE001  # a fault of ours fails this row, and the hour goes on
        return {"model": model, "strategy": strategy, "refused": f"{type(error).__name__}: {error}", "equal": False}
    row: Row = orjson.loads(orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS))
    return {**row, "model": model}


def measure_all(names: Sequence[str], strategies: Sequence[str], engine: str | None, out: Path | None, known: Sequence[Row]) -> list[Row]:
    """Return the reports of all checks; each model is captured, and trained by PyTorch, once for all strategies.

    Args:
        names: of the models.
        strategies: their texts.
        engine: as `check` takes it.
        out: written after each row, so that a run that ended early can be taken up again.
        known: rows of an earlier run, which are not measured again.

    Returns:
        The rows known before, and those measured.
    """
    rows = list(known)
    done = {(row["model"], row["strategy"]) for row in known}
    traces: dict[Hashable, Captured] = {}
    oracles: dict[Hashable, Mapping[str, Tensor]] = {}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        share_captures(patch, traces)
        share_oracles(patch, oracles)
        for model in names:
            left = [strategy for strategy in strategies if (model, strategy) not in done]
            if not left:
                continue
            workload = workload_of(model, Path(folder))
            learns = models.load(workload.model, batch=workload.batch, seq=workload.seq, fake=True).description
            for strategy in left:
                rows.append({**measure(model, workload, strategy, engine), "learns": learns})
                print(" | ".join(cells(rows[-1])), flush=True)
                if out:
                    out.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
            traces.clear()
            oracles.clear()
    return rows


def read(files: Sequence[Path]) -> list[Row]:
    """Return the rows of several files in the order of `MODELS` and `STRATEGIES`; of one check measured twice, the later file's."""
    rows: dict[tuple[str, str], Row] = {(row["model"], row["strategy"]): row for file in files for row in orjson.loads(file.read_bytes())}
    order = {name: number for number, name in enumerate((*MODELS, *STRATEGIES))}
    return [rows[key] for key in sorted(rows, key=lambda key: [order.get(name, len(order)) for name in key])]


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


def coverage(rows: Sequence[Row]) -> str:
    """Return the table of all models: what each learns, the largest error under any strategy, and FLOPs per device under each."""
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        found = {row["strategy"]: row for row in rows if row["model"] == model}
        done = [row for row in found.values() if "refused" not in row]
        error = f"{max(row['max_rel_err'] for row in done):.0e}" if done else "-"
        right = [row["equal"] for row in done]
        ratios = [_ratio(found.get(strategy)) for strategy in strategies]
        lines.append((model, next(iter(found.values()))["learns"], error if all(right) else f"**{error}, NOT EQUAL**", *ratios))
    headings = ("model", "what", "max error", *(f"`{strategy}`" for strategy in strategies))
    return markdown(headings, lines, ",".join(headings[2:]))


def _ratio(row: Row | None) -> str:
    if row is None:
        return "-"
    return "refused" if "refused" in row else f"{row['flops_per_device_ratio']:.2f}"


def write_pages(rows: Sequence[Row]) -> None:
    """Replace the tables of docs/results.md and of the README."""
    results = ROOT / "docs" / "results.md"
    replace_table(results, "coverage", coverage(rows))
    zoo = [row for row in rows if row["model"] in ZOO]
    replace_table(results, "results", markdown(HEADINGS, map(cells, zoo), RIGHT))
    done = [row for row in zoo if "refused" not in row]
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
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, and measure the rest")
    parser.add_argument("--from-json", type=Path, nargs="+", help="write the pages from such files instead of measuring")
    parser.add_argument("--no-pages", action="store_true", help="leave docs/results.md and README.md as they are")
    options = parser.parse_args(arguments)
    if options.from_json:
        rows = read(options.from_json)
    else:
        known = read([options.json]) if options.resume and options.json and options.json.exists() else []
        rows = measure_all(options.models, options.strategies, options.engine, options.json, known)
    if not options.no_pages:
        write_pages(rows)
    return int(not all(row.get("equal", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
