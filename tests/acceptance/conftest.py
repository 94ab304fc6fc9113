"""Lets the tests of this folder import the module beside them; capture once what several tests need."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from maniple.api import check as _check  # noqa: F401  # loads the modules that the fixtures patch
from maniple.api import explain as _explain  # noqa: F401
from maniple.api.compile import Plan
from maniple.capture import torch as torch_capture
from maniple.capture.torch.captured import Captured
from maniple.capture.torch.guards import _IDENTITY, signature
from maniple.capture.torch.hyperparameters import find_numbers
from maniple.capture.torch.state import OptimizerSlot, Slot, find_bound
from maniple.commands import ExplainConfig
from maniple.ir.program import Program
from maniple.mesh import Strategy
from maniple.verify.compare import Tensor


def rebound(known: Captured, step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object]) -> Captured:
    """Return a captured step with its ties to other objects of the same names, shapes and values."""
    found = find_bound(step_fn, bound)
    ((prefix, optimizer),) = found.optimizers
    slots: dict[str, Slot] = dict(known.slots)
    slots.update((slot.name, slot) for slot in found.slots())
    for name in known.created:
        old = known.slots[name]
        assert isinstance(old, OptimizerSlot)
        parameter = found.parameters[name.removeprefix(f"{prefix}.{old.key}.")]
        slots[name] = OptimizerSlot(name, optimizer, parameter, old.key)
    return dataclasses.replace(known, slots=slots, numbers=tuple(find_numbers(found)), signature=signature(step_fn, bound, args))


@pytest.fixture(scope="session")
def traces() -> dict[Hashable, Captured]:
    """What `captured_once` has traced."""
    return {}


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch, traces: dict[Hashable, Captured]) -> None:
    """Trace a step once for all strategies, which have no part in it; everything after the trace is done anew for each."""
    capture = torch_capture.capture

    def memoized(step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object], **options: Any) -> Captured:
        key = (step_fn, tuple(options.items()), tuple(item for item in signature(step_fn, bound, args) if item[0] != _IDENTITY))
        if key in traces:
            return rebound(traces[key], step_fn, bound, args)
        traces[key] = capture(step_fn, bound, args, **options)
        return traces[key]

    monkeypatch.setattr(torch_capture, "capture", memoized)


@pytest.fixture(scope="session")
def oracles() -> dict[Hashable, Mapping[str, Tensor]]:
    """What `eager_once` has run."""
    return {}


@pytest.fixture
def eager_once(monkeypatch: pytest.MonkeyPatch, oracles: dict[Hashable, Mapping[str, Tensor]]) -> None:
    """Run PyTorch's own steps once for all strategies and engines, which have no part in them."""
    runs = sys.modules["maniple.api.check"]._Runs
    oracle = runs.oracle

    def memoized(self: Any, name: str, subject: Any, *, draws: bool) -> Mapping[str, Tensor]:
        if draws:
            found: Mapping[str, Tensor] = oracle(self, name, subject, draws=True)
            return found
        key = (self.config.workload, self.config.steps, name)
        if key not in oracles:
            oracles[key] = oracle(self, name, subject, draws=False)
        return oracles[key]

    monkeypatch.setattr(runs, "oracle", memoized)


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile and verify a captured program once for each strategy and way of sharing memory; engines of one test share the plans."""
    module = sys.modules["maniple.api.step"]
    compile_program, plans = module.compile_program, list[tuple[Program, Strategy, tuple[str, ...], Plan]]()

    def memoized(program: Program, strategy: Strategy, shared: tuple[str, ...] = ()) -> Plan:
        known = next((plan for other, *rest, plan in plans if other is program and rest == [strategy, shared]), None)
        if known is None:
            known = compile_program(program, strategy, shared)
            plans.append((program, strategy, shared, known))
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
