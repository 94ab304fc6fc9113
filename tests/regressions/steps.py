"""Training steps on which Maniple once failed, as users write them; each is a workload of `FILE.py:FUNCTION`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, AdamW, NAdam, Optimizer

Batch = dict[str, Tensor]
Workload = tuple[Callable[..., Any], nn.Module, Optimizer, Any]


def net(outputs: int = 30) -> nn.Module:
    return nn.Sequential(nn.Linear(30, 26), nn.Tanh(), nn.Linear(26, outputs))


def rows(n: int = 6) -> Batch:
    return {"x": torch.randn(n, 30), "y": torch.randn(n, 30)}


def fit(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def first_momentum_is_gradient() -> Workload:
    """Without weight decay SGD's first momentum is the gradient itself: it has to lie as its parameter does."""
    model = net()
    return fit, model, SGD(model.parameters(), lr=0.01, momentum=0.9, dampening=0.3), rows()


def numbers_meet_constants() -> Workload:
    """NAdam multiplies a tensor that is 1 by a number made of beta: not a constant of the program."""
    model = net()
    return fit, model, NAdam(model.parameters()), rows()


def two_microbatches() -> Workload:
    """The second loss is computed after a backward pass, outside of any module: forward all the same."""

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = torch.zeros(())
        for part in range(2):
            loss = F.mse_loss(model(batch["x"][part::2]), batch["y"][part::2]) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = net()
    return step, model, SGD(model.parameters(), lr=0.01, momentum=0.9), rows()


def closure() -> Workload:
    """Forward and backward inside of the optimizer's step."""

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Any:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    model = net()
    return step, model, SGD(model.parameters(), lr=0.1), rows(7)


def gradient_is_result() -> Workload:
    """A gradient that the step returns leaves whole, though weights and their gradients stay divided."""

    def step(model: nn.Sequential, optimizer: Optimizer, batch: Batch) -> Any:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        gradient, norms = model[0].weight.grad, {name: p.grad.norm() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        return loss, gradient, norms

    model = net()
    return step, model, SGD(model.parameters(), lr=0.1), rows()


def gradient_penalty() -> Workload:
    """A gradient of the gradient: the first is taken by `autograd.grad` in the midst of forward."""

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        x = batch["x"].clone().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        loss = F.mse_loss(y, batch["y"]) + slope.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = net()
    return step, model, AdamW(model.parameters(), lr=0.01), rows()


class Rivals(nn.Module):
    """A generator and its critic."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = net(), net(1)


def update_before_second_pass() -> Workload:
    """The critic's weights change before the generator's loss is computed with them."""

    def step(model: Rivals, optimizer: Optimizer, batch: Batch) -> Any:
        fake = model.maker(batch["x"])
        first = (model.critic(batch["y"]) - 1).square().mean() + model.critic(fake.detach()).square().mean()
        gradients = torch.autograd.grad(first, list(model.critic.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.critic.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        second = (model.critic(fake) - 1).square().mean()
        second.backward(inputs=list(model.maker.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        return first, second

    model = Rivals()
    return step, model, AdamW(model.maker.parameters(), lr=0.01), rows()


class Clashes(nn.Module):
    """Parameters whose names are those that Maniple gives to its own inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.result, self.batch, self.optimizer, self.constant = (nn.Linear(30, 30) for _ in range(4))
        self.seed = nn.Parameter(torch.ones(30))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.linspace(1, 2, 30, dtype=x.dtype) * torch.tensor([1.0, 2.0] * 15, dtype=x.dtype)
        return self.constant(self.optimizer(self.batch(self.result(x)))) * self.seed * scale + 0 * torch.rand_like(x)


def names_that_clash() -> Workload:
    def step(model: Clashes, optimizer: Optimizer, batch: Batch) -> Any:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        gradient = None if model.result.weight.grad is None else model.result.weight.grad * 1
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "exp_avg": {"result.weight": gradient}}

    model = Clashes()
    return step, model, AdamW(model.parameters(), lr=0.01), rows()


class Masked(nn.Module):
    """Assignments to places chosen by masks and by strided slices."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(30, 30)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.inner(x)
        z = y.clone()
        z[y > 0.2] = 0.1
        z[mask] = torch.linspace(0, 1, 30, dtype=x.dtype)
        z[:, 1::2] = y[:, 1::2] * 2
        z[1:5:2] *= 3
        return z


def assignments() -> Workload:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss: Tensor = model(batch["x"], batch["mask"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = Masked()
    return step, model, AdamW(model.parameters(), lr=0.01), {"x": torch.randn(6, 30), "mask": torch.rand(6) > 0.5}


def weight_norms() -> Workload:
    model = nn.Sequential(weight_norm(nn.Linear(30, 26)), nn.Tanh(), weight_norm(nn.Linear(26, 30), dim=1))
    return fit, model, AdamW(model.parameters(), lr=0.01), rows(7)


def cannot_be_copied() -> Workload:
    """Old-style weight norm keeps a tensor that torch refuses to copy."""
    model = nn.Linear(30, 30)
    model.register_buffer("kept", model.weight * 2)
    return fit, model, SGD(model.parameters(), lr=0.1), rows()
