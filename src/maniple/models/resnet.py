"""ResNet (He et al. 2015, Deep Residual Learning for Image Recognition, table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torch import Tensor, nn
from torch.nn import functional as F

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetSize(Size):
    """Blocks and channels of the four stages, whether blocks are bottlenecks, number of classes, height and width of the images."""

    blocks: tuple[int, int, int, int]
    channels: tuple[int, int, int, int] = (64, 128, 256, 512)
    bottleneck: bool = False
    classes: int = 1000
    pixels: int = 224


SIZES: Final[Mapping[str, ResNetSize]] = MappingProxyType({
    "tiny": ResNetSize(blocks=(1, 1, 1, 1), channels=(8, 16, 32, 64), classes=16, pixels=32, batch=8, lr=0.05),
    "18": ResNetSize(blocks=(2, 2, 2, 2), batch=32, lr=0.1),
    "34": ResNetSize(blocks=(3, 4, 6, 3), batch=32, lr=0.1),
    "50": ResNetSize(blocks=(3, 4, 6, 3), bottleneck=True, batch=32, lr=0.1),
    "101": ResNetSize(blocks=(3, 4, 23, 3), bottleneck=True, batch=32, lr=0.1),
    "152": ResNetSize(blocks=(3, 8, 36, 3), bottleneck=True, batch=32, lr=0.1),
})  # fmt: skip


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut; the first may halve the image."""

    widening = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Make the convolutions and, where the shape changes, the projection of the shortcut."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, outputs, height', width'] for [batch, inputs, height, width]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class Bottleneck(nn.Module):
    """A 3x3 convolution, which may halve the image, between two 1x1 ones, around a shortcut; four times as wide outside."""

    widening = 4

    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        """Make the convolutions and, where the shape changes, the projection of the shortcut."""
        super().__init__()
        outputs = self.widening * middle
        self.conv1 = nn.Conv2d(inputs, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, 4 * middle, height', width'] for [batch, inputs, height, width]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """Stem, four stages, global average pool, linear classifier. Published without dropout; `dropout` is before the classifier."""

    def __init__(self, size: ResNetSize, dropout: float = 0.0) -> None:
        """Make the parts and initialise the convolutions as published (He et al. 2015b, fan out)."""
        super().__init__()
        self.rate = dropout
        self.conv1 = nn.Conv2d(3, size.channels[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(size.channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        kind = Bottleneck if size.bottleneck else BasicBlock
        stages, inputs = [], size.channels[0]
        for stage, (blocks, channels) in enumerate(zip(size.blocks, size.channels, strict=True)):
            strides = [1 if stage == 0 else 2] + [1] * (blocks - 1)
            outputs = kind.widening * channels
            stages.append(nn.Sequential(*(kind(outputs if at else inputs, channels, s) for at, s in enumerate(strides))))
            inputs = outputs
        self.stages = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, size.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes] for images [batch, 3, height, width]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        x = F.dropout(self.avgpool(x).flatten(1), self.rate, self.training)
        logits: Tensor = self.fc(x)
        return logits
