"""LSTM language model (Zaremba et al. 2014, Recurrent Neural Network Regularization, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torch import Tensor, nn

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class LSTMSize(Size):
    """Layers, units of each, vocabulary, and the range of the initial weights."""

    layers: int
    hidden: int
    vocab: int = 10000
    scale: float = 0.1


def _published(hidden: int, seq: int, scale: float) -> LSTMSize:
    return LSTMSize(layers=2, hidden=hidden, scale=scale, batch=20, seq=seq, positions=seq, lr=1.0)


SIZES: Final[Mapping[str, LSTMSize]] = MappingProxyType({
    "tiny": LSTMSize(layers=2, hidden=64, vocab=128, batch=8, seq=8, positions=32, lr=1.0),
    "small": _published(200, 20, 0.1),
    "medium": _published(650, 35, 0.05),
    "large": _published(1500, 35, 0.04),
})  # fmt: skip


class LSTM(nn.Module):
    """Embedding, LSTM layers with dropout between them but not over time, linear head."""

    def __init__(self, size: LSTMSize, dropout: float = 0.0) -> None:
        """Make the parts and initialise them as published: uniform(-scale, scale)."""
        super().__init__()
        self.embed = nn.Embedding(size.vocab, size.hidden)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(size.hidden, size.hidden, size.layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(size.hidden, size.vocab)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -size.scale, size.scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, seq, vocab] for token ids i64[batch, seq]."""
        hidden, _ = self.lstm(self.dropout(self.embed(ids)))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits
