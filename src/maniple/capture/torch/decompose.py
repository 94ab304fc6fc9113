"""ATen ops without a row of their own, written with others: PyTorch's own decompositions, traced.

A decomposition is used for an op that the table does not have, so that what the table says comes first: the pairs of forward and
backward ops that hand statistics to one another are rows, and never meet a decomposition of one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from maniple.capture.torch.strided import as_strided, as_strided_scatter
from maniple.capture.torch.table.written import WRITTEN

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

TABLE: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType({
    **decomposition_table,
    **WRITTEN,
    torch.ops.aten.as_strided.default: as_strided,
    torch.ops.aten.as_strided_scatter.default: as_strided_scatter,
})  # fmt: skip
"""What PyTorch knows to decompose, what is written here, and what depends on memory, of which a row knows nothing."""


class Decompositions:
    """Graphs of simpler ops for ops, one for each form in which an op is called.

    Attributes:
        table: op to what it is made of.
    """

    def __init__(self, table: Mapping[Any, Callable[..., Any]] = TABLE) -> None:
        """Start with nothing traced."""
        self.table = table
        self._graphs: dict[Hashable, fx.GraphModule] = {}

    def find(self, node: fx.Node) -> tuple[fx.GraphModule, list[fx.Node]] | None:
        """Return a graph that computes what `node` does, and the nodes that its placeholders stand for; None if there is none."""
        function = self.table.get(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
        if function is None:
            return None
        sources = list(node.all_input_nodes)
        values = [source.meta.get("val") for source in sources]
        if not all(isinstance(value, Tensor | torch.SymFloat) for value in values):
            return None
        key = (node.target, _form(node, sources))
        if key not in self._graphs:
            self._graphs[key] = _traced(node, function, sources, values)
        return self._graphs[key], sources


def _form(node: fx.Node, sources: list[fx.Node]) -> Hashable:
    """Return all that a decomposition may depend on."""
    numbers = {source: at for at, source in enumerate(sources)}

    def described(value: object) -> Hashable:
        if isinstance(value, fx.Node):
            known = value.meta["val"]
            kind = (tuple(known.shape), known.stride(), known.dtype) if isinstance(known, Tensor) else type(known)
            return (numbers[value], kind)
        if isinstance(value, list | tuple):
            return tuple(described(item) for item in value)
        return (type(value), value) if isinstance(value, _PLAIN) else id(value)

    return described(node.args), tuple((name, described(value)) for name, value in sorted(node.kwargs.items()))


def _plain(value: Any) -> Any:
    """Return arguments in lists that may be changed, as those of a call are; a graph's may not."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return tuple(_plain(item) for item in value) if isinstance(value, tuple) else value


def _traced(node: fx.Node, function: Callable[..., Any], sources: list[fx.Node], values: list[Any]) -> fx.GraphModule:
    """Return the graph of `function`, called as `node` calls its op."""

    def call(*given: Any) -> Any:  # tensors and symbolic floats
        at = dict(zip(sources, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), at.__getitem__)
        return function(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})

    mode = detect_fake_mode(values)
    with mode or nullcontext(), torch.no_grad():
        own = [value.detach() if isinstance(value, Tensor) else value for value in values]  # nodes of one type may have one value
        traced: fx.GraphModule = make_fx(functionalize(call))(*own)
    return traced
