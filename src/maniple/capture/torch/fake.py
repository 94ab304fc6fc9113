"""The fake tensors that a step is traced on."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_SYMBOLS = (torch.SymFloat, torch.SymBool)


class FakeTensors(FakeTensorMode):
    """Torch's mode, but that ops on symbolic numbers are never computed while tracing.

    Torch computes an op ahead if all its tensors are small constants (`torch.ones(())`), and does not see that a number among its
    operands is symbolic: the result would hold today's learning rate, or NaN, for good.
    """

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's protocol
        """Run `func`; its tensors count as unknown if one of its numbers is."""
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, _SYMBOLS) for leaf in leaves):
            return super().dispatch(func, types, args, kwargs or {})
        known = [(leaf, leaf.constant) for leaf in leaves if isinstance(leaf, FakeTensor) and leaf.constant is not None]
        for leaf, _ in known:
            leaf.constant = None
        try:
            return super().dispatch(func, types, args, kwargs or {})
        finally:
            for leaf, constant in known:
                leaf.constant = constant
