"""Settings of all tests: one thread per process, repeatable examples."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("hours", deadline=None, max_examples=600_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def allocations() -> Any:
    """What counts the bytes that PyTorch allocates in this process, from now on."""
    from allocations import compiler, counting

    if compiler() is None:
        pytest.skip("there is no C++ compiler to build the counting allocator with")
    return counting()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Keep PyTorch, where a test has imported it, to one thread and from writing its trace log.

    pytest puts a handler on every logger that does not propagate, and torch formats a stack for each event of a traced log: a capture
    takes twice as long.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
        logging.getLogger("torch.__trace").propagate = True
