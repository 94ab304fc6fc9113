"""What a captured step depends on besides the numbers in its tensors: a change means capturing again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from maniple.capture.torch.batch import batch_structure
from maniple.capture.torch.hyperparameters import LIFTED
from maniple.capture.torch.state import Bound, Slot, find_bound

Signature = tuple[tuple[str, Hashable], ...]
"""Pairs of what it is, in the user's words, and its value."""

_PLAIN: Final = (bool, int, float, str)
_IDENTITY: Final = "the objects that hold parameters and state"
"""A captured program reads and writes these very objects, so that others in their place need a capture of their own."""


def signature(step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object]) -> Signature:
    """Return all that a recompilation of the step depends on.

    Structure, shapes, dtypes and Python values of the batch; of parameters and buffers shapes, dtypes and requires_grad; train or
    eval mode and plain attributes of every module; every entry of the parameter groups but lr, betas and momentum; which optimizer
    state exists; the default dtype and autocast.

    Args:
        step_fn: the user's step.
        bound: its leading arguments: modules, optimizers and whatever else.
        args: the batch.

    Raises:
        CaptureError: if the batch holds something that is neither tensor nor plain value.
    """
    found = find_bound(step_fn, bound)
    return (*_batch(args), *_state(found), *_modules(found), *_groups(found), *_others(found), *_modes())


def _type_text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"


def _batch(args: Sequence[object]) -> Iterator[tuple[str, Hashable]]:
    structure, leaves = batch_structure(args)
    yield "structure of the batch", str(structure.spec)
    for name, leaf in zip(structure.names, leaves, strict=True):
        yield name, _type_text(leaf) if isinstance(leaf, Tensor) else _hashable(leaf)


def _state(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    owners = (*bound.parameters.values(), *(item for _, item in (*bound.all_modules(), *bound.optimizers)))
    yield _IDENTITY, tuple(map(id, owners))
    for name, parameter in bound.parameters.items():
        yield name, f"{_type_text(parameter)}{' requires_grad' if parameter.requires_grad else ''}"
    slots: list[Slot] = [*bound.buffers.values(), *bound.optimizer_slots()]
    for slot in slots:
        tensor = slot.get()
        assert tensor is not None, "slots of what exists"
        yield slot.name, _type_text(tensor)


def _modules(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    for path, module in bound.all_modules():
        plain = tuple((key, value) for key, value in vars(module).items() if type(value) in _PLAIN)
        hooks = len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks)
        yield f"module {path or 'model'}", (type(module).__qualname__, *plain, ("num_hooks", hooks))


def _groups(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    names = bound.parameter_names()
    for prefix, optimizer in bound.optimizers:
        yield prefix, type(optimizer).__qualname__
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                label = f"{prefix}.param_groups[{number}][{key!r}]"
                if key == "params":
                    yield label, tuple(names[id(parameter)] for parameter in value)
                elif key not in LIFTED or value is None or isinstance(value, str | bool):
                    yield label, _hashable(value)


def _others(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    for label, value in bound.others:
        yield label, value if isinstance(value, (*_PLAIN, type(None))) else type(value).__qualname__


def _modes() -> Iterator[tuple[str, Hashable]]:
    yield "default dtype", str(torch.get_default_dtype())
    yield "autocast", torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _hashable(value: object) -> Hashable:
    if isinstance(value, Tensor):
        return f"tensor {_type_text(value)}"
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def describe_change(old: Signature, new: Signature) -> str:
    """Return in words how two signatures differ, at most five differences; empty if they do not.

    >>> describe_change((("batch.x", "float32[8,4]"),), (("batch.x", "float32[6,4]"),))
    '`batch.x` was float32[8,4], is float32[6,4]'
    """
    before, after = dict(old), dict(new)
    found = []
    for key in dict.fromkeys((*before, *after)):
        if key not in after:
            found.append(f"`{key}` is gone")
        elif key not in before:
            found.append(f"`{key}` is new")
        elif before[key] != after[key]:
            found.append(_describe(key, before[key], after[key]))
    more = f", and {len(found) - 5} more" if len(found) > 5 else ""  # the documented limit
    return ", ".join(found[:5]) + more


def _describe(key: str, was: Hashable, now: Hashable) -> str:
    if key.startswith("module ") and isinstance(was, tuple) and isinstance(now, tuple):
        path = key.removeprefix("module ")
        old, new = dict(was[1:]), dict(now[1:])
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                return f"`{path}.{name}` was {old.get(name)!r}, is {new.get(name)!r}"
    return f"{key} are others" if key == _IDENTITY else f"`{key}` was {was}, is {now}"
