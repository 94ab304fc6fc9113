"""Lets the tests of this folder import the module beside them; capture once what several tests need."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sharing import share_captures, share_oracles

from maniple.api import explain as _explain  # noqa: F401  # loads the module that is patched
from maniple.api.compile import Plan
from maniple.capture.torch.captured import Captured
from maniple.commands import ExplainConfig
from maniple.ir.program import Program
from maniple.mesh import Strategy
from maniple.verify.compare import Tensor


@pytest.fixture(scope="session")
def traces() -> dict[Hashable, Captured]:
    """What `captured_once` has traced."""
    return {}


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch, traces: dict[Hashable, Captured]) -> None:
    """Trace a step once for all strategies, which have no part in it; everything after the trace is done anew for each."""
    share_captures(monkeypatch, traces)


@pytest.fixture(scope="session")
def oracles() -> dict[Hashable, Mapping[str, Tensor]]:
    """What `eager_once` has run."""
    return {}


@pytest.fixture
def eager_once(monkeypatch: pytest.MonkeyPatch, oracles: dict[Hashable, Mapping[str, Tensor]]) -> None:
    """Run PyTorch's own steps once for all strategies and engines, which have no part in them."""
    share_oracles(monkeypatch, oracles)


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile and verify a captured program once for each strategy and way of sharing memory; engines of one test share the plans."""
    module = sys.modules["maniple.api.step"]
    compile_program, plans = module.compile_program, list[tuple[Program, Strategy, tuple[str, ...], bool, Plan]]()

    def memoized(program: Program, strategy: Strategy, shared: tuple[str, ...] = (), *, idle: bool = False) -> Plan:
        known = next((plan for other, *rest, plan in plans if other is program and rest == [strategy, shared, idle]), None)
        if known is None:
            known = compile_program(program, strategy, shared, idle=idle)
            plans.append((program, strategy, shared, idle, known))
        return known

    problems, found = Plan.problems, dict[int, tuple[str, ...]]()

    def checked(self: Plan) -> tuple[str, ...]:
        if id(self) not in found:
            found[id(self)] = problems(self)
        return found[id(self)]

    monkeypatch.setattr(module, "compile_program", memoized)
    monkeypatch.setattr(Plan, "problems", checked)


@pytest.fixture(scope="session")
def programs() -> dict[Hashable, Program]:
    """What `explained_once` has captured."""
    return {}


@pytest.fixture
def explained_once(monkeypatch: pytest.MonkeyPatch, programs: dict[Hashable, Program]) -> None:
    """Let `explain` capture each model once for all strategies and stages."""
    module = sys.modules["maniple.api.explain"]
    capture = module.steady_program

    def memoized(config: ExplainConfig) -> Program:
        if config.workload not in programs:
            programs[config.workload] = capture(config)
        return programs[config.workload]

    monkeypatch.setattr(module, "steady_program", memoized)
