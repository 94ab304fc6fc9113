"""Captured steps of whole models train as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import capture_models as models
import pytest
import torch
import torch.nn.functional as F  # its usual name
from capture_harness import assert_same_training
from torch import nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def made(model: nn.Module, optimizer: str = "adamw") -> Callable[[], Any]:
    """Return a maker of the float64 model and its optimizer."""
    return lambda: (model.double(), OPTIMIZERS[optimizer](model.parameters()))


def token_batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return token ids and targets."""
    torch.manual_seed(1)
    return [tuple(torch.randint(0, models.VOCABULARY, (3, models.LENGTH)) for _ in range(2)) for _ in range(count)]  # type: ignore[misc]


def vector_batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return vectors and targets of three values."""
    torch.manual_seed(1)
    return [(torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)) for _ in range(count)]


def mse_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Zero at the end."""
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def language_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Zero at the start, clip."""
    optimizer.zero_grad()
    logits = model(ids)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_mlp(optimizer: str) -> None:
    captures = 1 if optimizer == "sgd" else 2
    assert_same_training(made(models.Mlp(), optimizer), mse_step, vector_batches(), num_captures=captures)


@pytest.mark.parametrize(("optimizer", "tolerance"), [("momentum", 1e-12), ("adamw", 1e-8)])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_gpt(checkpointed: bool, optimizer: str, tolerance: float) -> None:
    model = models.Gpt(checkpointed=checkpointed)
    runner = assert_same_training(made(model, optimizer), language_step, token_batches(), tolerance=tolerance)
    names = [item.name for item in runner.compiled[0][0].program.inputs]
    assert "wte.weight" in names
    assert "head.weight" not in names
    attentions = [op for op in runner.compiled[0][0].program.ops if op.name == "attention"]
    assert len(attentions) == len(model.blocks)


def test_llama_with_casts_to_float32() -> None:
    assert_same_training(made(models.Llama()), language_step, token_batches(), tolerance=1e-5)


def test_llama_promoted_to_float64() -> None:
    runner = assert_same_training(made(models.Llama()), language_step, token_batches(), tolerance=1e-10, promote=True)
    assert not [op for op in runner.compiled[-1][0].program.ops if any(value.type.dtype == "f32" for value in op.results)]


@pytest.mark.parametrize("masked", [False, True])
def test_bert(masked: bool) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        logits = model(batch["ids"], batch["types"], batch["mask"])
        loss = F.cross_entropy(logits.view(-1, models.VOCABULARY), batch["labels"].view(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "num_right": (logits.argmax(-1) == batch["labels"]).sum()}

    batches = []
    for ids, labels in token_batches():
        labels[:, ::2] = -100
        mask = torch.ones_like(ids) if masked else None
        if mask is not None:
            mask[0, 4:] = 0
        batches.append(({"ids": ids, "types": (ids > 5).long(), "mask": mask, "labels": labels},))
    assert_same_training(made(models.Bert()), step, batches, tolerance=1e-8)


def test_resnet() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss

    torch.manual_seed(1)
    batches = [(torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.randint(0, 5, (4,))) for _ in range(4)]
    assert_same_training(made(models.ResNet(), "momentum"), step, batches)


def test_attention_by_hand() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch.manual_seed(1)
    batches = [(torch.randn(2, 5, models.WIDTH, dtype=torch.float64),) for _ in range(3)]
    assert_same_training(made(models.AttentionByHand(), "momentum"), step, batches)


@pytest.mark.parametrize("loss_fn", [
    F.binary_cross_entropy_with_logits, F.smooth_l1_loss, F.huber_loss, F.l1_loss,
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    lambda x, y: F.cross_entropy(x, y.softmax(-1)), lambda x, y: F.softplus(x * y).mean(), F.poisson_nll_loss,
    lambda x, y: F.cross_entropy(x, y.argmax(-1), weight=torch.tensor([1.0, 2.0, 0.5], dtype=x.dtype)),
    lambda x, y: F.cosine_similarity(x, y, dim=-1).mean(),
])  # fmt: skip
def test_losses(loss_fn: Callable[..., torch.Tensor]) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_fn(model(x), y.sigmoid())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    assert_same_training(made(models.Mlp(), "momentum"), step, vector_batches(3))


def test_schedule_of_lr_and_betas() -> None:
    def between(optimizer: torch.optim.Optimizer, number: int) -> None:
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = 0.01 / (number + 1), (0.9 - 0.02 * number, 0.99 + 0.001 * number)

    assert_same_training(made(models.Mlp()), mse_step, vector_batches(), between=between)


def test_accumulated_gradients() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=x.dtype)
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.mse_loss(model(part), target) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    runner = assert_same_training(made(models.Mlp()), step, vector_batches())
    program = runner.compiled[0][0].program
    phases = [op.phase for op in program.ops if op.name == "dot_general"]
    assert phases.count("forward") == 4
    assert set(dict(program.gradients)) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_two_groups_with_hyperparameters_of_their_own() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = models.Mlp().double()
        groups = [{"params": model.fc1.parameters(), "lr": 0.1}, {"params": model.fc2.parameters(), "weight_decay": 0.1}]
        return model, torch.optim.AdamW(groups, lr=0.01)

    runner = assert_same_training(make, mse_step, vector_batches(3))
    assert {number.name for number in runner.compiled[0][0].numbers} == {f"{n}.{g}" for g in "01" for n in ("lr",)} | {
        f"betas.{g}.{at}" for g in "01" for at in "01"
    }
