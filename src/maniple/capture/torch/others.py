"""Tensors in what a step is given besides modules and optimizers: a gradient scaler, averaged weights, lists of tensors. They are state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

Place = tuple[Any, Any]
"""A list or dict, and the index or key at which it holds a tensor."""

INITIAL: Final = frozenset({"_init_scale", "_init_growth_tracker"})
"""Attributes of a gradient scaler that nothing reads once it has its tensors."""


def is_state(value: object) -> bool:
    """Return whether a program can hold `value`, and change it."""
    if not isinstance(value, Tensor) or value.requires_grad or isinstance(value, torch.nn.Parameter):
        return False
    return value.layout == torch.strided and not value.is_quantized and not value.is_complex()


def tensors_of(label: str, item: object, device: torch.device) -> Iterator[tuple[str, Place]]:
    """Yield names and places of the tensors among the attributes of an object, and in lists and dicts among them.

    Args:
        label: how the user calls the object.
        item: any object but a module, an optimizer, or a container.
        device: where a gradient scaler's tensors are to be.
    """
    if isinstance(item, LRScheduler | type) or not hasattr(item, "__dict__"):
        return
    if isinstance(item, GradScaler) and item.is_enabled() and item._scale is None:
        item._lazy_init_scale_growth_tracker(device)  # else it would make its tensors in the first step, and need a program for that
    held = vars(item)
    for key, value in held.items():
        if is_state(value):
            yield f"{label}.{key}", (held, key)
        elif isinstance(value, list | dict):
            parts: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
            for at, part in parts:
                if is_state(part):
                    yield f"{label}.{key}.{at}", (value, at)
