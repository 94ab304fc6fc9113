"""A trace as a picture: one step as a timeline, in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from maniple.base.errors import ParseError
from maniple.trace.summary import lane_order, window
from maniple.trace.trace import Event, Trace

COLOURS: Final = {"forward": "#2f6fde", "backward": "#d9480f", "update": "#2b8a3e"}
RUNTIME, WAIT = "#8b949e", "#dfe3e8"
INK, FAINT, PAPER, BAND = "#1f2328", "#656d76", "#ffffff", "#f1f3f5"
FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
LEFT, TOP, WIDTH, RIGHT = 96, 62, 800, 16
TASK_PX, RUNTIME_PX, GAP_PX = 30, 9, 9
MAX_EVENTS: Final = 20_000
"""Of one step; a picture with more would be too large for a page."""


def draw(trace: Trace, step: int | None = None, title: str = "") -> str:
    """Return a picture of one step: a row for each place, tasks coloured by phase, what the runtime does in grey below them.

    It has paper of its own, so that it reads on dark pages too.

    Args:
        trace: what to draw.
        step: which step; the last one by default.
        title: heading; says the number and length of the step by default.

    Raises:
        ParseError: if the trace has no such step, or too much of it.
    """
    steps = sorted({event.step for event in trace})
    step = step if step is not None else (steps or [0])[-1]
    events = [event for event in trace if event.step == step]
    if not events:
        raise ParseError(f"the trace has no step {step}", hint=f"steps: {', '.join(map(str, steps)) or 'none'}")
    if len(events) > MAX_EVENTS:
        raise ParseError(f"step {step} has {len(events)} events, too many for a picture", hint=f"at most {MAX_EVENTS}")
    start, end = window(events)
    end = max(end, start + 1)
    lanes = sorted({event.lane for event in events if event.work.kind != "step"}, key=lane_order)
    rows, height = _rows(lanes)
    title = title or f"step {step}: {(end - start) / 1e6:.2f} ms"
    parts = [_text(LEFT, 22, title, size=14), *_legend(events)]
    parts += [_text(LEFT - 10, y + size / 2 + 4, name, anchor="end") for name, y, size in _labels(rows)]
    parts += [_rect(LEFT, y, WIDTH, size, BAND) for y, size in rows.values()]
    parts += _axis(start, end, height)
    for event in sorted(events, key=lambda event: event.start_ns):
        if event.work.kind != "step":
            y, size = rows[event.lane]
            scale = WIDTH / (end - start)
            x, width = LEFT + (event.start_ns - start) * scale, event.duration_ns * scale
            fill = WAIT if event.work.kind == "wait" else COLOURS.get(event.work.phase or "", RUNTIME)
            parts.append(_rect(x, y, max(width, 0.25), size, fill, _about(event)))
    box = f'viewBox="0 0 {LEFT + WIDTH + RIGHT} {height + 30:g}" width="{LEFT + WIDTH + RIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="{FONT}" role="img">'
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{_safe(title)}</title>", paper, *parts, "</svg>", ""])


def _rows(lanes: Sequence[str]) -> tuple[dict[str, tuple[float, float]], float]:
    """Return for each lane its top and height, and where the last one ends; lanes of one place touch."""
    rows: dict[str, tuple[float, float]] = {}
    y, last = float(TOP - GAP_PX), ""
    for lane in lanes:
        place, _, what = lane.partition("/")
        y += GAP_PX if place != last else 1
        alone = sum(other.partition("/")[0] == place for other in lanes) == 1
        size = RUNTIME_PX if what == "runtime" and not alone else TASK_PX
        rows[lane], y, last = (y, size), y + size, place
    return rows, y


def _labels(rows: dict[str, tuple[float, float]]) -> Iterator[tuple[str, float, float]]:
    """Yield for each place its name, top and height, on its highest lane."""
    places: dict[str, tuple[float, float]] = {}
    for lane, (y, size) in rows.items():
        places.setdefault(lane.partition("/")[0], (y, size))
    for place, (y, size) in places.items():
        yield place, y, size


def _legend(events: Sequence[Event]) -> Iterator[str]:
    shown = {event.work.phase for event in events}
    x = float(LEFT)
    for name, colour in [*((phase, colour) for phase, colour in COLOURS.items() if phase in shown), ("runtime", RUNTIME)]:
        yield _rect(x, 33, 12, 12, colour)
        yield _text(x + 18, 43, name, fill=FAINT)
        x += 42 + 7.3 * len(name)


def _axis(start: int, end: int, bottom: float) -> Iterator[str]:
    """Yield ticks in milliseconds, at most ten."""
    length_ms = (end - start) / 1e6
    power = 10.0 ** math.floor(math.log10(length_ms / 8))
    step = next(factor * power for factor in (1, 2, 5, 10) if length_ms / (factor * power) <= 8)
    for number in range(int(length_ms / step) + 1):
        x = LEFT + number * step / length_ms * WIDTH
        yield f'<path d="M{x:.1f} {TOP - 4}V{bottom + 4:g}" stroke="{FAINT}" stroke-opacity=".25"/>'
        yield _text(x, bottom + 18, f"{number * step:g}" + (" ms" if number == 0 else ""), size=11, fill=FAINT, anchor="middle")


def _about(event: Event) -> str:
    """Return what a pointer over an event shows."""
    work = event.work
    words = [f"{work.name} {event.duration_ns / 1000:.0f} us"]
    if work.is_task:
        words.append(f"{work.phase} {work.op}, device {event.device}")
    return ", ".join(words)


def _text(x: float, y: float, words: str, *, size: int = 12, fill: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{_safe(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    shape = f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}" fill="{fill}"'
    return f"{shape}><title>{_safe(title)}</title></rect>" if title else f"{shape}/>"


def _safe(words: str) -> str:
    """Return text for XML, which has no form at all for most control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in words))
