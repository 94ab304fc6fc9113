"""The documentation holds: links lead somewhere, and what is marked as runnable runs.

A fenced block that opens with ```python run is run; blocks of one page share their names, in order. ```toml strategy is read as a strategy.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from maniple.mesh import Strategy

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, opening: str) -> list[str]:
    return re.findall(rf"^```{opening}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python run")], ids=name_of)
def test_snippets_run(path: Path) -> None:
    names: dict[str, object] = {"__name__": "snippet"}
    for block in blocks(path, "python run"):
        exec(compile(block, str(path), "exec"), names)


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "toml strategy")], ids=name_of)
def test_strategies_parse(path: Path) -> None:
    for block in blocks(path, "toml strategy"):
        strategy = Strategy.from_toml(block)
        assert Strategy.from_toml(strategy.to_toml()) == strategy
