"""Llama (Touvron et al. 2023; Grattafiori et al. 2024): RMSNorm, rotary positions, SwiGLU, grouped-query attention."""

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
class LlamaSize(Size):
    """Blocks, query heads, key-value heads, width, width of the feed-forward, vocabulary, base of the rotary angles."""

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    intermediate: int
    vocab: int = 32000
    theta: float = 10000.0


SIZES: Final[Mapping[str, LlamaSize]] = MappingProxyType({
    "tiny": LlamaSize(layers=4, heads=4, kv_heads=2, hidden=64, intermediate=192, vocab=128, batch=8, seq=32, positions=64, lr=3e-3),
    "7b": LlamaSize(layers=32, heads=32, kv_heads=32, hidden=4096, intermediate=11008, batch=4, seq=4096, positions=4096, lr=3e-4),
    "13b": LlamaSize(layers=40, heads=40, kv_heads=40, hidden=5120, intermediate=13824, batch=4, seq=4096, positions=4096, lr=3e-4),
    "33b": LlamaSize(layers=60, heads=52, kv_heads=52, hidden=6656, intermediate=17920, batch=4, seq=2048, positions=2048, lr=1.5e-4),
    "65b": LlamaSize(layers=80, heads=64, kv_heads=64, hidden=8192, intermediate=22016, batch=4, seq=2048, positions=2048, lr=1.5e-4),
    "8b": LlamaSize(
        layers=32, heads=32, kv_heads=8, hidden=4096, intermediate=14336, vocab=128256, theta=500000.0,
        batch=4, seq=8192, positions=8192, lr=3e-4,
    ),
    "70b": LlamaSize(
        layers=80, heads=64, kv_heads=8, hidden=8192, intermediate=28672, vocab=128256, theta=500000.0,
        batch=4, seq=8192, positions=8192, lr=1.5e-4,
    ),
    "405b": LlamaSize(
        layers=126, heads=128, kv_heads=8, hidden=16384, intermediate=53248, vocab=128256, theta=500000.0,
        batch=4, seq=8192, positions=8192, lr=8e-5,
    ),
})  # fmt: skip


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in float32 whatever the input's dtype (Zhang and Sennrich 2019)."""

    def __init__(self, hidden: int, eps: float = 1e-5) -> None:
        """Make the scale."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalised over its last dim."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.type_as(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [batch, heads, seq, e] with pairs (i, i + e/2) turned by angles of tables [seq, e] (Su et al. 2021, eq. 34)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention; each key-value head serves several query heads (Ainslie et al. 2023)."""

    def __init__(self, size: LlamaSize, dropout: float) -> None:
        """Make the four projections."""
        super().__init__()
        self.heads, self.kv_heads, self.rate = size.heads, size.kv_heads, dropout
        self.head_dim = size.hidden // size.heads
        self.q_proj = nn.Linear(size.hidden, size.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(size.heads * self.head_dim, size.hidden, bias=False)

    def _repeated(self, x: Tensor) -> Tensor:
        """Return [batch, kv_heads, seq, e] with every head as often as queries share it."""
        batch, kv_heads, seq, e = x.shape
        repeats = self.heads // kv_heads
        return x[:, :, None].expand(batch, kv_heads, repeats, seq, e).reshape(batch, self.heads, seq, e)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        batch, seq, _ = x.shape
        q = self.q_proj(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        dropout = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, self._repeated(k), self._repeated(v), dropout_p=dropout, is_causal=True)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, seq, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU: a linear layer gated by the SiLU of another (Shazeer 2020)."""

    def __init__(self, size: LlamaSize) -> None:
        """Make the three projections."""
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.down_proj = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, size: LlamaSize, dropout: float) -> None:
        """Make the parts."""
        super().__init__()
        self.input_norm = RMSNorm(size.hidden)
        self.attn = Attention(size, dropout)
        self.post_norm = RMSNorm(size.hidden)
        self.mlp = FeedForward(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        x = x + self.attn(self.input_norm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_norm(x))
        return out


class Llama(nn.Module):
    """The language model; its head has a matrix of its own. Published without dropout; `dropout` is that of attention."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: LlamaSize, dropout: float = 0.0) -> None:
        """Make the parts, and the tables of rotary angles [positions, head width]."""
        super().__init__()
        self.embed = nn.Embedding(size.vocab, size.hidden)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        half = torch.arange(0, size.hidden // size.heads, 2, dtype=torch.float32) / (size.hidden // size.heads)
        angles = torch.outer(torch.arange(size.positions, dtype=torch.float32), size.theta**-half)
        self.register_buffer("cos", torch.cat((angles, angles), dim=-1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), dim=-1).sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, seq, vocab] for token ids i64[batch, seq]."""
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits
