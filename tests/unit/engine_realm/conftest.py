"""Skips everything where legate is missing; lets these tests import the random programs of the reference engine's tests."""

import sys
from pathlib import Path

import pytest
import torch

from maniple.base.errors import EngineError
from maniple.engine.realm.library import realm_path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _realm() -> None:
    try:
        realm_path()
    except EngineError as error:
        pytest.skip(str(error))
