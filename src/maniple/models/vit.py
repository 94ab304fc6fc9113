"""Vision transformer (Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTSize(Size):
    """Blocks, heads, width, height and width of a patch and of an image, number of classes; the feed-forward is four times as wide."""

    layers: int
    heads: int
    hidden: int
    patch: int
    pixels: int = 224
    classes: int = 1000


def _published(layers: int, heads: int, hidden: int, patch: int) -> ViTSize:
    return ViTSize(layers=layers, heads=heads, hidden=hidden, patch=patch, batch=32, lr=1e-3)


SIZES: Final[Mapping[str, ViTSize]] = MappingProxyType({
    "tiny": ViTSize(layers=2, heads=4, hidden=64, patch=8, pixels=32, classes=16, batch=8, lr=1e-3),
    "b16": _published(12, 12, 768, 16),
    "b32": _published(12, 12, 768, 32),
    "l16": _published(24, 16, 1024, 16),
    "l32": _published(24, 16, 1024, 32),
    "h14": _published(32, 16, 1280, 14),
})  # fmt: skip


class Attention(nn.Module):
    """Self-attention over all patches, with one matrix for queries, keys and values."""

    def __init__(self, size: ViTSize, dropout: float) -> None:
        """Make the two projections."""
        super().__init__()
        self.heads, self.rate = size.heads, dropout
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, patches, hidden] for the same."""
        batch, patches, hidden = x.shape
        q, k, v = (part.view(batch, patches, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate if self.training else 0.0)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, patches, hidden))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and around a residual."""

    def __init__(self, size: ViTSize, dropout: float) -> None:
        """Make the parts."""
        super().__init__()
        self.norm1 = nn.LayerNorm(size.hidden, eps=1e-6)
        self.attention = Attention(size, dropout)
        self.norm2 = nn.LayerNorm(size.hidden, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(size.hidden, 4 * size.hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * size.hidden, size.hidden)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, patches, hidden] for the same."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class ViT(nn.Module):
    """Patches and a class token with learned positions, blocks, a linear classifier on the class token."""

    def __init__(self, size: ViTSize, dropout: float = 0.0) -> None:
        """Make the parts."""
        super().__init__()
        self.patches = nn.Conv2d(3, size.hidden, size.patch, stride=size.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size.hidden))
        self.positions = nn.Parameter(torch.empty(1, (size.pixels // size.patch) ** 2 + 1, size.hidden).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(size, dropout) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.hidden, eps=1e-6)
        self.head = nn.Linear(size.hidden, size.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes] for images [batch, 3, height, width]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(self.dropout(x + self.positions))
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits
