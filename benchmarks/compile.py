"""Times how long a plan takes to make: capture, shard and lower, each case in processes of its own, with their peak memory.

    python benchmarks/compile.py                    # all cases, 3 runs each, about 20 minutes on one core; rewrites docs/benchmarks.md
    python benchmarks/compile.py --cases 1 --runs 1 --json - --no-pages

Nothing is run: weights are fake, so that the largest case needs no memory for them. Times are CPU seconds of the process, which another
process on the machine does not change much.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from pages import ROOT, machine, markdown, replace_table

from maniple import Strategy
from maniple.api.explain import steady_program
from maniple.api.workloads import load
from maniple.commands import ExplainConfig, WorkloadConfig
from maniple.lower import lower
from maniple.shard.shard import shard
from maniple.transform.cse import cse
from maniple.transform.dce import dce
from maniple.verify.dependences import check_dependences
from maniple.verify.sharded import verify_sharded

CASES: Final = (
    ("gpt2", "dp=2", None),
    ("gpt2", "dp=2 tp=2", None),
    ("gpt2", "dp=2 tp=2 zero=3", None),
    ("gpt2:small", "dp=2 tp=2", 1024),
    ("gpt2:small", "dp=1024 tp=8", 1024),
    ("llama:8b", "dp=2 tp=2", 2048),
    ("llama:8b", "dp=2048 tp=8", 2048),
    ("llama:8b", "dp=2 tp=2 zero=3", 2048),
)
"""Model, strategy, rows of the batch (None: the model's own)."""

PARTS: Final = ("load_s", "capture_s", "shard_s", "lower_s", "verify_s")
Run = dict[str, Any]


def measure(model: str, strategy: str, batch: int | None) -> Run:
    """Return the CPU seconds of each part of one compilation, the plan's size and this process's peak memory."""
    config = ExplainConfig(workload=WorkloadConfig(model=model, batch=batch), strategy=Strategy.parse(strategy))
    marks = [time.process_time()]
    load(config.workload, fake=True)  # imports PyTorch and the model's code
    marks.append(time.process_time())
    program = steady_program(config)
    marks.append(time.process_time())
    clean = dce(cse(program))
    sharded = shard(clean, config.strategy)
    final = dce(sharded.program)
    marks.append(time.process_time())
    graph = lower(final, config.strategy.mesh)
    marks.append(time.process_time())
    verify_sharded(final, config.strategy.mesh)
    check_dependences(graph)
    marks.append(time.process_time())
    seconds = {name: after - before for name, before, after in zip(PARTS, marks[:-1], marks[1:], strict=True)}
    return {
        "model": model,
        "strategy": strategy,
        "batch": batch,
        **seconds,
        "num_captured_ops": len(program.ops),
        "num_ops": len(final.ops),
        "num_tasks": len(graph.tasks),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_own_process(case: int) -> Run:
    """Return `measure` of a case, done in a new process."""
    done = subprocess.run([sys.executable, __file__, "--measure", str(case)], stdout=subprocess.PIPE, check=True)
    run: Run = orjson.loads(done.stdout)
    return run


def seconds(runs: Sequence[Run], name: str) -> str:
    """Return the median of the runs and how far they spread."""
    values = [run[name] for run in runs]
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def table(cases: Sequence[Sequence[Run]]) -> str:
    """Return what was measured, a row for each case."""
    headings = (
        "model",
        "strategy",
        "batch",
        "captured ops",
        "ops",
        "tasks",
        "load s",
        "capture s",
        "shard s",
        "lower s",
        "verify s",
        "peak MiB",
    )
    rows = [
        (
            runs[0]["model"],
            f"`{runs[0]['strategy']}`",
            str(runs[0]["batch"] or "own"),
            *(str(runs[0][name]) for name in ("num_captured_ops", "num_ops", "num_tasks")),
            *(seconds(runs, name) for name in PARTS),
            f"{max(run['peak_bytes'] for run in runs) / 2**20:,.0f}",
        )
        for runs in cases
    ]
    return markdown(headings, rows, ",".join(headings[2:]))


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers of the cases, from 0")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", help="write every run to this file, - for standard output")
    parser.add_argument("--from-json", type=Path, help="write the page from such a file instead of measuring")
    parser.add_argument("--no-pages", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure is not None:
        print(orjson.dumps(measure(*CASES[options.measure])).decode())
        return 0
    if options.from_json:
        cases = orjson.loads(options.from_json.read_bytes())
    else:
        cases = [[in_own_process(case) for _ in range(options.runs)] for case in options.cases]
    found = orjson.dumps(cases, option=orjson.OPT_INDENT_2).decode()
    if options.json == "-":
        print(found)
    else:
        print(table(cases))
        if options.json:
            Path(options.json).write_text(found, encoding="utf-8")
    if not options.no_pages:
        replace_table(ROOT / "docs" / "benchmarks.md", "compile", table(cases))
        replace_table(ROOT / "docs" / "benchmarks.md", "machine", machine())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
