"""Tensors that the step's code holds and that it was not given: read as constants, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

from maniple.base.errors import CaptureError

_HINT = "make it a buffer or parameter of the module, or an argument of the step"


def check_outside(func: Any, args: Iterable[object], kwargs: Mapping[str, object]) -> None:
    """Raise if an op does more with a tensor from outside of the trace than to read it as a whole.

    Args:
        func: the ATen op.
        args: what it is called with. Tensors of the trace are functional tensors; others are from outside.
        kwargs: likewise, by name.

    Raises:
        CaptureError: if the op changes the tensor, makes a Python number of it, or would give it a gradient.
    """
    found = [item for item in _tensors((*args, *kwargs.values())) if not isinstance(item, FunctionalTensor)]
    if not found or func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default):
        return
    shown = f"a tensor of shape {tuple(found[0].shape)} that it was not given"
    if func is torch.ops.aten._local_scalar_dense.default:
        raise CaptureError(f"the step makes a Python number of {shown}", hint=_HINT)
    if func._schema.is_mutable and _is_changed(func, args, kwargs):
        raise CaptureError(f"the step changes {shown}", hint=_HINT)
    if torch.is_grad_enabled() and any(item.requires_grad for item in found):
        raise CaptureError(f"the step would make a gradient of {shown}", hint=f"{_HINT}, or use it under torch.no_grad()")


def _is_changed(func: Any, args: Iterable[object], kwargs: Mapping[str, object]) -> bool:
    written = [value for argument, value in _arguments(func, args, kwargs) if argument.alias_info and argument.alias_info.is_write]
    return any(not isinstance(item, FunctionalTensor) for item in _tensors(written))


def _arguments(func: Any, args: Iterable[object], kwargs: Mapping[str, object]) -> Iterator[tuple[Any, object]]:
    declared = func._schema.arguments
    yield from zip(declared, args, strict=False)
    yield from ((argument, kwargs[argument.name]) for argument in declared if argument.name in kwargs)


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
