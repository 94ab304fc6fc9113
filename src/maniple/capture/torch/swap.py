"""Puts traced tensors in the place of the user's while a step is traced, and everything back afterwards.

Anything else that the step changes on the objects it is given (attributes, hooks, numbers of parameter groups) is found by comparing
before and after: the program would do it once, at capture, so the step is refused.
"""

from __future__ import annotations

import collections
import copy
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from maniple.base.errors import CaptureError
from maniple.capture.torch.hyperparameters import Number
from maniple.capture.torch.state import Bound

_CONTAINERS: Final = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)
_OWN: Final = {
    nn.Module: frozenset({"_parameters", "_buffers", "_flat_weights"}),
    Optimizer: frozenset({"state", "param_groups", "_opt_called", "_step_count"}),
    GradScaler: frozenset({"_per_optimizer_states"}),
}
_MOVE: Final = "keep counters, schedules and caches outside of the step, or register tensors as buffers"


class Attributes:
    """A copy of the attributes of one object."""

    def __init__(self, label: str, owner: Any) -> None:
        """Copy the attributes of `owner`, which messages call `label`."""
        self.label, self.owner = label, owner
        self.before = dict(vars(owner))
        self.items = {key: copy.copy(value) for key, value in self.before.items() if type(value) in _CONTAINERS}
        self.ignored = frozenset().union(*(keys for kind, keys in _OWN.items() if isinstance(owner, kind)))

    def changed(self) -> list[str]:
        """Return the names of the attributes that differ now."""
        now = vars(self.owner)
        names = [key for key in (*self.before, *now) if key not in self.ignored and not (key == "training" and self.has_new_mode())]
        return [f"{self.label}.{key}" for key in dict.fromkeys(names) if not self._is_same(key, now)]

    def has_new_mode(self) -> bool:
        """Return whether this is a module that was put in train or eval mode."""
        now = vars(self.owner).get("training")
        return isinstance(self.owner, nn.Module) and isinstance(now, bool) and now is not self.before["training"]

    def _is_same(self, key: str, now: Mapping[str, object]) -> bool:
        if key not in now or key not in self.before:
            return False
        if not _equal(self.before[key], now[key]):
            return False
        return key not in self.items or _equal_items(self.items[key], now[key])

    def restore(self) -> None:
        """Put all attributes back."""
        now = vars(self.owner)
        for key in [key for key in now if key not in self.before]:
            del now[key]
        now.update(self.before)
        for key, items in self.items.items():
            if key in self.ignored:
                continue
            holder: Any = self.before[key]
            if not _equal_items(items, holder):
                holder.clear()
                holder.extend(items) if isinstance(holder, list | collections.deque) else holder.update(items)


def _equal(one: object, other: object) -> bool:
    if one is other:
        return True
    plain = (bool, int, float, str, type(None), tuple)
    return type(one) is type(other) and isinstance(one, plain) and not _has_tensor(one) and one == other


def _has_tensor(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, Tensor) or _has_tensor(item) for item in value)


def _equal_items(one: Any, other: Any) -> bool:  # any container
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(key in other and _equal(value, other[key]) for key, value in one.items())
    if isinstance(one, set):
        return bool(one == other)
    return all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _watched(bound: Bound) -> list[Attributes]:
    labels = [*bound.all_modules(), *bound.optimizers, *bound.others]
    found = [Attributes(label or "model", item) for label, item in labels if hasattr(item, "__dict__")]
    for entry in found:
        entry.ignored |= {key for key, value in entry.before.items() if isinstance(value, Tensor)}
        if isinstance(entry.owner, nn.Module) and entry.label != "model":
            entry.label = f"model.{entry.label}" if "" in dict(bound.modules) else entry.label
    return found


@dataclass(frozen=True, slots=True)
class Mode:
    """Train or eval mode, as a step leaves it in a module."""

    module: nn.Module
    training: bool

    def set(self) -> None:
        """Put the module in the mode."""
        self.module.training = self.training


@contextmanager
def unchanged(bound: Bound, modes: list[Mode]) -> Iterator[None]:
    """Restore Python state, random state and the default dtype; refuse a step that changed any, but for train and eval mode.

    Args:
        bound: the user's objects.
        modes: what the step sets to another mode than before is added to it.

    Raises:
        CaptureError: if an attribute of a module, optimizer or other argument is another than before, or random numbers were drawn
            from Python's or numpy's generators.
    """
    watched = _watched(bound)
    torch_state, python_state, default = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
        modes += [Mode(entry.owner, entry.owner.training) for entry in watched if entry.has_new_mode()]
        changed = [name for entry in watched for name in entry.changed()]
        if changed:
            raise CaptureError(f"the step changes {', '.join(f'`{name}`' for name in changed[:5])}", hint=_MOVE)
        if random.getstate() != python_state or (numpy and repr(numpy.random.get_state()) != repr(numpy_state)):
            raise CaptureError("the step draws random numbers from Python's or numpy's generator", hint="draw them outside, or with torch")
    finally:
        for entry in watched:
            entry.restore()
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        torch.set_default_dtype(default)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def swapped_modules(bound: Bound, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let modules hold `tensors` (by name) instead of their own.

    Raises:
        CaptureError: if the step adds, removes or replaces a parameter, or adds or removes a buffer.
    """
    by_id = {id(parameter): tensors[name] for name, parameter in bound.parameters.items()}
    dicts: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for path, module in bound.all_modules():
        dicts += [(path, module._parameters, dict(module._parameters)), (path, module._buffers, dict(module._buffers))]
        flat = vars(module).get("_flat_weights")  # recurrent modules keep a list of their weights
        if flat is not None:
            dicts.append((path, vars(module), dict(vars(module))))
            vars(module)["_flat_weights"] = [by_id.get(id(weight), weight) for weight in flat]
    attributes = [(holder, key, holder[key]) for slot in bound.buffers.values() for holder, key in slot.places]
    try:
        for _, module in bound.all_modules():
            for key, parameter in module._parameters.items():
                module._parameters[key] = parameter if parameter is None else by_id[id(parameter)]  # type: ignore[assignment]
        for name, slot in bound.buffers.items():
            slot.set(tensors[name])
        yield
        for path, module in bound.all_modules():
            _check_registered(path, module, by_id, dicts)
    finally:
        for _, holder, before in dicts:
            holder.clear()
            holder.update(before)
        for holder, key, value in attributes:
            holder[key] = value


def _check_registered(
    path: str, module: nn.Module, by_id: Mapping[int, Tensor], dicts: list[tuple[str, dict[str, Any], dict[str, Any]]]
) -> None:
    before = {id(holder): old for _, holder, old in dicts}
    for holder in (module._parameters, module._buffers):
        old: dict[str, Any] = before[id(holder)]
        for key in (*old, *holder):
            was, now = old.get(key), holder.get(key)
            placed = by_id.get(id(was)) if holder is module._parameters else now
            if (was is None) != (now is None) or (was is not None and now is not placed):
                raise CaptureError(f"the step replaces or registers `{path + '.' if path else ''}{key}`", hint=_MOVE)


@contextmanager
def swapped_optimizers(bound: Bound, tensors: Mapping[str, Tensor], numbers: Mapping[Number, torch.SymFloat]) -> Iterator[None]:
    """Let optimizers hold traced parameters, state and numbers, and take their plain loops (no foreach, no fused kernels).

    Raises:
        CaptureError: if the step changes an entry of a parameter group.
    """
    names = bound.parameter_names()
    before = [(optimizer, optimizer.param_groups, optimizer.state) for _, optimizer in bound.optimizers]
    slots = {(id(slot.parameter), slot.key, id(slot.optimizer)): slot.name for slot in bound.optimizer_slots()}
    placed = []
    try:
        for prefix, optimizer in bound.optimizers:
            groups = [_traced_group(group, names, tensors) for group in optimizer.param_groups]
            for number, symbol in numbers.items():
                if number.optimizer is optimizer:
                    _place(groups[number.group], number, symbol)
            placed.append((prefix, optimizer, [dict(group) for group in groups]))
            state: collections.defaultdict[Any, Any] = collections.defaultdict(dict)
            for parameter, entries in optimizer.state.items():
                state[tensors[names[id(parameter)]]] = {
                    key: tensors[slots[id(parameter), key, id(optimizer)]] if isinstance(value, Tensor) else value
                    for key, value in entries.items()
                }
            optimizer.param_groups, optimizer.state = groups, state
        yield
        for prefix, optimizer, groups in placed:
            _check_groups(prefix, optimizer, groups)
    finally:
        for optimizer, groups, state in before:
            optimizer.param_groups, optimizer.state = groups, state


def _traced_group(group: Mapping[str, Any], names: Mapping[int, str], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    traced = {**group, "params": [tensors[names[id(parameter)]] for parameter in group["params"]]}
    return {**traced, **{key: False for key in ("foreach", "fused", "capturable") if key in traced}}


def _place(group: dict[str, Any], number: Number, symbol: torch.SymFloat) -> None:
    if number.at is None:
        group[number.key] = _like(group[number.key], symbol)
    else:
        entry = list(group[number.key])
        entry[number.at] = _like(entry[number.at], symbol)
        group[number.key] = tuple(entry)


def _like(value: object, symbol: torch.SymFloat) -> object:
    """Return `symbol` as a tensor if `value` is one: its dtype is the precision that the optimizer computes in."""
    if not isinstance(value, Tensor):
        return symbol
    return torch.scalar_tensor(symbol, dtype=value.dtype).reshape(value.shape)  # type: ignore[arg-type]  # takes symbols too


def _check_groups(prefix: str, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    for number, (old, new) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        for key in dict.fromkeys((*old, *new)):
            if key not in old or key not in new or not (old[key] is new[key] or _equal(old[key], new[key])):
                raise CaptureError(
                    f"the step changes `{prefix}.param_groups[{number}][{key!r}]`",
                    hint="call scheduler.step() and set hyperparameters outside of the step",
                )
    if len(groups) != len(optimizer.param_groups):
        raise CaptureError(f"the step adds or removes parameter groups of `{prefix}`", hint="do so outside of the step")
