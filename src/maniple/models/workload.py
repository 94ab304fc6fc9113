"""A workload: everything that one training step needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = dict[str, Tensor]
"""What a zoo model's step takes, by name."""

Step = Callable[[nn.Module, Optimizer, Any], Any]
"""A training step: (model, optimizer, batch) -> loss, or whatever else it returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A training step with its model, its optimizer and its data.

    Attributes:
        name: what the user called it, e.g. `gpt2:small`.
        description: one line on what it is.
        step: the training step.
        model: the model, freshly initialised.
        optimizer: over the model's parameters, without state yet.
        batch: an example batch, equal to `batches(0)`.
        batches: number of the step -> its batch; the same number gives the same batch.
        samples: tokens (language models), images or rows per batch, 0 if unknown.
        unit: what `samples` counts.
    """

    name: str
    description: str
    step: Step
    model: nn.Module
    optimizer: Optimizer
    batch: Any
    batches: Callable[[int], Any]
    samples: int = 0
    unit: str = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the sizes of every architecture say.

    Attributes:
        batch: rows of a batch unless the user says otherwise.
        seq: tokens per row unless the user says otherwise, 0 for models without a sequence.
        positions: the longest sequence that the model takes.
        lr: learning rate.
    """

    batch: int
    seq: int = 0
    positions: int = 0
    lr: float
