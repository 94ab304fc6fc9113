"""Functions of numbers, for numbers that are known only when the step runs: `min`, `max`, `math.isfinite`, `torch.tensor` and the like."""

from __future__ import annotations

import builtins
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules import batchnorm

from maniple.capture.torch.patches import replaced

_SYMBOLS: Final = (torch.SymFloat, torch.SymInt, torch.SymBool)
_PLAIN: Final = (bool, int, float)


def _are_numbers(values: Any) -> bool:  # whatever the user passes
    """Return whether all are numbers and one at least is known only when the step runs."""
    return (
        isinstance(values, list | tuple)
        and any(isinstance(value, _SYMBOLS) for value in values)
        and all(isinstance(value, (*_SYMBOLS, *_PLAIN)) for value in values)
    )


def _dtype(values: Any) -> torch.dtype:
    if any(isinstance(value, float | torch.SymFloat) for value in values):
        return torch.float64
    return torch.int64 if any(isinstance(value, int | torch.SymInt) and not isinstance(value, bool) for value in values) else torch.bool


def _picking(function: Callable[..., Any], is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return `min` or `max` that can pick among numbers that are not known yet, as Python does: the first of equal ones, NaN never wins."""
    tracing = threading.get_ident()

    def pick(*args: Any, **options: Any) -> Any:  # passed on
        if threading.get_ident() != tracing:
            return function(*args, **options)
        values = args[0] if len(args) == 1 else args
        if options or not _are_numbers(values):
            return function(*args, **options)
        dtype = _dtype(values)
        best: Any = values[0]
        for value in values[1:]:
            wins = torch.scalar_tensor(is_better(value, best), dtype=torch.bool)
            best = torch.where(wins, torch.scalar_tensor(value, dtype=dtype), torch.scalar_tensor(best, dtype=dtype)).item()
        return best

    return pick


def _asking(function: Callable[[Any], bool], ask: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Return `math.isnan` or the like that takes a number that is not known yet."""

    def asked(number: Any, /) -> Any:
        if not isinstance(number, _SYMBOLS):
            return function(number)
        return ask(torch.scalar_tensor(number, dtype=torch.float64)).item()  # type: ignore[arg-type]  # takes symbols too

    return asked


def _making(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `torch.tensor` or `torch.as_tensor` that takes numbers that are not known yet."""

    def make(data: Any, *args: Any, **options: Any) -> Tensor:  # passed on
        values = [data] if isinstance(data, _SYMBOLS) else data
        if args or not _are_numbers(values):
            return function(data, *args, **options)
        wide = _dtype(values)
        dtype = options.get("dtype") or (torch.get_default_dtype() if wide == torch.float64 else wide)
        numbers: Any = values
        made = [torch.scalar_tensor(value, dtype=dtype, device=options.get("device")) for value in numbers]
        found = made[0] if values is not data else torch.stack(made)
        return found.requires_grad_() if options.get("requires_grad") else found

    return make


def _batch_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `batch_norm` that takes a momentum that is not known yet, as that of a cumulative average."""

    def run(
        x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
        training: bool = False,  # noqa: FBT001, FBT002  # torch's own form
        momentum: Any = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not isinstance(momentum, torch.SymFloat):
            return function(x, running_mean, running_var, weight, bias, training, momentum, eps)
        share: Any = momentum
        with torch.no_grad():
            dims = [d for d in range(x.dim()) if d != 1]
            for running, new in ((running_mean, x.mean(dims)), (running_var, x.var(dims))):
                running.copy_(running * (1 - share) + new * share)
        return function(x, None, None, weight, bias, training, 0.0, eps)

    return run


def _float(value: Any = 0.0) -> Any:
    """Return `float(value)`; of a traced tensor the number that it will hold."""
    return value.item() if isinstance(value, Tensor) else float(value)


@contextmanager
def _cumulative_averages() -> Iterator[None]:
    """Let batch norms without a momentum count their batches in the program."""
    names = vars(batchnorm)
    names["float"] = _float
    try:
        with replaced(functional, "batch_norm", _batch_norm(functional.batch_norm)):
            yield
    finally:
        del names["float"]


@contextmanager
def numbers_computed() -> Iterator[None]:
    """Let `min`, `max`, `math.isfinite`, `torch.tensor` and their like take numbers that are known only when the step runs."""
    with (
        replaced(builtins, "min", _picking(builtins.min, lambda value, best: value < best)),
        replaced(builtins, "max", _picking(builtins.max, lambda value, best: value > best)),
        replaced(math, "isnan", _asking(math.isnan, torch.isnan)),
        replaced(math, "isinf", _asking(math.isinf, torch.isinf)),
        replaced(math, "isfinite", _asking(math.isfinite, torch.isfinite)),
        replaced(torch, "tensor", _making(torch.tensor)),
        replaced(torch, "as_tensor", _making(torch.as_tensor)),
        _cumulative_averages(),
    ):
        yield
