"""GPT-2 (Radford et al. 2019, Language Models are Unsupervised Multitask Learners)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Size(Size):
    """Blocks, heads, width, vocabulary, and whether the head is the token embedding."""

    layers: int
    heads: int
    hidden: int
    vocab: int = 50257
    tied: bool = True


def _published(layers: int, heads: int, hidden: int, lr: float) -> GPT2Size:
    return GPT2Size(layers=layers, heads=heads, hidden=hidden, batch=8, seq=1024, positions=1024, lr=lr)


SIZES: Final[Mapping[str, GPT2Size]] = MappingProxyType({
    "tiny": GPT2Size(layers=4, heads=4, hidden=64, vocab=128, batch=8, seq=32, positions=64, lr=3e-3),
    "14m": GPT2Size(layers=6, heads=4, hidden=128, vocab=50304, batch=8, seq=128, positions=128, lr=1e-3, tied=False),  # dims of Pythia-14M
    "small": _published(12, 12, 768, 6e-4),
    "medium": _published(24, 16, 1024, 3e-4),
    "large": _published(36, 20, 1280, 2.5e-4),
    "xl": _published(48, 25, 1600, 2e-4),
})  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention with one matrix for queries, keys and values."""

    def __init__(self, size: GPT2Size, dropout: float) -> None:
        """Make the two projections."""
        super().__init__()
        self.heads, self.rate = size.heads, dropout
        self.c_attn = nn.Linear(size.hidden, 3 * size.hidden)
        self.c_proj = nn.Linear(size.hidden, size.hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        batch, seq, hidden = x.shape
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate if self.training else 0.0, is_causal=True)
        out: Tensor = self.dropout(self.c_proj(y.transpose(1, 2).reshape(batch, seq, hidden)))
        return out


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them, with tanh-approximated GELU."""

    def __init__(self, size: GPT2Size, dropout: float) -> None:
        """Make the two layers."""
        super().__init__()
        self.c_fc = nn.Linear(size.hidden, 4 * size.hidden)
        self.c_proj = nn.Linear(4 * size.hidden, size.hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        out: Tensor = self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and around a residual."""

    def __init__(self, size: GPT2Size, dropout: float) -> None:
        """Make the parts."""
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.hidden)
        self.attn = Attention(size, dropout)
        self.ln_2 = nn.LayerNorm(size.hidden)
        self.mlp = FeedForward(size, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT2(nn.Module):
    """The language model."""

    def __init__(self, size: GPT2Size, dropout: float = 0.0) -> None:
        """Make the parts and initialise them as published: normal(0.02), residual projections narrower by depth."""
        super().__init__()
        self.wte = nn.Embedding(size.vocab, size.hidden)
        self.wpe = nn.Embedding(size.positions, size.hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.hidden)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        if size.tied:
            self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, seq, vocab] for token ids i64[batch, seq]."""
        x = self.dropout(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits
