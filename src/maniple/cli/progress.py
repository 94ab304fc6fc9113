"""Progress on standard error: a spinner for work of unknown length, a bar for steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from maniple.commands import Event, Listener, PhaseStarted, StepDone


@contextmanager
def progress_shown(console: Console) -> Iterator[Listener]:
    """Show events on `console` while inside; where it is no terminal, one line per phase and ten lines per run of steps."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as bars:
        yield _Bars(bars)


def step_note(event: StepDone) -> str:
    """Return a step's loss and throughput.

    >>> step_note(StepDone(loss=3.25, seconds=0.5, samples=256, unit="tokens"))
    'loss 3.2500  512 tokens/s'
    """
    words = [] if event.loss is None else [f"loss {event.loss:.4f}"]
    if event.samples and event.seconds > 0:
        words.append(f"{event.samples / event.seconds:,.0f} {event.unit}/s")
    return "  ".join(words)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self._finish()
            self._task = self._bars.add_task(event.name, total=event.num_steps or None, note="")
        elif self._task is not None:
            self._bars.update(self._task, advance=1, note=step_note(event))

    def _finish(self) -> None:
        """Stop the spinner of a phase of unknown length."""
        for task in self._bars.tasks:
            if task.id == self._task and task.total is None:
                self._bars.update(task.id, total=1, completed=1)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._done, self._every, self._total = 0, 1, 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self._done, self._total, self._every = 0, event.num_steps, max(1, event.num_steps // 10)
            self._console.print(event.name, highlight=False)
            return
        self._done += 1
        if self._done % self._every == 0 or self._done == 1:
            of = f"/{self._total}" if self._total else ""
            self._console.print(f"  step {self._done}{of}  {step_note(event)}", highlight=False, markup=False)
