"""`trace`: what a trace file tells; and what `--trace` records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from maniple.api.step import Step
from maniple.base.errors import TraceError
from maniple.commands import Listener, TraceConfig, ignore
from maniple.trace import Trace, TraceSummary, summarize
from maniple.trace.picture import draw

TRACED_STEPS: Final = 3
"""How many steps `--trace` records: the last ones, when everything is compiled and memory is warm."""

_COLD_STEPS: Final = 2
"""The first steps, which compile: they are recorded only if there are no others."""


class LastSteps:
    """Calls a step, and records the last few calls.

    Args:
        step: what to call.
        num_steps: how often it will be called.
        file: where the trace goes; empty to record nothing.
        find_nan: look for numbers that are not finite before each call.
    """

    def __init__(self, step: Step, num_steps: int, file: str, *, find_nan: bool = False) -> None:
        """Record nothing yet.

        Raises:
            TraceError: if there is no folder for the file.
        """
        if file and not Path(file).absolute().parent.is_dir():
            raise TraceError(f"cannot write {file}: there is no folder {Path(file).parent}")
        self._step, self._file, self._trace, self._find_nan = step, file, Trace(), find_nan
        self._first = max(num_steps - TRACED_STEPS, min(_COLD_STEPS, num_steps - 1))
        self._done = 0

    def __call__(self, batch: Any) -> Any:
        """Run one step.

        Raises:
            NonFiniteError: if it was asked to look, and the step makes a number that is not finite.
        """
        if self._find_nan:
            self._step.check_finite(batch)
        number, self._done = self._done, self._done + 1
        if not self._file or number < self._first:
            return self._step(batch)
        with self._step.trace(self._trace):
            return self._step(batch)

    def save(self) -> TraceSummary | None:
        """Write the file; return what it tells, None if nothing was to be recorded.

        Raises:
            TraceError: if it cannot be written.
        """
        if not self._file:
            return None
        _write(self._file, self._trace.save)
        return summarize(self._trace, self._file)


def trace(config: TraceConfig, listener: Listener = ignore) -> TraceSummary:  # noqa: ARG001  # as all commands
    """Read a trace; draw its last step if a picture is asked for.

    Raises:
        ParseError: if the file is no trace.
        TraceError: if the picture cannot be written.
    """
    found = Trace.load(config.file)
    if config.svg:
        picture = draw(found)
        _write(config.svg, lambda path: Path(path).write_text(picture, encoding="utf-8"))
    return summarize(found, config.file)


def _write(path: str, write: Any) -> None:
    try:
        write(path)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}") from error
