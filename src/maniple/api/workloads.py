"""Models by name, as the commands name them."""

from __future__ import annotations

from typing import Any

from maniple.commands import WorkloadConfig


def load(config: WorkloadConfig, *, fake: bool = False) -> Any:
    """Return the workload that `config` names, a new one at each call.

    Args:
        config: which model, and of what size.
        fake: make tensors without storage.

    Raises:
        ModelError: if there is no such model.
    """
    from maniple import models

    return models.load(
        config.model, batch=config.batch, seq=config.seq, dtype=config.dtype, dropout=config.dropout, seed=config.seed, fake=fake
    )
