"""Reports as rich tables."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from maniple.commands import CheckReport, CommunicationRow, ExplainReport, MemoryReport, Run, TrainReport
from maniple.trace import TraceSummary

_BAR = 32
"""Characters of the longest bar."""

_LIVE = 24
"""Tensors that a table shows; JSON has all."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(num_bytes: int) -> str:
    """Return a size that people read.

    >>> format_bytes(0), format_bytes(1536), format_bytes(3 << 30)
    ('0 B', '1.5 KiB', '3.0 GiB')
    """
    size, unit = float(num_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _facts(rows: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} x{count}" if count != 1 else name for name, count in counts.items()) or "none"


def train_view(report: TrainReport) -> RenderableType:
    """Return the runs of a training side by side."""
    table = Table(title=escape(f"{report.model}, {report.steps} steps"), title_justify="left")
    table.add_column("", overflow="fold")
    for heading in ("first loss", "last loss", f"{report.unit}/s", "step", "compile"):
        table.add_column(heading, justify="right")
    for run in report.runs:
        table.add_row(*_run_cells(run))
    parts: list[RenderableType] = [table]
    if report.max_loss_difference is not None:
        parts.append(f"largest difference between the losses: {report.max_loss_difference:.3g}")
    if report.trace is not None:
        parts.append(trace_view(report.trace))
    return Group(*parts)


def _run_cells(run: Run) -> tuple[str, ...]:
    first, last = (f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}") if run.losses else ("-", "-")
    throughput = f"{run.samples_per_s:,.0f}" if run.samples_per_s else "-"
    return escape(run.name), first, last, throughput, f"{run.step_s * 1e3:.1f} ms", f"{run.compile_s:.1f} s"


def check_view(report: CheckReport) -> RenderableType:
    """Return the verdict, the figures, and the tensors that are wrong."""
    verdict = "[bold green]equal to one device[/]" if report.equal else "[bold red]NOT equal to one device[/]"
    traffic = {f"{kind} x{item.count}": format_bytes(item.bytes) for kind, item in report.collectives.items()}
    facts = _facts({
        "model": report.model,
        "strategy": report.strategy or "one device",
        "engine": f"{report.engine}, {report.dtype}, {report.steps} steps",
        "largest error": f"{report.max_rel_err:.3g} of {report.tolerance:.3g} allowed, {report.worst_tensor}",
        "FLOPs per device": f"{report.flops_per_device_ratio:.3f} of one device",
        "state per device": f"{report.state_bytes_per_device_ratio:.3f} of one device "
        f"(parameters {report.parameter_bytes_per_device_ratio:.3f}, optimizer {report.optimizer_bytes_per_device_ratio:.3f})",
        "collectives": ", ".join(f"{name} ({size})" for name, size in traffic.items()) or "none",
        "not divided": _counts(report.replicated_ops),
        "size": f"{report.num_ops} ops, {report.num_tasks} tasks",
        "time": f"capture {report.capture_s:.1f} s, compile {report.compile_s:.1f} s, run {report.run_s:.1f} s",
    })  # fmt: skip
    parts: list[RenderableType] = [verdict, facts]
    if report.low_precision:
        parts.append(escape("below " + report.dtype + ": " + ", ".join(report.low_precision)))
    parts += [f"[bold red]wrong[/]: {escape(problem)}" for problem in report.problems]
    wrong = [item for item in report.tensors if not item.equal]
    if wrong:
        table = Table("kind", "tensor", "error", "allowed", "one-ulp noise", title=f"{len(wrong)} tensors are wrong", title_justify="left")
        for item in wrong[:20]:
            table.add_row(item.kind, escape(item.name), f"{item.rel_err:.3g}", f"{item.tolerance:.3g}", f"{item.noise:.3g}")
        parts.append(table)
    if report.trace is not None:
        parts.append(trace_view(report.trace))
    return Group(*parts)


def trace_view(summary: TraceSummary) -> RenderableType:
    """Return what the time of a trace went into: shares of each lane, milliseconds of each phase and of the runtime."""
    table = Table(title=escape(f"trace {summary.file}"), title_justify="left")
    table.add_column("lane")
    for heading in ("tasks", "busy", "dispatch", "serial", "idle"):
        table.add_column(heading, justify="right")
    for lane in summary.lanes:
        shares = (lane.busy_share, lane.dispatch_share, lane.serial_share, lane.idle_share)
        table.add_row(escape(lane.lane), f"{lane.num_tasks:,}", *(f"{share:.1%}" for share in shares))
    facts = _facts({
        "step": f"{_ms(summary.step_s)}, mean of {summary.num_steps}",
        "in tasks": ", ".join(f"{name} {_ms(seconds)}" for name, seconds in summary.phase_s.items()) or "none",
        "in the runtime": ", ".join(f"{name} {_ms(seconds)}" for name, seconds in summary.runtime_s.items()) or "none",
        "runtime's share": f"{summary.runtime_share:.1%} of the lanes' time (dispatch and serial)",
    })  # fmt: skip
    return Group(table, facts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def explain_view(report: ExplainReport) -> RenderableType:
    """Return the stage asked for, or the summary and the communication table.

    Equal collectives of repeated modules share a row.
    """
    if report.memory is not None:
        return memory_view(report, report.memory)
    if report.stage is not None:
        return report.text
    facts = _facts({
        "model": report.model,
        "strategy": report.strategy or "one device",
        "size": f"{report.num_ops} ops, {report.num_tasks} tasks",
        "not divided": _counts(report.replicated_ops),
        "kept for backward": f"{format_bytes(report.saved_bytes)} per device",
        **report.notes,
    })  # fmt: skip
    if not report.communication:
        return Group(facts, "no communication")
    groups: dict[tuple[str, ...], list[CommunicationRow]] = defaultdict(list)
    for row in report.communication:
        groups[row.phase, row.kind, row.axis, str(row.bytes), row.why, _line(row.where)].append(row)
    table = Table(title="communication", title_justify="left")
    for heading in ("phase", "collective", "axis", "tensor", "each", "times", "why", "where"):
        table.add_column(heading, overflow="fold", justify="right" if heading in {"each", "times"} else "left")
    for (phase, kind, axis, _bytes, why, where), rows in groups.items():
        tensor = rows[0].tensor + (" ..." if len(rows) > 1 else "")
        each = format_bytes(rows[0].bytes)
        table.add_row(phase, kind, axis, escape(tensor), each, str(len(rows)), escape(why), escape(where))
    total = sum(row.bytes for row in report.communication)
    return Group(facts, table, f"{len(report.communication)} collectives, {format_bytes(total)} per device and step")


def memory_view(report: ExplainReport, memory: MemoryReport) -> RenderableType:
    """Return the most memory that a step takes, what is live then, and how it comes and goes over the tasks.

    Tasks of one op in a row share a line, that of the one that takes most.
    """
    processors = "" if memory.num_processors is None else f", bodies run {memory.num_processors} at a time"
    facts = _facts({
        "model": report.model,
        "strategy": report.strategy or "one device",
        "engine": memory.engine + processors,
        "there before": ", ".join(f"{kind} {format_bytes(size)}" for kind, size in memory.state_bytes.items()),
        "at the most beside that": f"{format_bytes(memory.node_bytes)} per node, {format_bytes(memory.device_bytes)} per device",
        "kept between steps": format_bytes(memory.kept_bytes),
        "at the peak": f"{memory.task}: " + ", ".join(f"{kind} {format_bytes(size)}" for kind, size in memory.kinds.items()),
    })  # fmt: skip
    step = Table(title="over the step, per node", title_justify="left")
    for heading in ("task", "phase", "held", "in bodies", "together"):
        step.add_column(heading, justify="left" if heading in {"task", "phase"} else "right")
    step.add_column("")
    most = max((row.held_bytes + row.body_bytes for row in memory.tasks), default=0) or 1
    for (_, phase), rows in groupby(memory.tasks, key=lambda row: (row.task.partition(".")[0], row.phase)):
        run = list(rows)
        row = max(run, key=lambda row: row.held_bytes + row.body_bytes)
        sizes = (row.held_bytes, row.body_bytes, row.held_bytes + row.body_bytes)
        held = round(_BAR * row.held_bytes / most)
        bar = "█" * held + "▒" * (round(_BAR * sizes[2] / most) - held)
        step.add_row(escape(row.task) + (f", most of {len(run)}" if len(run) > 1 else ""), phase, *map(format_bytes, sizes), bar)
    return Group(facts, step, _live_view(memory))


def _live_view(memory: MemoryReport) -> Table:
    table = Table(title="live at the peak, the largest first", title_justify="left")
    for heading in ("tensor", "type", "kind", "bytes", "made by", "where"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "bytes" else "left")
    for item in memory.live[:_LIVE]:
        table.add_row(item.name, escape(item.type), item.kind, format_bytes(item.bytes), escape(item.task), escape(_line(item.where)))
    rest = memory.live[_LIVE:]
    if rest:
        table.add_row(f"{len(rest)} more", "", "", format_bytes(sum(item.bytes for item in rest)), "", "")
    return table


def _line(where: str) -> str:
    """Return a place without its module path, which differs between repeated modules, seen from the current directory if below it."""
    place = where.partition(" (")[0]
    here = str(Path.cwd()) + os.sep
    return place.removeprefix(here)


def models_view(models: Mapping[str, Mapping[str, object]]) -> RenderableType:
    """Return the table of models; each has a description and sizes."""
    table = Table("model", "sizes", "what it is")
    for name, model in models.items():
        sizes = model["sizes"]
        assert isinstance(sizes, list)
        table.add_row(name, ", ".join(f"{name}:{size}" for size in sizes), escape(str(model["description"])))
    return Group(
        table,
        "the bare name is the tiny size",
        "or hf:PATH: a config.json of the Hugging Face Hub, or the folder that holds it; its class with random weights",
        "or FILE.py:FUNCTION, which returns step, model, optimizer, batch",
    )


def show(console: Console, view: RenderableType) -> None:
    """Print a view."""
    console.print(view, highlight=False)
