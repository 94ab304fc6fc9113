"""Rules about the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "maniple"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "legate", "transformers"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "core", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_files() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sizes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES, "split the file"
    for function in functions(ast.parse(text)):
        first = function.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
        lines = (function.end_lineno or 0) - function.lineno + 1 - docstring
        assert lines <= MAX_FUNCTION_LINES, f"{function.name} has {lines} lines without its docstring"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_global_statement_and_no_vague_name(path: Path) -> None:
    assert not VAGUE & {part.removesuffix(".py") for part in path.relative_to(SOURCE).parts}
    assert not any(isinstance(node, ast.Global) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh Python holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_import_needs_no_framework() -> None:
    found = modules_after("import maniple")
    assert "maniple" in found
    assert not found & (FRAMEWORKS | {"numpy", "highspy", "rich", "typer"}), "import lazily: import maniple takes under 0.3 s"


def test_vocabulary_and_command_line_need_no_framework() -> None:
    found = modules_after("import maniple.cli.app, maniple.commands, maniple.mesh, maniple.ir, maniple.ops, maniple.taskgraph")
    assert not found & FRAMEWORKS
