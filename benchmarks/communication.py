"""Draws docs/pictures and writes the table of docs/strategies.md, from the plans that Maniple makes of the tiny GPT-2.

    python benchmarks/communication.py

- docs/pictures/block.svg: the tasks of one transformer block under `dp=2 tp=2`, as they stand in the task graph;
- docs/pictures/communication.svg: bytes per collective for each strategy.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from pages import ROOT, markdown, replace_table

from maniple import Strategy
from maniple.api import Plan, compile_program
from maniple.api.explain import steady_program
from maniple.commands import ExplainConfig, WorkloadConfig
from maniple.ir.program import Program
from maniple.lower import state_bytes
from maniple.mesh import Mesh
from maniple.shard.summary import communication
from maniple.taskgraph.graph import Task

MODEL: Final = "gpt2"
STRATEGIES: Final = ("dp=2", "dp=2 zero=1", "dp=2 zero=2", "dp=2 zero=3", "tp=2", "dp=2 tp=2", "dp=2 tp=2 zero=3")
BLOCK: Final = 1
COLOURS: Final = {"all_reduce": "#c2410c", "all_gather": "#1d4ed8", "reduce_scatter": "#0f766e", "all_to_all": "#7e22ce"}
INK, FAINT, PAPER, BOX = "#1f2328", "#656d76", "#ffffff", "#d0d7de"
FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def text(x: float, y: float, words: str, *, size: int = 12, fill: str = INK, anchor: str = "start") -> str:
    """Return one line of text."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    """Return a box, with what a pointer over it shows."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}">{inner}</rect>'


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return a whole picture on paper of its own, so that it reads on dark pages too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" font-family="{FONT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", rect(0, 0, width, height, PAPER), *parts, "</svg>", ""])


# -- one block ------------------------------------------------------------------------------------------------------------------


def block_tasks(plan: Plan, block: int) -> list[Task]:
    """Return the tasks of forward and backward that belong to a block, in the graph's order, without the updates."""
    scope = f"blocks.{block}"

    def is_inside(place: str) -> bool:
        return place == scope or place.startswith(scope + ".")

    # equal segments of several blocks are one; whose block a task is for, its location says
    tasks = (task for task in plan.graph.tasks if task.phase != "update" and task.location)
    return [task for task in tasks if task.location and is_inside(task.location.scope)]


def work(plan: Plan, task: Task) -> str:
    """Return the ops of a segment that say what it does."""
    told = ("dot_general", "attention", "attention_grad", "layer_norm", "layer_norm_grad", "gelu", "gelu_grad", "embedding")
    counts = Counter(op.name for op in plan.graph.segments[task.segment].ops if op.name in told)
    names = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    return ", ".join(name.replace("dot_general", "matmul") for name in names) or task.op


def block_picture(plan: Plan) -> str:
    """Return the tasks of one block: a column for each device, a bar wherever devices communicate."""
    tasks, mesh = block_tasks(plan, BLOCK), plan.graph.mesh
    devices = list(mesh.points())
    left, top, column, step = 190, 74, 96, 40
    width, height = left + column * len(devices) + 330, top + step * len(tasks) + 16
    parts = [text(16, 26, f"One {MODEL} block under dp=2 tp=2: its tasks in forward and backward, in order", size=15)]
    parts.append(
        text(16, 44, "grey: a segment, run by every device on its shard; coloured: a collective among the devices it spans", fill=FAINT)
    )
    for number, point in enumerate(devices):
        name = " ".join(f"{axis}{at}" for axis, at in point.items())
        parts.append(text(left + column * (number + 0.5), top - 8, name, fill=FAINT, anchor="middle"))
    phase = ""
    for row, task in enumerate(tasks):
        y = top + row * step
        if task.phase != phase:
            phase = task.phase
            parts.append(text(16, y + 19, phase, size=13))
        if task.kind == "compute":
            parts += [rect(left + column * n + 4, y, column - 8, 28, BOX, task.name) for n in range(len(devices))]
            parts.append(text(left + column * len(devices) + 12, y + 18, work(plan, task)))
            parts.append(text(left - 12, y + 19, f"{task.flops / 1e6:.1f} MFLOP each", size=11, fill=FAINT, anchor="end"))
            continue
        axes = task.accesses[0].part.peers
        groups = dict.fromkeys(tuple(sorted(mesh.device(peer) for peer in mesh.group(point, axes))) for point in devices)
        for group in groups:
            x = left + column * group[0] + 4
            parts.append(rect(x, y + 6, column * (group[-1] - group[0] + 1) - 8, 16, COLOURS[task.op], task.name))
        buffer = next(b for b in plan.graph.buffers if b.name == task.accesses[0].buffer)
        shape = ",".join(map(str, buffer.type.shape))
        parts.append(
            text(left + column * len(devices) + 12, y + 18, f"{task.op} over {'.'.join(axes)} of [{shape}]", fill=COLOURS[task.op])
        )
    return picture(width, height, "Tasks of one transformer block", parts)


# -- bytes per strategy -----------------------------------------------------------------------------------------------------------


def traffic(plan: Plan) -> Counter[tuple[str, str, str]]:
    """Return bytes by (phase, kind, axis)."""
    found: Counter[tuple[str, str, str]] = Counter()
    for item in communication(plan.sharded.program, plan.sharded.mesh):
        found[item.phase, item.kind, item.axis] += item.num_bytes
    return found


def chart(plans: dict[str, Plan]) -> str:
    """Return a bar for each strategy: bytes of the operands of its collectives, and of the state that a device keeps."""
    left, top, step, scale_px = 190, 84, 34, 420
    totals = {name: Counter[str]() for name in plans}
    for name, plan in plans.items():
        for (_, kind, _), num_bytes in traffic(plan).items():
            totals[name][kind] += num_bytes
    states = {name: sum(state_bytes(plan.sharded.program, plan.sharded.mesh).values()) for name, plan in plans.items()}
    most = max(*(sum(kinds.values()) for kinds in totals.values()), *states.values())
    kinds_used = [kind for kind in COLOURS if any(kinds[kind] for kinds in totals.values())]
    parts = [text(16, 26, f"{MODEL} (tiny): bytes of what each strategy communicates and keeps, per device", size=15)]
    x = left
    for label, colour in [*((kind, COLOURS[kind]) for kind in kinds_used), ("state kept", BOX)]:
        parts += [rect(x, 44, 12, 12, colour), text(x + 18, 55, label, fill=FAINT)]
        x += 40 + 8 * len(label)
    for row, (name, kinds) in enumerate(totals.items()):
        y, at = top + row * step, float(left)
        parts.append(text(left - 12, y + 15, name, anchor="end"))
        for kind in kinds_used:
            length = kinds[kind] / most * scale_px
            if length:
                parts.append(rect(at, y, length, 12, COLOURS[kind], f"{kind}: {kinds[kind]} bytes"))
            at += length
        parts.append(text(at + 8, y + 11, mib(sum(kinds.values())), size=11))
        parts.append(rect(left, y + 13, states[name] / most * scale_px, 8, BOX, f"state: {states[name]} bytes"))
        parts.append(text(left + states[name] / most * scale_px + 8, y + 21, mib(states[name]), size=9, fill=FAINT))
    return picture(left + scale_px + 110, top + step * len(plans) + 8, "Communication of each strategy", parts)


def mib(num_bytes: float) -> str:
    """Return a size."""
    return f"{num_bytes / 2**20:.2f} MiB"


def table(plans: dict[str, Plan]) -> str:
    """Return what each strategy communicates in each phase, and keeps."""
    rows = []
    for name, plan in plans.items():
        counts = Counter((c.phase, c.kind, c.axis) for c in communication(plan.sharded.program, plan.sharded.mesh))
        found = traffic(plan)
        cells = [
            "<br>".join(f"{counts[key]} {key[1]} over {key[2]}, {mib(found[key])}" for key in counts if key[0] == phase) or "-"
            for phase in ("forward", "backward", "update")
        ]
        kept = state_bytes(plan.sharded.program, plan.sharded.mesh)
        rows.append((f"`{name}`", *cells, mib(kept["parameter"]), mib(kept["optimizer"])))
    return markdown(("strategy", "forward", "backward", "update", "parameters", "optimizer"), rows, "parameters,optimizer")


def plans_of(program: Program) -> dict[str, Plan]:
    """Return the plan of each strategy."""
    return {name: compile_program(program, Strategy.parse(name)) for name in STRATEGIES}


def captured() -> Program:
    """Return the model's step."""
    return steady_program(ExplainConfig(workload=WorkloadConfig(model=MODEL), strategy=Strategy(Mesh())))


def main(arguments: Sequence[str]) -> int:
    """Write pictures and table; the pictures to the folder named, if there is one, and no table then."""
    plans = plans_of(captured())
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    (folder / "block.svg").write_text(block_picture(plans["dp=2 tp=2"]), encoding="utf-8")
    (folder / "communication.svg").write_text(chart(plans), encoding="utf-8")
    if not arguments:
        replace_table(ROOT / "docs" / "strategies.md", "communication", table(plans))
    else:
        print(table(plans))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
