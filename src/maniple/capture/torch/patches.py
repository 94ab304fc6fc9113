"""What torch does otherwise while a step is traced: refuse schedulers, trace through checkpoint, watch backward passes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim.lr_scheduler import LRScheduler

from maniple.base.errors import CaptureError
from maniple.capture.torch.locations import StepPosition, user_location

UNKNOWN: Final = "<known only when the step runs>"
"""How numbers read while a step is traced."""


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:  # any object with attributes
    """Let `owner.name` be `value` for a while; what `owner` inherits it inherits again afterwards."""
    is_own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Let Python's cycle collector wait.

    What an earlier trace that failed left behind, torch cannot free in the middle of an op: it then finds the op's result half made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _scheduler_classes(root: type) -> Iterator[type]:
    yield root
    children: list[type] = root.__subclasses__()
    for child in children:
        yield from _scheduler_classes(child)


def _scheduler_refusal(name: str) -> Callable[..., None]:
    def refuse(scheduler: object, *_: object, **__: object) -> None:
        raise CaptureError(
            f"the step calls {type(scheduler).__name__}.{name}()",
            where=user_location(sys._getframe(1)),
            hint=f"call scheduler.{name}() outside of the step; the learning rate is read anew each step",
        )

    return refuse


@contextmanager
def schedulers_refused() -> Iterator[None]:
    """Refuse any call of a scheduler's `step`, before it changes anything, and questions of which the answer changes."""
    with ExitStack() as stack:
        for kind in dict.fromkeys(_scheduler_classes(LRScheduler)):
            for name in ("step", "get_last_lr"):
                if name in vars(kind):
                    stack.enter_context(replaced(kind, name, _scheduler_refusal(name)))
        yield


class _PassThrough:
    """Stands for torch's reentrant checkpoint function."""

    @staticmethod
    def apply(function: Callable[..., object], _preserve: object, *args: object) -> object:
        return function(*args)


def _no_checkpoint(*_args: object, **_kwargs: object) -> Iterator[None]:
    yield


@contextmanager
def checkpoint_traced_through() -> Iterator[None]:
    """Let `torch.utils.checkpoint` run its function once: recomputing is for our own pass, with the same random numbers.

    Both ways in are replaced below `checkpoint` itself, so that it does not matter how the user imported that.
    """
    with (
        replaced(torch_checkpoint, "_checkpoint_without_reentrant_generator", _no_checkpoint),
        replaced(torch_checkpoint, "CheckpointFunction", _PassThrough),
    ):
        yield


@contextmanager
def numbers_refused() -> Iterator[None]:
    """Refuse what reads the memory of tensors, of which traced ones have none: `numpy()` and `tolist()`."""
    with ExitStack() as stack:
        for name in ("numpy", "tolist"):
            stack.enter_context(replaced(torch.Tensor, name, _refusal(name)))
        yield


@contextmanager
def compiled_traced_through() -> Iterator[None]:
    """Let functions that `torch.compile` made run as they were written."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to import, and without it there are none
    with nullcontext() if dynamo is None else dynamo.config.patch(error_on_nested_fx_trace=False):
        yield


def _refusal(name: str) -> Callable[..., object]:
    def refuse(_tensor: torch.Tensor, *_args: object, **_kwargs: object) -> object:
        raise CaptureError(
            f"the step leaves torch: it calls {name}() of a tensor", hint="return the tensor, and make numbers of it outside"
        )

    return refuse


@contextmanager
def texts_marked() -> Iterator[None]:
    """Let traced numbers and tensors, whatever the format, read as `UNKNOWN`: so texts of them can be told from others."""

    def text(_value: object, _format: str = "") -> str:
        return UNKNOWN

    with ExitStack() as stack:
        for kind in (torch.SymFloat, torch.SymInt, torch.SymBool, FunctionalTensor):
            for name in ("__str__", "__repr__", "__format__"):
                stack.enter_context(replaced(kind, name, text))
        yield


@contextmanager
def backward_watched(position: StepPosition, before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Call `before` and `after` around each backward pass, and note it in `position`."""
    backward, grad = torch.autograd.backward, torch.autograd.grad

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:  # passed on
            if not position.num_backward:
                before()
            position.num_backward += 1
            position.had_backward = True
            try:
                result = function(*args, **kwargs)
            finally:
                position.num_backward -= 1
            if not position.num_backward:
                after()
            return result

        return run

    with replaced(torch.autograd, "backward", watched(backward)), replaced(torch.autograd, "grad", watched(grad)):
        yield
