"""A multilayer perceptron: linear layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from torch import Tensor, nn

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSize(Size):
    """Width of the input, of each of `layers - 1` hidden layers, and number of classes."""

    inputs: int
    hidden: int
    layers: int
    classes: int


SIZES: Final[Mapping[str, MLPSize]] = MappingProxyType({
    "tiny": MLPSize(inputs=32, hidden=64, layers=5, classes=16, batch=128, lr=3e-3),
    "base": MLPSize(inputs=256, hidden=1024, layers=8, classes=64, batch=512, lr=1e-3),
})  # fmt: skip


class MLP(nn.Module):
    """`layers` linear layers, ReLU and dropout after all but the last."""

    def __init__(self, size: MLPSize, dropout: float = 0.0) -> None:
        """Make the layers."""
        super().__init__()
        widths = [size.inputs, *[size.hidden] * (size.layers - 1), size.classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes] for rows [batch, inputs]."""
        for layer in self.layers[:-1]:
            x = self.dropout(layer(x).relu())
        logits: Tensor = self.layers[-1](x)
        return logits
