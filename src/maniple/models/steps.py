"""Training steps, as anybody writes them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from maniple.models.workload import Batch


def train_language_model(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict `y` from `x`, token by token; return the loss, rank 0."""
    logits = model(batch["x"])
    loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_masked_language_model(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict the masked tokens; return the loss over those, rank 0."""
    logits = model(batch["input_ids"], batch["token_type_ids"])
    loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_mixture(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict `y` from `x`, token by token, and route evenly; return the loss, rank 0. The weight is that of Jiang et al. 2024."""
    logits, uneven = model(batch["x"])
    loss: Tensor = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten()) + 0.02 * uneven
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_recurrent(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict `y` from `x`, token by token, with gradients clipped to norm 5 (Zaremba et al. 2014); return the loss, rank 0."""
    logits = model(batch["x"])
    loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_sequence_to_sequence(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Write `y` after reading `x`; return the loss, rank 0."""
    logits = model(batch["x"], batch["y"])
    loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_recommender(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict whether a user clicks, `y`; return the loss, rank 0."""
    loss = F.binary_cross_entropy_with_logits(model(batch["dense"], batch["categories"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_classifier(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """Predict class `y` of `x`, or of each of its pixels; return the loss, rank 0."""
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
