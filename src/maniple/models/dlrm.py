"""DLRM (Naumov et al. 2019, Deep Learning Recommendation Model for Personalization and Recommendation Systems)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from maniple.models.workload import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRMSize(Size):
    """Rows of each embedding table, their width, lookups per table, widths of the two perceptrons, and the number of dense features.

    The widths of `bottom` are those after each layer, the last of which is the width of the tables; `top` ends in the one logit.
    """

    tables: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    lookups: int = 1
    dense: int = 13


_KAGGLE: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18,
    15, 286181, 105, 142572,
)  # fmt: skip
"""Values of the 26 categorical features of the Criteo Kaggle data."""

_TERABYTE: Final = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976, 14, 39979771, 25641295,
    39664984, 585935, 12972, 108, 36,
)  # fmt: skip
"""The same of the Criteo Terabyte data, hashed to at most 40 million, as in MLPerf Training v1."""

SIZES: Final[Mapping[str, DLRMSize]] = MappingProxyType({
    "tiny": DLRMSize(
        tables=(64, 32, 8, 128), width=16, bottom=(32, 16), top=(64, 32, 1), lookups=2, dense=8, batch=64, lr=1.0
    ),
    "kaggle": DLRMSize(tables=_KAGGLE, width=16, bottom=(512, 256, 64, 16), top=(512, 256, 1), batch=128, lr=0.1),
    "terabyte": DLRMSize(tables=_TERABYTE, width=128, bottom=(512, 256, 128), top=(1024, 1024, 512, 256, 1), batch=2048, lr=0.1),
})  # fmt: skip


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Tables for the categories, a perceptron for the dense features, dot products of all pairs of them, a perceptron over these.

    Published without dropout; `dropout` is before the last perceptron.
    """

    first: Tensor
    second: Tensor

    def __init__(self, size: DLRMSize, dropout: float = 0.0) -> None:
        """Make the parts and initialise the tables as published: uniform within one over the root of their rows."""
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, size.width) for rows in size.tables)
        self.bottom = nn.Sequential(_perceptron((size.dense, *size.bottom)), nn.ReLU())
        count = len(size.tables) + 1
        first, second = torch.tril_indices(count, count, offset=-1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.top = _perceptron((size.width + count * (count - 1) // 2, *size.top))
        for table in self.tables:
            assert isinstance(table, nn.Embedding), "made so above"
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Return logits [batch] for dense features [batch, dense] and categories i64[batch, tables, lookups]."""
        x = self.bottom(dense)
        found = [table(categories[:, at]).sum(dim=1) for at, table in enumerate(self.tables)]
        features = torch.stack((x, *found), dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, self.first, self.second]
        logits: Tensor = self.top(self.dropout(torch.cat((x, pairs), dim=1)))
        return logits.squeeze(1)
