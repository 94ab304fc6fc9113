"""Torch's functions on lists of tensors, one tensor at a time: a program has no lists, and computes many small ops in one body anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from maniple.capture.torch.patches import replaced

_PREFIX: Final = "_foreach_"
_TWO_TENSORS: Final = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Functions that take numbers too, and what takes a number for one tensor."""


def _norm(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Any:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _single(name: str) -> Callable[..., Any] | None:
    """Return what does to one tensor as `torch._foreach_NAME` does to many; None if there is nothing."""
    if name == "norm":
        return _norm
    if name == "pow":
        return torch.pow  # the base may be a number
    found: Callable[..., Any] | None = getattr(Tensor, name, None)
    plain = name.rstrip("_")
    if plain not in _TWO_TENSORS:
        return found
    by_number: Callable[..., Any] = getattr(Tensor, name.replace(plain, _TWO_TENSORS[plain]))

    def pick(x: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor):
            return by_number(x, other)
        made: Tensor = getattr(torch, plain)(x, other)
        return x.copy_(made) if name.endswith("_") else made

    return pick


def _looped(single: Callable[..., Any], *, in_place: bool) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        count = next(len(value) for value in (*args, *options.values()) if isinstance(value, list | tuple))

        def at(value: Any, number: int) -> Any:
            return value[number] if isinstance(value, list | tuple) else value

        scalars = {"scalar", "scalars"} & options.keys()  # by position in the functions of one tensor
        args = (*args, *(options[key] for key in scalars))
        named = {key: value for key, value in options.items() if key not in scalars and key != "self"}
        if "self" in options:
            args = (options["self"], *args)
        spread = [_spread(value, count) for value in args]
        made = [single(*(at(v, n) for v in spread), **{key: at(v, n) for key, v in named.items()}) for n in range(count)]
        return None if in_place else made

    return run


def _spread(value: Any, count: int) -> Any:
    """Return a tensor of one number per tensor as a list; anything else as it is."""
    return value.unbind() if isinstance(value, Tensor) and value.dim() == 1 and len(value) == count else value


def _with_value(single: Callable[..., Any]) -> Callable[..., Any]:
    """Return `addcmul` or `addcdiv` that takes its factor by position, as the functions on lists do."""

    def run(x: Tensor, one: Tensor, other: Tensor, value: Any = 1) -> Any:
        return single(x, one, other, value=value)

    return run


@contextmanager
def lists_unrolled() -> Iterator[None]:
    """Let every `torch._foreach_` function that has a counterpart for one tensor be a loop over it."""
    with ExitStack() as stack:
        for full in [name for name in dir(torch) if name.startswith(_PREFIX)]:
            name = full.removeprefix(_PREFIX)
            single = _single(name)
            if single is not None:
                single = _with_value(single) if name.startswith(("addcmul", "addcdiv")) else single
                stack.enter_context(replaced(torch, full, _looped(single, in_place=name.endswith("_"))))
        yield
