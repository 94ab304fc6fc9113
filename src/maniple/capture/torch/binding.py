"""Feeds a captured program from the user's live objects and puts what it computes back."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from maniple.base.location import Location
from maniple.capture.torch.captured import Captured
from maniple.capture.torch.checks import failed
from maniple.capture.torch.emit import TORCH_DTYPES

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""Odd and without pattern: spreads seeds over 64 bits (Steele, Lea, Flood 2014, SplitMix)."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A captured step with its ties to the user's objects."""

    captured: Captured

    def inputs(self, args: Sequence[object], step: int) -> dict[str, Tensor]:
        """Return a whole tensor for every input of the program.

        Args:
            args: the step's arguments, of the structure that was captured.
            step: number of the step, which random numbers depend on.

        Raises:
            CaptureError: if state that the step changes shares memory with anything else that it looks at.
        """
        found = {**self.captured.state(), **self.captured.batch.tensors(args)}
        for name, number in self.captured.hyperparameters().items():
            found[name] = torch.tensor(number, dtype=torch.float64)
        for item in self.captured.program.inputs:
            if item.kind == "rng":
                found[item.name] = torch.tensor(step_seed(torch.initial_seed(), step))
        inputs = {item.name: found[item.name].detach() for item in self.captured.program.inputs}
        self.captured.apart.check(inputs)
        return inputs

    def commit(self, outputs: Mapping[str, Tensor]) -> None:
        """Copy new state into the user's tensors; state that is new is put where the optimizer would have put it."""
        left_out = {*self.captured.unchanged, *self.captured.left_out(outputs)}
        with torch.no_grad():
            for name, slot in self.captured.slots.items():
                if name not in outputs or name in left_out:
                    continue
                live = slot.get()
                if live is None:
                    slot.set(outputs[name])
                elif live.data_ptr() != outputs[name].data_ptr():  # not updated in place
                    live.detach().copy_(outputs[name])
        self.captured.note_step()

    def versions(self, names: Collection[str]) -> StateVersions:
        """Return what tells whether state is written to or replaced from now on.

        Args:
            names: of state, as inputs of the program.
        """
        found = {name: tensor for name, tensor in self.captured.state().items() if name in names}
        return StateVersions({name: (weakref.ref(tensor), tensor._version) for name, tensor in found.items()})  # public in all but name

    def failed_check(self, outputs: Mapping[str, Tensor]) -> Location | None:
        """Return where a check of the user's stands that failed in a step; None if all passed."""
        return failed(self.captured.checks, outputs)

    def result(self, outputs: Mapping[str, Tensor]) -> object:
        """Return what the user's step returns."""
        return self.captured.result.rebuild(outputs)

    def holds(self) -> bool:
        """Return whether today's hyperparameters allow the program, whose control flow may have depended on them."""
        return not self.captured.broken_guard()

    @property
    def creates_state(self) -> bool:
        """Whether this is a first step, which makes optimizer state."""
        return bool(self.captured.created)

    def create_fake_state(self) -> None:
        """Put fake tensors where the step would put the state that it creates; for models made of fake tensors."""
        mode = next(t.fake_mode for t in self.captured.state().values() if isinstance(t, FakeTensor))
        types = {item.name: item.value.type for item in self.captured.program.outputs}
        with mode:
            for name in self.captured.created:
                kind = types[name]
                self.captured.slots[name].set(torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype]))


@dataclass(frozen=True, slots=True)
class StateVersions:
    """State tensors as they were at one time."""

    of: Mapping[str, tuple[weakref.ref[Tensor], int]]

    def unchanged(self, now: StateVersions) -> list[str]:
        """Return the names of those that have not been written to or replaced since."""
        return [name for name, found in now.of.items() if name in self.of and _same(found, self.of[name])]


def _same(one: tuple[weakref.ref[Tensor], int], other: tuple[weakref.ref[Tensor], int]) -> bool:
    return one[1] == other[1] and one[0]() is other[0]()


def step_seed(seed: int, step: int) -> int:
    """Return the seed of one step's random numbers, as a signed 64-bit integer.

    >>> step_seed(0, 0), step_seed(0, 1) != step_seed(1, 0)
    (0, True)
    """
    mixed = (seed * _GOLDEN + step * 0xBF58476D1CE4E5B9) % 2**64
    return mixed - 2**64 if mixed >= 2**63 else mixed
