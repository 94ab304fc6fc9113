"""Measures the most memory that a step takes on Realm, against the bound that `maniple explain --stage memory` shows.

    python benchmarks/memory.py                     # all of it, about three minutes; rewrites the table of docs/benchmarks.md
    python benchmarks/memory.py --json out.json --no-pages

What is measured: every byte that PyTorch allocates on any thread while a step runs, inside of kernels too (see allocations.py), beyond
what was there before the engine prepared the step: parameters, optimizer state, batch. The largest of some steps counts.

Exit status 1 if a measured peak is above its bound.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from allocations import counting
from pages import ROOT, markdown, replace_table

from maniple.api.memory import peak
from maniple.api.step import Step
from maniple.api.workloads import load
from maniple.commands import WorkloadConfig
from maniple.engine.realm import RealmEngine
from maniple.kernels.torch import compile_program
from maniple.mesh import Strategy


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a model, its batch, a strategy, and how many processors run its devices."""

    model: str
    batch: int
    strategy: str
    num_processors: int

    def __str__(self) -> str:
        """Return all of it in one line."""
        return f"{self.model} batch={self.batch} {self.strategy or 'one device'} on {self.num_processors}"


CASES: Final = (
    Case("mlp", 256, "dp=2", 1),
    Case("mlp", 256, "tp=2", 2),
    Case("gpt2", 8, "", 1),
    Case("gpt2", 8, "dp=2", 2),
    Case("gpt2", 8, "dp=4", 2),
    Case("gpt2", 8, "dp=2 zero=3", 2),
    Case("gpt2", 8, "tp=2", 2),
    Case("llama", 8, "dp=2 tp=2", 4),
    Case("bert", 8, "dp=2", 2),
    Case("resnet", 32, "dp=2", 1),
)
STEPS: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes in the node.

    Attributes:
        before: of what was there before.
        measured: the most beyond that.
        bound: what that never exceeds.
        kept: of the bound, what the engine keeps between steps.
    """

    case: Case
    before: int
    measured: int
    bound: int
    kept: int


def measure(case: Case, steps: int = STEPS) -> Row:
    """Run some steps of a case and return what they took."""
    allocations = counting()
    workload = load(WorkloadConfig(model=case.model, batch=case.batch))
    step = Step(workload.step, (workload.model, workload.optimizer), Strategy.parse(case.strategy), f"realm:{case.num_processors}")
    for number in range(2):  # the first one creates the optimizer's state
        step(workload.batches(number))
    inputs = step.last.binding.inputs((workload.batches(2),), 2)
    graph, framework = step.last.plan.graph, step.framework
    engine: Any = RealmEngine(compile_program, case.num_processors)
    del step
    gc.collect()
    base, most = allocations.live_bytes, 0
    for _ in range(steps):
        allocations.reset()
        engine.run(graph, inputs)
        most = max(most, allocations.peak_bytes - base)
    bound = peak(graph, case.num_processors, framework)
    return Row(case, sum(tensor.untyped_storage().nbytes() for tensor in inputs.values()), most, bound.node_bytes, bound.kept_bytes)


HEADINGS: Final = ("model", "batch", "strategy", "processors", "there before KiB", "measured KiB", "bound KiB", "measured / bound")
RIGHT: Final = "batch,processors,there before KiB,measured KiB,bound KiB,measured / bound"


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one row, in the order of `HEADINGS`."""
    sizes = (f"{size / 1024:,.0f}" for size in (row.before, row.measured, row.bound))
    case = row.case
    strategy = f"`{case.strategy}`" if case.strategy else "one device"
    return (case.model, str(case.batch), strategy, str(case.num_processors), *sizes, f"{row.measured / row.bound:.3f}")


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", type=int, default=range(len(CASES)), metavar="N", help="numbers of cases, from 0 on")
    parser.add_argument("--json", type=Path, help="write every row to this file")
    parser.add_argument("--no-pages", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args(arguments)
    rows = []
    for number in options.cases:
        rows.append(measure(CASES[number]))
        print(" | ".join(cells(rows[-1])), flush=True)
    if options.json:
        options.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    if not options.no_pages:
        replace_table(ROOT / "docs" / "benchmarks.md", "memory", markdown(HEADINGS, map(cells, rows), RIGHT))
    return int(any(row.measured > row.bound for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
