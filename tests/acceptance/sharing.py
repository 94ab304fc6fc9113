"""Work that checks of one model under many strategies have in common, done once: the trace, and PyTorch's own run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import pytest

from maniple.api import check as _check  # noqa: F401  # loads the module that is patched
from maniple.capture import torch as torch_capture
from maniple.capture.torch.captured import Captured
from maniple.capture.torch.guards import _IDENTITY, signature
from maniple.capture.torch.hyperparameters import find_numbers
from maniple.capture.torch.state import OptimizerSlot, Slot, find_bound
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


def share_captures(patch: pytest.MonkeyPatch, traces: dict[Hashable, Captured]) -> None:
    """Trace a step once for all strategies, which have no part in it; everything after the trace is done anew for each."""
    capture = torch_capture.capture

    def memoized(step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object], **options: Any) -> Captured:
        key = (step_fn, tuple(options.items()), tuple(item for item in signature(step_fn, bound, args) if item[0] != _IDENTITY))
        if key in traces:
            return rebound(traces[key], step_fn, bound, args)
        traces[key] = capture(step_fn, bound, args, **options)
        return traces[key]

    patch.setattr(torch_capture, "capture", memoized)


def share_oracles(patch: pytest.MonkeyPatch, oracles: dict[Hashable, Mapping[str, Tensor]]) -> None:
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

    patch.setattr(runs, "oracle", memoized)
