"""What a captured step depends on besides the numbers in its tensors: a change means capturing again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from maniple.capture.torch.batch import batch_structure
from maniple.capture.torch.hyperparameters import LIFTED
from maniple.capture.torch.others import INITIAL
from maniple.capture.torch.plain import ANY, Kept, Same, keep, keep_fields, spelled
from maniple.capture.torch.state import Bound, find_bound, state_name
from maniple.capture.torch.surroundings import surroundings

Signature = tuple[tuple[str, Hashable], ...]
"""Pairs of what it is, in the user's words, and its value."""

_IDENTITY: Final = "the objects that hold parameters and state"
"""A captured program reads and writes these very objects, so that others in their place need a capture of their own."""

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER_HOOKS: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_PARAMETER_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module())) - {"training"}


def signature(step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object]) -> Signature:
    """Return all that a recompilation of the step depends on.

    Structure, shapes, dtypes and Python values of the batch; of parameters and buffers shapes, dtypes and requires_grad; train or
    eval mode, hooks and plain attributes of every module (numbers, texts, functions, and containers and records of them); every
    entry of the parameter groups but lr, betas and momentum; which optimizer state exists; plain attributes of other arguments;
    plain values and tensors that the step's code takes from around it, see `surroundings`; the default dtype and autocast.

    Args:
        step_fn: the user's step.
        bound: its leading arguments: modules, optimizers and whatever else.
        args: the batch.

    Raises:
        CaptureError: if the batch holds something that is neither tensor nor plain value.
    """
    found = find_bound(step_fn, bound)
    watched = {id(item) for _, item in (*found.all_modules(), *found.optimizers, *found.others)}
    around = surroundings(step_fn, watched, [type(module) for _, module in found.all_modules()])
    parts = _batch(args), _state(found), _modules(found), _groups(found), _others(found), around, _modes()
    return tuple(item for part in parts for item in part)


def _kind(tensor: Tensor) -> Hashable:
    return tensor.dtype, tensor.shape


def _batch(args: Sequence[object]) -> Iterator[tuple[str, Hashable]]:
    structure, leaves = batch_structure(args)
    yield "structure of the batch", str(structure.spec)
    for name, leaf in zip(structure.names, leaves, strict=True):
        yield name, _kind(leaf) if isinstance(leaf, Tensor) else keep(leaf)


def _state(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    owners = (*bound.parameters.values(), *(item for _, item in (*bound.all_modules(), *bound.optimizers)))
    yield _IDENTITY, tuple(map(id, owners))
    for name, parameter in bound.parameters.items():
        yield name, (parameter.dtype, parameter.shape, *(("requires_grad",) if parameter.requires_grad else ()))
        for key in _PARAMETER_HOOKS:
            hooks = getattr(parameter, key)
            if hooks:
                yield f"{name}.{key}", tuple(hooks)
    for name, slot in bound.buffers.items():
        yield name, _kind(slot.get())
    names = bound.parameter_names()
    entries = (
        (state_name(prefix, key, names[id(parameter)]), _kind(value))
        for prefix, optimizer in bound.optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    )
    yield from sorted(entries, key=lambda entry: entry[0])  # loading a state changes its order


def _modules(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    records: dict[int, Kept] = {}
    for path, module in bound.all_modules():
        attributes = vars(module)
        own = [(key, value) for key, value in attributes.items() if key not in _OF_EVERY_MODULE]
        plain: list[tuple[str, Hashable]] = [(key, kept) for key, value in own if (kept := keep(value, records, names=ANY)) is not None]
        plain += [(key, tuple(attributes[key])) for key in _HOOKS if attributes[key]]
        yield f"module {path or 'model'}", (Same(type(module)), *plain)


def _groups(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    names = bound.parameter_names()
    for prefix, optimizer in bound.optimizers:
        yield prefix, Same(type(optimizer))
        for key in _OPTIMIZER_HOOKS:
            yield f"{prefix}.{key}", tuple(vars(optimizer).get(key, ()))
        for number, group in enumerate(optimizer.param_groups):
            for key, value in sorted(group.items()):
                label = f"{prefix}.param_groups[{number}][{key!r}]"
                if key == "params":
                    yield label, tuple(names[id(parameter)] for parameter in value)
                elif isinstance(value, Tensor):
                    yield label, _kind(value)
                elif key not in LIFTED or value is None or isinstance(value, str | bool):
                    yield label, keep(value) or repr(value)


def _others(bound: Bound) -> Iterator[tuple[str, Hashable]]:
    for label, value in bound.others:
        kept = keep(value)
        yield label, kept or Same(value)
        if kept is None and not isinstance(value, LRScheduler):  # of a scheduler the step may ask nothing
            ignored = INITIAL if isinstance(value, GradScaler) else ()
            yield from ((f"{label}.{name}", item) for name, item in keep_fields(value) if name not in ignored)


def _modes() -> Iterator[tuple[str, Hashable]]:
    yield "default dtype", str(torch.get_default_dtype())
    yield "autocast", torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


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
                return f"`{path}.{name}` was {_spelled(old.get(name))}, is {_spelled(new.get(name))}"
    return f"{key} are others" if key == _IDENTITY else f"`{key}` was {_spelled(was)}, is {_spelled(now)}"


def _spelled(value: Hashable) -> str:
    if isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], torch.dtype) and isinstance(value[1], torch.Size):
        dtype, shape, *words = value
        return " ".join([f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]", *map(str, words)])
    return spelled(value)
