"""The error tree.

Every error says what is wrong, where (the op and the user's line), what was expected and what to try.

```
ManipleError
 +- ParseError       a text form that does not parse
 +- ModelError       a model that there is not, or that cannot be made as asked
 +- StrategyError    a strategy that is malformed or does not fit the model
 +- CaptureError     a step that cannot be turned into a program
 +- VerifyError      a program or plan that breaks an invariant
 +- ShardingError    a layout that cannot be realised
 +- LoweringError    a sharded program that cannot become tasks
 +- EngineError      a failure while a step runs
 +- NonFiniteError   a step that makes numbers that are not finite, where one was asked to look for them
 +- TraceError       a trace that cannot be written
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.base.location import Location


class ManipleError(Exception):
    """Root of all errors raised on purpose.

    Args:
        what: one sentence that says what is wrong.
        where: the user's line, if it is known.
        hint: what to try.
    """

    def __init__(self, what: str, *, where: Location | None = None, hint: str = "") -> None:
        """Compose the message from its three parts."""
        self.what, self.where, self.hint = what, where, hint
        lines = [what]
        if where is not None and where.file:
            lines.append(f"  at {where}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))


class ParseError(ManipleError, ValueError):
    """A text form that does not parse."""

    def in_line(self, line: str) -> ParseError:
        """Return this error, naming the line that it is about unless it does so already."""
        return self if "line: " in self.what else ParseError(f"{self.what} in line: {line}", where=self.where, hint=self.hint)


class ModelError(ManipleError, ValueError):
    """A model that there is not, or that cannot be made as asked."""


class StrategyError(ManipleError, ValueError):
    """A strategy that is malformed or does not fit the model."""


class CaptureError(ManipleError, RuntimeError):
    """A training step that cannot be turned into a program."""


class VerifyError(ManipleError, ValueError):
    """A program or plan that breaks an invariant."""


class ShardingError(ManipleError, ValueError):
    """A layout that cannot be realised."""


class LoweringError(ManipleError, RuntimeError):
    """A sharded program that cannot become tasks."""


class NonFiniteError(ManipleError, ArithmeticError):
    """A step that makes numbers that are not finite, where one was asked to look for them."""


class EngineError(ManipleError, RuntimeError):
    """A failure while a step runs."""


class TraceError(ManipleError, RuntimeError):
    """A trace that cannot be written."""
