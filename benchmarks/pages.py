"""Tables in pages: each stands between two comments that name the command which made it, and is replaced by what was measured."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> str:
    """Return a table; columns whose heading is in the comma-separated `right` are aligned to the right.

    >>> print(markdown(("a", "b"), [("x", "1")], right="b"))
    | a | b |
    |---|---:|
    | x | 1 |
    """
    numbers = set(right.split(","))
    rule = "|" + "|".join("---:" if heading in numbers else "---" for heading in headings) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in (headings, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def replace_table(page: Path, name: str, table: str) -> None:
    """Put `table` between the comments `<!-- begin NAME ... -->` and `<!-- end NAME -->` of a page.

    Raises:
        ValueError: if the page has no such comments.
    """
    text = page.read_text(encoding="utf-8")
    pattern = rf"(<!-- begin {re.escape(name)}\b[^>]*-->\n).*?(<!-- end {re.escape(name)} -->)"
    replaced, count = re.subn(pattern, lambda found: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has {count} tables called {name!r}, not one")
    page.write_text(replaced, encoding="utf-8")


def machine() -> str:
    """Return what the figures were measured on, in one line."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, no GPU; "
        f"Python {platform.python_version()}, torch {version('torch')}, highspy {version('highspy')}"
    )
