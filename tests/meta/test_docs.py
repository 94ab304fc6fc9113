"""The documentation holds: links lead somewhere, and what is marked as runnable or as quoted is run or looked up.

Fenced blocks open with

- ```python run: run; the blocks of one page share their names, in order;
- ```python from PATH: lines of that file; `...` stands for lines left out;
- ```text maniple ARGUMENTS: what that command prints, on standard output or error; `...` stands for what is left out;
- ```toml strategy: read as a strategy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maniple.cli.app import app
from maniple.mesh import Strategy

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDE = {"COLUMNS": "250"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, opening: str) -> list[str]:
    return re.findall(rf"^```{opening}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def marked(path: Path, opening: str) -> list[tuple[str, str]]:
    """Return for each block that begins with `opening` the rest of that line, and its text."""
    return re.findall(rf"^```{opening} ([^\n]+)\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def plain(text: str) -> list[str]:
    """Return the lines of `text` without what depends on the place and the terminal: the checkout's path, borders, widths."""
    lines = text.replace(f"{ROOT}/", "").replace("\\|", "|").splitlines()
    return [squeezed for line in lines if (squeezed := " ".join(re.sub("[━─┃│┏┓┡┩└┘┳╇┴]", " ", line).split()))]


def not_found(quoted: Iterable[str], text: Iterable[str]) -> str:
    """Return the first line of `quoted` that `text` does not hold after those before it; lines that follow each other must do so.

    After a line `...` any lines may come between; within a line it stands for anything.
    """
    lines, at, is_free = list(text), 0, True
    for line in quoted:
        if line == "...":
            is_free = True
            continue
        pattern = re.compile(re.escape(line).replace(r"\.\.\.", ".*"))
        found = [n for n in range(at, len(lines)) if pattern.fullmatch(lines[n])]
        if not found or (found[0] != at and not is_free):
            return line
        at, is_free = found[0] + 1, False
    return ""


EXCERPTS = [(page, number) for page in PAGES for number in range(len(marked(page, "text maniple")))]
QUOTES = [(page, number) for page in PAGES for number in range(len(marked(page, "python from")))]


def ids(cases: list[tuple[Path, int]]) -> list[str]:
    return [f"{name_of(page)}-{number}" for page, number in cases]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", [p for p in PAGES if p.parent != ROOT], ids=name_of)
def test_every_page_is_reachable(path: Path) -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index.read_text(encoding="utf-8"))}
    assert path == index or path in linked


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python run")], ids=name_of)
def test_snippets_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for block in blocks(path, "python run"):
        # from a file, so that errors name a line of the user's
        file = tmp_path / "snippet.py"
        file.write_text(block, encoding="utf-8")
        exec(compile(block, str(file), "exec"), names)


@pytest.mark.parametrize(("path", "number"), EXCERPTS, ids=ids(EXCERPTS))
def test_excerpts_are_what_commands_print(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, text = marked(path, "text maniple")[number]
    result = CliRunner().invoke(app, shlex.split(command), env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert not not_found(plain(text), plain(result.output)), result.output


@pytest.mark.parametrize(("path", "number"), QUOTES, ids=ids(QUOTES))
def test_quotes_are_in_the_source(path: Path, number: int) -> None:
    file, text = marked(path, "python from")[number]
    assert not not_found(plain(text), plain((ROOT / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "toml strategy")], ids=name_of)
def test_strategies_parse(path: Path) -> None:
    for block in blocks(path, "toml strategy"):
        strategy = Strategy.from_toml(block)
        assert Strategy.from_toml(strategy.to_toml()) == strategy


def test_a_quote_that_differs_is_found() -> None:
    assert not not_found(["a", "...", "d"], ["a", "b", "c", "d"])
    assert not_found(["a", "d"], ["a", "b", "c", "d"]) == "d"
    assert not_found(["...", "e"], ["a", "b"]) == "e"
    assert not not_found(["x = ... + z"], ["x = y + z"])
