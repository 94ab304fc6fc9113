"""T5 (Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, sections 2.1 and 3.7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maniple.models.workload import Size

START: Final = 0
"""The token that the decoder begins with; it is also padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Size(Size):
    """Blocks of encoder and of decoder, heads, their width, width of the model and of the feed-forward, vocabulary, distances known."""

    layers: int
    heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int = 32128
    buckets: int = 32
    farthest: int = 128


def _published(layers: int, heads: int, head_dim: int, hidden: int, intermediate: int) -> T5Size:
    return T5Size(
        layers=layers, heads=heads, head_dim=head_dim, hidden=hidden, intermediate=intermediate, batch=8, seq=512, positions=512, lr=1e-3
    )


SIZES: Final[Mapping[str, T5Size]] = MappingProxyType({
    "tiny": T5Size(
        layers=1, heads=4, head_dim=16, hidden=64, intermediate=128, vocab=128, buckets=8, farthest=32,
        batch=8, seq=16, positions=64, lr=3e-3,
    ),
    "small": _published(6, 8, 64, 512, 2048),
    "base": _published(12, 12, 64, 768, 3072),
    "large": _published(24, 16, 64, 1024, 4096),
    "3b": _published(24, 32, 128, 1024, 16384),
    "11b": _published(24, 128, 128, 1024, 65536),
})  # fmt: skip


class RMSNorm(nn.Module):
    """Layer norm without mean and bias."""

    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        """Make the scale."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalised over its last dim."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x)


class Distances(nn.Module):
    """A number for each head and distance, added to the scores; far distances share one (section 2.1)."""

    def __init__(self, size: T5Size, *, both_ways: bool) -> None:
        """Make the table."""
        super().__init__()
        self.both_ways, self.buckets, self.farthest = both_ways, size.buckets, size.farthest
        self.table = nn.Embedding(size.buckets, size.heads)

    def forward(self, queries: int, keys: int) -> Tensor:
        """Return [heads, queries, keys]."""
        device = self.table.weight.device
        distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
        buckets, bucket = self.buckets, torch.zeros_like(distance)
        if self.both_ways:
            buckets //= 2
            bucket = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        near = buckets // 2
        share = torch.log(distance.clamp(min=1).float() / near) / math.log(self.farthest / near)
        far = (near + (share * (buckets - near)).long()).clamp(max=buckets - 1)
        bucket = bucket + torch.where(distance < near, distance, far)
        numbers: Tensor = self.table(bucket)
        return numbers.permute(2, 0, 1)


class Attention(nn.Module):
    """Attention without scaling and biases; the scores have a number added for each distance, or a mask."""

    def __init__(self, size: T5Size, dropout: float) -> None:
        """Make the four projections."""
        super().__init__()
        self.heads = size.heads
        inner = size.heads * size.head_dim
        self.q = nn.Linear(size.hidden, inner, bias=False)
        self.k = nn.Linear(size.hidden, inner, bias=False)
        self.v = nn.Linear(size.hidden, inner, bias=False)
        self.o = nn.Linear(inner, size.hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, read: Tensor, added: Tensor | None) -> Tensor:
        """Return [batch, queries, hidden] for the same, and for what is read [batch, keys, hidden]."""
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part, y in ((self.q, x), (self.k, read), (self.v, read)))
        scores = q @ k.transpose(-1, -2)
        if added is not None:
            scores = scores + added
        y = self.dropout(scores.softmax(dim=-1)) @ v
        out: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Self-attention, in the decoder attention to the encoder, and feed-forward, each behind a norm and around a residual."""

    def __init__(self, size: T5Size, dropout: float, *, decodes: bool) -> None:
        """Make the parts."""
        super().__init__()
        self.norm1 = RMSNorm(size.hidden)
        self.attention = Attention(size, dropout)
        self.decodes = decodes
        if decodes:
            self.norm2 = RMSNorm(size.hidden)
            self.across = Attention(size, dropout)
        self.norm3 = RMSNorm(size.hidden)
        self.wi = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.wo = nn.Linear(size.intermediate, size.hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, added: Tensor, encoded: Tensor | None = None) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, added))
        if self.decodes:
            assert encoded is not None, "a decoder reads"
            x = x + self.dropout(self.across(self.norm2(x), encoded, None))
        y = self.dropout(F.relu(self.wi(self.norm3(x))))
        out: Tensor = x + self.dropout(self.wo(y))
        return out


class Stack(nn.Module):
    """Blocks with one table of distances, and a norm."""

    def __init__(self, size: T5Size, dropout: float, *, decodes: bool) -> None:
        """Make the parts."""
        super().__init__()
        self.decodes = decodes
        self.distances = Distances(size, both_ways=not decodes)
        self.blocks = nn.ModuleList(Block(size, dropout, decodes=decodes) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        seq = x.shape[1]
        added = self.distances(seq, seq)
        if self.decodes:
            later = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            added = added.masked_fill(later, float("-inf"))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, added, encoded)
        out: Tensor = self.dropout(self.norm(x))
        return out


class T5(nn.Module):
    """Encoder, decoder, and a head that is the embedding."""

    def __init__(self, size: T5Size, dropout: float = 0.0) -> None:
        """Make the parts and initialise them as published: by fan in, queries by the heads' width too."""
        super().__init__()
        self.scale = size.hidden**-0.5
        self.embed = nn.Embedding(size.vocab, size.hidden)
        self.encoder = Stack(size, dropout, decodes=False)
        self.decoder = Stack(size, dropout, decodes=True)
        for name, parameter in self.named_parameters():
            if name.endswith(".q.weight"):
                nn.init.normal_(parameter, std=(size.hidden * size.head_dim) ** -0.5)
            elif isinstance(parameter, Tensor) and parameter.dim() == 2 and "embed" not in name:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        """Return logits [batch, seq', vocab] for ids to read i64[batch, seq] and ids to write i64[batch, seq'], which it sees shifted."""
        start = torch.full_like(written[:, :1], START)
        seen = torch.cat((start, written[:, :-1]), dim=1)
        decoded = self.decoder(self.embed(seen), self.encoder(self.embed(read)))
        return F.linear(decoded * self.scale, self.embed.weight)
