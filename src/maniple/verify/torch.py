"""Runs training steps of PyTorch for comparison: the oracle, its nudged twin, and the run to check.

All three begin from copies of one workload, under a OneCycleLR scheduler that moves lr and betas (or momentum) between steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils import _pytree as pytree

from maniple.base.errors import ModelError
from maniple.verify.compare import Tensor
from maniple.verify.nonfinite import Look

_NUMPY_HAS_NO = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model and its optimizer, apart from all other subjects."""

    model: nn.Module
    optimizer: Optimizer

    def copy(self) -> Subject:
        """Return a copy that shares nothing with this one.

        Raises:
            ModelError: if model or optimizer cannot be copied.
        """
        try:
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
        except Exception as error:  # whatever the user's classes raise
            what = (
                f"the model cannot be copied, to train it in two ways: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            )
            raise ModelError(
                what, hint="hold parameters and plain values in modules; parametrizations instead of nn.utils.weight_norm"
            ) from error
        return Subject(model, optimizer)

    def nudged(self) -> Subject:
        """Return a copy whose parameters are one unit in the last place larger."""
        other = self.copy()
        with torch.no_grad():
            for parameter in other.model.parameters():
                if parameter.is_floating_point():
                    parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, torch.inf)))
        return other


def run_steps(
    subject: Subject,
    step: Callable[[Any], Any],
    batches: Callable[[int], Any],
    num_steps: int,
    on_step: Callable[[float | None], None] = lambda _loss: None,
) -> dict[str, Tensor]:
    """Run `num_steps` steps and return every tensor that they leave, with the result of each step.

    Args:
        subject: what `step` trains.
        step: takes a batch, returns what the user's step returns.
        batches: number of the step to batch.
        num_steps: how many.
        on_step: told of each step's loss.
    """
    scheduler = _scheduler(subject.optimizer, num_steps)
    found: dict[str, Tensor] = {}
    for number in range(num_steps):
        result = step(batches(number))
        scheduler.step()
        for name, value in _leaves(result):
            found[f"step{number}.{name}"] = to_tensor("loss", value)
        on_step(first_number(result))
    found.update(snapshot(subject))
    return found


def _scheduler(optimizer: Optimizer, num_steps: int) -> OneCycleLR:
    peaks = [4.0 * float(group["lr"]) or 1e-3 for group in optimizer.param_groups]
    cycles = any("betas" in group or group.get("momentum") for group in optimizer.param_groups)
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=num_steps + 2, cycle_momentum=cycles)


def _leaves(result: object, label: str = "result") -> Iterator[tuple[str, Any]]:
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        name = label + pytree.keystr(path)
        if isinstance(leaf, torch.Tensor | int | float):
            yield name, leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, torch.nn.Module | Optimizer):  # a dataclass, or another record
            yield from _leaves({**leaf} if isinstance(leaf, Mapping) else vars(leaf), name)


def first_number(result: object) -> float | None:
    """Return the first single number in what a step returned, the loss by custom."""
    for _, leaf in _leaves(result):
        if not isinstance(leaf, torch.Tensor):
            return float(leaf)
        if leaf.numel() == 1:
            return float(leaf.detach())
    return None


def snapshot(subject: Subject) -> dict[str, Tensor]:
    """Return copies of all state: parameters, buffers, optimizer state."""
    found: dict[str, Tensor] = {}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in subject.model.named_parameters()}
    found.update({name: to_tensor("parameter", parameter) for parameter, name in names.items()})
    found.update({name: to_tensor("buffer", buffer) for name, buffer in subject.model.named_buffers()})
    for parameter, state in subject.optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor | int | float):
                found[f"optimizer.{key}.{names.get(parameter, '?')}"] = to_tensor("optimizer", value)
    return found


def to_tensor(kind: str, value: Any) -> Tensor:
    """Return a copy of a tensor or number, ready to compare."""
    tensor = torch.as_tensor(value).detach().clone()
    precision = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype in _NUMPY_HAS_NO or tensor.is_floating_point():
        tensor = tensor.double()
    return Tensor(kind, precision, np.asarray(tensor.numpy()))


def look(tensor: torch.Tensor) -> Look:
    """Return what is in a tensor."""
    if not tensor.is_floating_point() or not tensor.numel():
        return Look(0, 0, 0.0, 0.0)
    finite = tensor.isfinite()
    num_nan, num_bad = int(tensor.isnan().sum()), int((~finite).sum())
    kept = tensor[finite].double()
    low, high = (float(kept.min()), float(kept.max())) if kept.numel() else (0.0, 0.0)
    return Look(num_nan, num_bad - num_nan, low, high)


def low_precision(tensors: Mapping[str, Tensor], dtype: str) -> tuple[str, ...]:
    """Return the names of floating-point tensors that have another precision than `dtype`."""
    return tuple(name for name, item in tensors.items() if item.data.dtype.kind == "f" and item.precision != dtype)
