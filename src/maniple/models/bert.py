"""BERT (Devlin et al. 2018) with its masked-language-model head."""

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
class BertSize(Size):
    """Layers, heads, width, vocabulary and token types; the feed-forward is four times as wide."""

    layers: int
    heads: int
    hidden: int
    vocab: int = 30522
    types: int = 2
    eps: float = 1e-12


SIZES: Final[Mapping[str, BertSize]] = MappingProxyType({
    "tiny": BertSize(layers=4, heads=4, hidden=64, vocab=128, batch=8, seq=32, positions=64, lr=3e-3),
    "base": BertSize(layers=12, heads=12, hidden=768, batch=8, seq=512, positions=512, lr=1e-4),
    "large": BertSize(layers=24, heads=16, hidden=1024, batch=8, seq=512, positions=512, lr=1e-4),
})  # fmt: skip


class Embeddings(nn.Module):
    """Token, position and type embeddings, summed and normalised."""

    def __init__(self, size: BertSize, dropout: float) -> None:
        """Make the tables; token 0 is padding."""
        super().__init__()
        self.word = nn.Embedding(size.vocab, size.hidden, padding_idx=0)
        self.position = nn.Embedding(size.positions, size.hidden)
        self.token_type = nn.Embedding(size.types, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=size.eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for token ids and types, i64[batch, seq] each."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        out: Tensor = self.dropout(self.norm(self.word(ids) + self.token_type(types) + self.position(positions)))
        return out


class Attention(nn.Module):
    """Self-attention over the whole row."""

    def __init__(self, size: BertSize, dropout: float) -> None:
        """Make the four projections."""
        super().__init__()
        self.heads, self.rate = size.heads, dropout
        self.query = nn.Linear(size.hidden, size.hidden)
        self.key = nn.Linear(size.hidden, size.hidden)
        self.value = nn.Linear(size.hidden, size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        batch, seq, hidden = x.shape
        q, k, v = (part(x).view(batch, seq, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate if self.training else 0.0)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, seq, hidden))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each followed by its residual and a layer norm."""

    def __init__(self, size: BertSize, dropout: float) -> None:
        """Make the parts."""
        super().__init__()
        self.attention = Attention(size, dropout)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=size.eps)
        self.intermediate = nn.Linear(size.hidden, 4 * size.hidden)
        self.output = nn.Linear(4 * size.hidden, size.hidden)
        self.output_norm = nn.LayerNorm(size.hidden, eps=size.eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] for the same."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        out: Tensor = self.output_norm(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))
        return out


class Head(nn.Module):
    """Transform, then a decoder tied to the token embedding, with a bias of its own."""

    def __init__(self, size: BertSize, word: nn.Embedding) -> None:
        """Make the transform and tie the decoder to `word`."""
        super().__init__()
        self.dense = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=size.eps)
        self.decoder = nn.Linear(size.hidden, size.vocab)
        self.decoder.weight = word.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, seq, vocab] for [batch, seq, hidden]."""
        logits: Tensor = self.decoder(self.norm(F.gelu(self.dense(x))))
        return logits


class Bert(nn.Module):
    """The masked language model."""

    def __init__(self, size: BertSize, dropout: float = 0.0) -> None:
        """Make the parts and initialise them as published: normal(0.02), biases 0."""
        super().__init__()
        self.embeddings = Embeddings(size, dropout)
        self.layers = nn.ModuleList(Layer(size, dropout) for _ in range(size.layers))
        self.head = Head(size, self.embeddings.word)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.embeddings.word.weight[0].zero_()

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        """Return logits [batch, seq, vocab] for token ids and types, i64[batch, seq] each."""
        x = self.embeddings(ids, types)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits
