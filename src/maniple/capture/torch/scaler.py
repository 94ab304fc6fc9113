"""Gradient scalers: an update that is left out when a gradient is not finite becomes a predicated one.

`torch.amp.GradScaler` looks at a number to decide whether the optimizer steps. Here the optimizer always steps, and whatever it changed
becomes `where(all gradients were finite, new, old)`. Optimizer state that such a step creates is put into the optimizer only after a
step that was not left out, as with PyTorch, where an update that is left out creates none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from maniple.base.errors import CaptureError
from maniple.capture.torch.patches import replaced
from maniple.capture.torch.state import Bound


@dataclass
class Predicated:
    """Updates of one trace that may be left out.

    Attributes:
        bound: what the step works on.
        traced: the traced tensors of its state, by name.
        conditions: of each such update, by the name of its output, a boolean: whether it takes place.
        created: state that such an update creates, by optimizer, parameter and key, to the name of its condition.
    """

    bound: Bound
    traced: Mapping[str, Tensor]
    conditions: dict[str, Tensor] = field(default_factory=dict)
    created: dict[tuple[int, int, str], str] = field(default_factory=dict)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Let scalers of torch take updates whose result is then chosen.

        Raises:
            CaptureError: if a scaler is left in the midst of an iteration.
        """
        scalers = [item for _, item in self.bound.others if isinstance(item, GradScaler)]
        if not scalers:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(replaced(torch, "_amp_foreach_non_finite_check_and_unscale_", _unscale))
            stack.enter_context(replaced(torch, "_amp_update_scale_", _update_scale))
            stack.enter_context(replaced(GradScaler, "_maybe_opt_step", self._stepping()))
            for scaler in (scaler for scaler in scalers if scaler.is_enabled()):
                stack.enter_context(replaced(scaler, "_per_optimizer_states", copy.copy(scaler._per_optimizer_states)))
            for _, optimizer in self.bound.optimizers:
                if getattr(optimizer, "_step_supports_amp_scaling", False):  # fused kernels do
                    stack.enter_context(replaced(optimizer, "_step_supports_amp_scaling", value=False))
            yield
            if any(scaler.is_enabled() and scaler._per_optimizer_states for scaler in scalers):
                raise CaptureError(
                    "the step ends before scaler.update()", hint="call scaler.update() inside of the step, after scaler.step()"
                )

    def _stepping(self) -> Callable[..., Any]:
        def step(_scaler: object, optimizer: Optimizer, entry: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:  # passed on
            found = torch.stack(list(entry["found_inf_per_device"].values())).sum()
            return self._step(found == 0, optimizer, args, kwargs)

        return step

    def _step(self, condition: Tensor, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if any(owner == id(optimizer) for owner, _, _ in self.created):
            raise CaptureError("the step that makes optimizer state updates twice with a scaler", hint="call scaler.step() once in a step")
        tensors = [tensor for tensor in self.traced.values() if isinstance(tensor, FunctionalTensor)]
        tensors += [tensor.grad for tensor in tensors if isinstance(tensor.grad, FunctionalTensor)]
        before = [(tensor, _held(tensor)) for tensor in tensors]
        known = set(_entries(optimizer))
        result = optimizer.step(*args, **kwargs)
        with torch.no_grad():
            for tensor, old in before:
                if _held(tensor) is not old:
                    tensor.copy_(torch.where(condition, tensor.detach(), FunctionalTensor.to_functional(old)))
        name = f"update.{len(self.conditions)}"
        self.created.update((entry, name) for entry in _entries(optimizer) if entry not in known)
        self.conditions[name] = condition
        return result


def _entries(optimizer: Optimizer) -> Iterator[tuple[int, int, str]]:
    for parameter, state in optimizer.state.items():
        for key in state:
            yield id(optimizer), id(parameter), key


def _held(tensor: Any) -> Tensor:  # a FunctionalTensor
    """Return what a traced tensor holds now; another object once it has been written to."""
    torch._sync(tensor)  # type: ignore[attr-defined]  # not in torch's stubs
    return torch._from_functional_tensor(tensor.elem)


def _unscale(gradients: Sequence[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """Do as torch's kernel of this name: multiply gradients by the inverse scale, and set `found_inf` to 1 if one is not finite."""
    for gradient in gradients:
        bad = gradient.isfinite().logical_not().any()
        found_inf.copy_(torch.where(bad, 1.0, found_inf))
        gradient.mul_(inverse_scale)


def _update_scale(scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int) -> None:
    """Do as torch's kernel of this name: shrink the scale after a bad step, let it grow after `interval` good ones in a row."""
    bad, count = found_inf != 0, tracker + 1
    grows = count == interval
    grown = (scale.double() * growth).to(scale.dtype)
    good = torch.where(torch.logical_and(grows, grown.isfinite()), grown, scale)
    scale.copy_(torch.where(bad, (scale.double() * backoff).to(scale.dtype), good))
    tracker.copy_(torch.where(torch.logical_or(bad, grows), torch.zeros_like(count), count))
