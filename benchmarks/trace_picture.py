"""Draws docs/pictures/trace.svg: a step of GPT-2 on Realm, as its trace tells it.

    python benchmarks/trace_picture.py

Of some warm steps the one of median length is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pages import ROOT

from maniple.api.step import Step
from maniple.api.workloads import load
from maniple.commands import WorkloadConfig
from maniple.mesh import Strategy
from maniple.trace import Trace
from maniple.trace.picture import draw

MODEL: Final = "gpt2"
STRATEGY: Final = "dp=2"
COLD, WARM = 4, 9


def traced(model: str, strategy: str) -> Trace:
    """Return a trace of the warm steps."""
    workload = load(WorkloadConfig(model=model))
    step = Step(workload.step, (workload.model, workload.optimizer), Strategy.parse(strategy), "realm:2")
    for number in range(COLD):
        step(workload.batches(number))
    with step.trace() as trace:
        for number in range(COLD, COLD + WARM):
            step(workload.batches(number))
    return trace


def main(arguments: Sequence[str]) -> int:
    """Draw the picture; in the folder named, if there is one."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    trace = traced(MODEL, STRATEGY)
    steps = sorted((event for event in trace if event.work.kind == "step"), key=lambda event: event.duration_ns)
    middle = steps[len(steps) // 2]
    title = f"One step of {MODEL} (tiny) under {STRATEGY} on two cores: {middle.duration_ns / 1e6:.0f} ms"
    (folder / "trace.svg").write_text(draw(trace, middle.step, title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
