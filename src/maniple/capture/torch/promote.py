"""Float64 promotion: what would become float32, float16 or bfloat16 becomes float64 instead.

Under float64 checks the oracle and the captured step run inside of the same mode, so that a model that casts to float32 inside
(a rotary embedding, a loss) does not lose the digits that the comparison needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LOW_PRECISION = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _promoted(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW_PRECISION else value


def _widen(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION:
        return value.to(torch.float64)
    return value


class PromoteFloat64(TorchDispatchMode):
    """While active, every cast to and factory of a lower float dtype gives float64.

    Tensors that exist already keep their dtype: convert model, optimizer state and batch to float64 first. A factory without an
    explicit dtype has the default one and is promoted as well; a new tensor made from Python numbers too.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,  # torch's protocol
    ) -> Any:
        """Run `func` with dtypes promoted."""
        named = {key: _promoted(value) for key, value in (kwargs or {}).items()}
        plain = tuple(_promoted(value) for value in args)
        result = func(*plain, **named)
        makes = not any(isinstance(value, torch.Tensor) for value in (*args, *named.values()))
        if makes or func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default):
            return _widen(result)
        return result
