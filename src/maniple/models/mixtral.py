"""Mixtral (Jiang et al. 2024, Mixtral of Experts): Llama with feed-forward experts, of which each token takes two.

Tokens are sent to experts in a fixed number of places per row (Lepikhin et al. 2020, GShard, algorithm 1), so that the step is one graph
whatever the routing: a token that finds no place left in an expert goes without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maniple.models.llama import Attention, LlamaSize, RMSNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralSize(LlamaSize):
    """A Llama's sizes, experts, how many a token takes, and places per expert over what an even routing would fill."""

    experts: int
    chosen: int = 2
    spare: float = 2.0


SIZES: Final[Mapping[str, MixtralSize]] = MappingProxyType({
    "tiny": MixtralSize(
        layers=2, heads=4, kv_heads=2, hidden=64, intermediate=96, vocab=128, experts=4, batch=8, seq=16, positions=64, lr=3e-3
    ),
    "8x7b": MixtralSize(
        layers=32, heads=32, kv_heads=8, hidden=4096, intermediate=14336, theta=1e6, experts=8, batch=4, seq=4096, positions=32768, lr=3e-4
    ),
    "8x22b": MixtralSize(
        layers=56, heads=48, kv_heads=8, hidden=6144, intermediate=16384, vocab=32768, theta=1e6, experts=8,
        batch=4, seq=4096, positions=65536, lr=3e-4,
    ),
})  # fmt: skip


class Experts(nn.Module):
    """Feed-forwards as those of Llama, as many as there are experts, side by side."""

    def __init__(self, size: MixtralSize) -> None:
        """Make the three matrices of each."""
        super().__init__()
        self.gate = nn.Parameter(torch.empty(size.experts, size.hidden, size.intermediate))
        self.up = nn.Parameter(torch.empty(size.experts, size.hidden, size.intermediate))
        self.down = nn.Parameter(torch.empty(size.experts, size.intermediate, size.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, experts, places, hidden] for the same."""
        y = F.silu(torch.einsum("becd,edf->becf", x, self.gate)) * torch.einsum("becd,edf->becf", x, self.up)
        return torch.einsum("becf,efd->becd", y, self.down)


class Mixture(nn.Module):
    """A router and its experts."""

    def __init__(self, size: MixtralSize) -> None:
        """Make the parts."""
        super().__init__()
        self.count, self.chosen, self.spare = size.experts, size.chosen, size.spare
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.experts = Experts(size)

    def places(self, seq: int) -> int:
        """Return how many tokens of a row an expert takes."""
        return min(math.ceil(self.spare * seq * self.chosen / self.count), seq)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, seq, hidden] for the same, and how uneven the routing is, rank 0 (Fedus et al. 2021, eq. 4)."""
        batch, seq, hidden = x.shape
        shares = self.router(x).softmax(dim=-1)
        weights, experts = shares.topk(self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        taken = F.one_hot(experts, self.count)
        uneven = self.count * (taken.sum(2).to(x.dtype).mean((0, 1)) * shares.mean((0, 1))).sum() / self.chosen
        taken = taken.view(batch, seq * self.chosen, self.count)
        place = ((taken.cumsum(1) - 1) * taken).sum(-1)
        room = self.places(seq)
        slot = torch.where(place < room, experts.flatten(1) * room + place, self.count * room)  # the last one is nobody's
        index = slot[:, :, None].expand(-1, -1, hidden)
        sent = x.new_zeros(batch, self.count * room + 1, hidden).scatter_add(1, index, x.repeat_interleave(self.chosen, dim=1))
        done = self.experts(sent[:, :-1].view(batch, self.count, room, hidden)).flatten(1, 2)
        back = F.pad(done, (0, 0, 0, 1)).gather(1, index).view(batch, seq, self.chosen, hidden)
        return (back * weights[..., None]).sum(dim=2), uneven


class Block(nn.Module):
    """Attention and mixture, each behind a norm and around a residual."""

    def __init__(self, size: MixtralSize, dropout: float) -> None:
        """Make the parts."""
        super().__init__()
        self.input_norm = RMSNorm(size.hidden)
        self.attn = Attention(size, dropout)
        self.post_norm = RMSNorm(size.hidden)
        self.mixture = Mixture(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, seq, hidden] for the same, and how uneven the routing is, rank 0."""
        x = x + self.attn(self.input_norm(x), cos, sin)
        y, uneven = self.mixture(self.post_norm(x))
        return x + y, uneven


class Mixtral(nn.Module):
    """The language model; its head has a matrix of its own. Published without dropout; `dropout` is that of attention."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: MixtralSize, dropout: float = 0.0) -> None:
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
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [batch, seq, vocab] for token ids i64[batch, seq], and how uneven the routing is, rank 0: 1 if it is even."""
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        uneven = []
        for block in self.blocks:
            x, one = block(x, cos, sin)
            uneven.append(one)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits, torch.stack(uneven).mean()
