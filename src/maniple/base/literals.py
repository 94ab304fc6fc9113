"""Numbers and quoted strings in text forms: patterns that admit nothing that would not be read, and the readers."""

from __future__ import annotations

import json
from typing import Final

from maniple.base.errors import ParseError

NUMBER: Final = r"[0-9]{1,30}"
"""Pattern of a whole number, longer than any count of bytes or operations; Python refuses to read ones of thousands of digits."""

QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
"""Pattern of a quoted string."""


def quote(text: str) -> str:
    r"""Return `text` as a quoted string: one line of ASCII, whatever it holds.

    >>> print(quote('a "b"\n'))
    "a \"b\"\n"
    """
    return json.dumps(text)


def unquote(text: str) -> str:
    r"""Return what a quoted string says.

    >>> unquote(quote("a b\n")) == "a b\n"
    True

    Raises:
        ParseError: if `text` is no quoted string.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"cannot read the quoted string {text}") from error
    if not isinstance(found, str):
        raise ParseError(f"{text} is no quoted string")
    return found
