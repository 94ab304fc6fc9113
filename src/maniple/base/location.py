"""Where in the user's code an op comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from maniple.base.errors import ParseError
from maniple.base.literals import NUMBER, QUOTED, quote, unquote

LOCATION: Final = rf'{QUOTED}:{NUMBER}(?: @(?:{QUOTED}|[^\s"]\S*))?'
"""Pattern of a location's text form."""

_PATTERN = re.compile(rf'({QUOTED}):({NUMBER})(?: @({QUOTED}|[^\s"]\S*))?')
_PLAIN = re.compile(r'[^\s"]\S*')


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code and the module path it ran under.

    Attributes:
        file: path of the source file, empty if unknown.
        line: 1-based line, 0 if unknown.
        scope: dotted module path, e.g. `blocks.3.attn`; empty outside of a module.
    """

    file: str = ""
    line: int = 0
    scope: str = ""

    def __str__(self) -> str:
        """Return the form that people click on: `file:line (scope)`."""
        return f"{self.file}:{self.line}" + (f" ({self.scope})" if self.scope else "")

    def text(self) -> str:
        r"""Return the form that `parse` reads.

        >>> Location("a.py", 3, "blocks.0").text()
        '"a.py":3 @blocks.0'
        """
        scope = self.scope if _PLAIN.fullmatch(self.scope) else quote(self.scope)
        return f"{quote(self.file)}:{self.line}" + (f" @{scope}" if self.scope else "")

    @staticmethod
    def parse(text: str) -> Location | None:
        """Return the location in `text`, None if there is none.

        >>> Location.parse('"a.py":3 @blocks.0')
        Location(file='a.py', line=3, scope='blocks.0')
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        scope = match[3] or ""
        try:
            return Location(unquote(match[1]), int(match[2]), unquote(scope) if scope.startswith('"') else scope)
        except ParseError:
            return None
