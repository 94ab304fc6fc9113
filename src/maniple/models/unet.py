"""U-Net (Ronneberger et al. 2015, U-Net: Convolutional Networks for Biomedical Image Segmentation, figure 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class UNetSize(Size):
    """Channels of each level, height and width of the images, channels of these, number of classes."""

    channels: tuple[int, ...]
    pixels: int
    inputs: int = 1
    classes: int = 2

    @property
    def labelled(self) -> int:
        """Height and width of what the model predicts: convolutions are not padded."""
        size = self.pixels
        for _ in self.channels[:-1]:
            size = (size - 4) // 2
        for _ in self.channels[:-1]:
            size = 2 * (size - 4)
        return size - 4


SIZES: Final[Mapping[str, UNetSize]] = MappingProxyType({
    "tiny": UNetSize(channels=(8, 16, 32), pixels=44, classes=4, batch=8, lr=0.05),
    "base": UNetSize(channels=(64, 128, 256, 512, 1024), pixels=572, batch=1, lr=0.01),
})  # fmt: skip


def _double(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3x3 convolutions without padding, each with a ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3), nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """A contracting and an expanding path; each level of the second sees that of the first, cropped."""

    def __init__(self, size: UNetSize, dropout: float = 0.0) -> None:
        """Make the parts and initialise the convolutions as published: normal(sqrt(2 / fan in))."""
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise((size.inputs, *size.channels)))
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        upward = list(pairwise(reversed(size.channels)))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in upward)
        self.up = nn.ModuleList(_double(a, b) for a, b in upward)
        self.head = nn.Conv2d(size.channels[0], size.classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes, height', width'] for images [batch, inputs, height, width]."""
        levels = []
        for at, double in enumerate(self.down):
            x = double(self.pool(x) if at else x)
            levels.append(x)
        x = self.dropout(levels.pop())
        for widen, double in zip(self.widen, self.up, strict=True):
            x = widen(x)
            across = levels.pop()
            top, left = ((a - b) // 2 for a, b in zip(across.shape[2:], x.shape[2:], strict=True))
            across = across[:, :, top : top + x.shape[2], left : left + x.shape[3]]
            x = double(torch.cat((across, x), dim=1))
        logits: Tensor = self.head(x)
        return logits
