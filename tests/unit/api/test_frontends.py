"""Engines by name: which one is the default."""

from __future__ import annotations

import subprocess
import sys

import pytest

from maniple.api import frontends
from maniple.engine.realm import RealmEngine
from maniple.engine.reference import ReferenceEngine


def test_realm_is_the_default_where_legate_is_installed() -> None:
    assert frontends.engine_or_default(None) == "realm"
    assert isinstance(frontends.make_engine("realm", "torch"), RealmEngine)


def test_reference_is_the_default_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontends, "find_spec", lambda name: None)
    assert frontends.engine_or_default(None) == "reference"
    assert isinstance(frontends.make_engine("reference", "torch"), ReferenceEngine)


@pytest.mark.parametrize("name", ["reference", "realm", "realm:3", "anything"])
def test_a_name_is_kept(name: str) -> None:
    assert frontends.engine_or_default(name) == name


def test_the_choice_does_not_import_legate() -> None:
    code = "import sys; from maniple.api.frontends import engine_or_default; engine_or_default(None); print('legate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"
