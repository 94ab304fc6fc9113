"""Acceptance: what is known to go wrong where training steps are traced, and what people write, each over four steps in float64.

Here, with two devices: hooks of tensors, modules and optimizers; both kinds of `checkpoint`; schedulers; groups and gradients that change
between steps; batch norms; double gradients; several models and optimizers; optimizers of one's own; `torch.func`; parametrizations.
Elsewhere:

- optimizers, fused, foreach and capturable: adapters/capture_torch/test_optimizers.py; groups, tied and frozen weights, clipping by norm,
  accumulation: test_training.py; clipping by value and in other ways, averaged weights, evaluation: adapters/.../test_training_steps.py;
- learning rate as an input, batch shapes and modes that take turns, what compiles again: test_parallelize.py; autocast: test_capture.py;
- gradient scalers: test_scaler.py; random numbers: test_dropout.py; classes of batches and results: adapters/.../test_records.py;
- checks of numbers: adapters/.../test_checks.py; branches, shapes of data, schedulers inside and all else that is refused by name:
  adapters/.../test_refusals.py, test_results.py, test_outside.py, regressions/test_surroundings.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, jacrev, jvp, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler
from torch.utils.checkpoint import checkpoint
from training_harness import Batch, Net, assert_same, batch_of, made, train_step

import maniple

Bound = Sequence[Any]
Between = Callable[[Bound, int, Any], object]


def compare(
    bound: Bound, step: Any = train_step, between: Between | None = None, rows: Sequence[int] = (12,) * 4, prepare: Any = None
) -> maniple.Step:
    """Train twice from one state, eagerly and on two devices.

    Copies have no hooks and schedulers: `prepare(bound)` makes them on both; `between(bound, number, result)` is done after each step.
    """
    ours, theirs = bound, copy.deepcopy(bound)
    for each in (ours, theirs) if prepare else ():
        prepare(each)
    run = maniple.parallelize(step, *ours, strategy="dp=2")
    for number, size in enumerate(rows):
        batch = batch_of(number, size)
        got, expected = run(batch), step(*theirs, batch)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        if between:
            between(ours, number, got)
            between(theirs, number, expected)
        assert_same(stateful(ours), stateful(theirs))  # type: ignore[arg-type]  # as many as there are
    return run


def stateful(bound: Bound) -> tuple[Any, ...]:
    return tuple(item for item in bound if isinstance(item, nn.Module | Optimizer))


def tensor_hook(bound: Bound) -> None:
    bound[0].fc.weight.register_hook(lambda grad: grad * 0.5)


def post_accumulate_hook(bound: Bound) -> None:
    def clamp(parameter: Any) -> None:
        parameter.grad.clamp_(-0.01, 0.01)

    bound[0].fc.weight.register_post_accumulate_grad_hook(clamp)


def forward_hooks(bound: Bound) -> None:
    bound[0].fc.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    bound[0].fc.register_forward_hook(lambda _module, _args, made: made * 2)


def backward_hooks(bound: Bound) -> None:
    bound[0].norm.register_full_backward_pre_hook(lambda _module, grads: (grads[0] * 3,))
    bound[0].head.register_full_backward_hook(lambda _module, grads, _out: (grads[0] * 0.5,))


def optimizer_hooks(bound: Bound) -> None:
    def halve(optimizer: Any, _args: object, _kwargs: object) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    def shrink(optimizer: Any, _args: object, _kwargs: object) -> None:
        with torch.no_grad():
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.mul_(0.9)

    bound[1].register_step_pre_hook(halve)
    bound[1].register_step_post_hook(shrink)


@pytest.mark.parametrize("hook", [tensor_hook, post_accumulate_hook, forward_hooks, backward_hooks, optimizer_hooks])
def test_hooks(hook: Callable[[Bound], None]) -> None:
    found = [made(None, SGD), made(None, SGD)]
    compare(found[0], prepare=hook)
    compare(found[1])
    assert any(not torch.allclose(a, b) for a, b in zip(found[0][0].parameters(), found[1][0].parameters(), strict=True))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool | None, rate: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 10), nn.Dropout(rate), nn.Tanh())
        self.head, self.reentrant = nn.Linear(10, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.inner(x))
        return self.head(checkpoint(self.inner, x.requires_grad_(self.reentrant), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    compare(made(Checkpointed(reentrant=reentrant, rate=0.0)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_with_dropout_has_the_mask_of_the_forward_pass(reentrant: bool) -> None:
    found = []
    for kind in (reentrant, None):
        torch.manual_seed(0)
        model, optimizer = made(Checkpointed(reentrant=kind, rate=0.5))
        step = maniple.parallelize(train_step, model, optimizer, strategy="dp=2")
        torch.manual_seed(3)
        found.append([*(step(batch_of(number)) for number in range(3)), *model.parameters()])
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.1),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=3),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 4, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-1, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 6),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.5),
    "sequential": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]),
    "chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)]),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=10.0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str) -> None:
    def prepare(bound: Bound) -> None:
        schedulers[id(bound[1])] = SCHEDULERS[name](bound[1])

    def schedule(bound: Bound, number: int, _loss: Any) -> None:
        before = [dict(group) for group in bound[1].param_groups]
        schedulers[id(bound[1])].step(*([float(number)] if name == "plateau" else []))  # as if the loss rose
        changes.append(any(group["lr"] != was["lr"] for group, was in zip(bound[1].param_groups, before, strict=True)))

    schedulers: dict[int, Any] = {}
    changes: list[bool] = []
    run = compare(made(None, SGD, momentum=0.9), between=schedule, rows=(12,) * 5, prepare=prepare)
    assert any(changes)
    assert len(run.compiled) == 2  # the first step makes the optimizer's state


def add_group(bound: Bound, number: int, _result: object) -> None:
    if number == 1:
        bound[0].head.requires_grad_(requires_grad=True)
        bound[1].add_param_group({"params": bound[0].head.parameters(), "lr": 0.05})


def test_a_group_that_is_added() -> None:
    model = made()[0]
    model.head.requires_grad_(requires_grad=False)  # type: ignore[operator, union-attr]  # or its gradients would outlive the step
    compare((model, AdamW([*model.fc.parameters(), *model.norm.parameters()], lr=0.01)), between=add_group)  # type: ignore[union-attr, operator, misc]


def toggle(bound: Bound, number: int, _result: object) -> None:
    bound[0].fc.requires_grad_(number % 2 == 1)


def test_parameters_frozen_and_thawed() -> None:
    assert len(compare(made(None, Adam), between=toggle, rows=(12,) * 5).compiled) <= 4


def eval_of(norm: nn.Module) -> nn.Module:
    return norm.eval().requires_grad_(requires_grad=False)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(10),
    "cumulative": lambda: nn.BatchNorm1d(10, momentum=None),
    "without statistics": lambda: nn.BatchNorm1d(10, track_running_stats=False),
    "without weights": lambda: nn.BatchNorm1d(10, affine=False),
    "frozen": lambda: eval_of(nn.BatchNorm1d(10)),
    "group norm": lambda: nn.GroupNorm(2, 10),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 10), NORMS[name](), nn.Linear(10, 4))
    compare(made(model, SGD, momentum=0.9))


def evaluate_in_turns(bound: Bound, number: int, _result: object) -> None:
    bound[0].train(number % 2 == 1)


def test_train_and_eval_mode_in_turns() -> None:
    compare(made(nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 4)), SGD), between=evaluate_in_turns)


def test_average_outside_of_the_step() -> None:
    def average(bound: Bound, _number: int, _result: object) -> None:
        held = averages.setdefault(id(bound[0]), [p.detach().clone() for p in bound[0].parameters()])
        torch._foreach_lerp_(held, [p.detach() for p in bound[0].parameters()], 0.1)

    averages: dict[int, list[Tensor]] = {}
    compare(made(), between=average)
    torch.testing.assert_close(*averages.values(), rtol=1e-9, atol=1e-12)


def test_average_inside_of_the_step() -> None:
    def step(model: nn.Module, average: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = train_step(model, optimizer, batch)
        with torch.no_grad():
            for mine, new in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(new, 0.1)
        return loss

    model, optimizer = made()
    compare((model, copy.deepcopy(model).requires_grad_(requires_grad=False), optimizer), step)


def test_two_models_that_compete() -> None:
    def step(one: nn.Module, other: nn.Module, first: Optimizer, second: Optimizer, batch: Batch) -> dict[str, Tensor]:
        second.zero_grad()
        fake = one(batch["x"])
        loss = F.softplus(-other(batch["x"])).mean() + F.softplus(other(torch.cat([fake.detach(), batch["x"][:, :2]], 1))).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        fooled = F.softplus(-other(torch.cat([fake, batch["x"][:, :2]], 1))).mean()
        fooled.backward()
        first.step()
        second.zero_grad()
        first.zero_grad()
        return {"one": fooled.detach(), "other": loss.detach()}

    (one, first), (other, second) = made(None, Adam), made(nn.Linear(6, 1), Adam)
    compare((one, other, first, second), step)


def test_penalty_on_gradients() -> None:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> tuple[Tensor, Tensor]:
        x = batch["x"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        penalty = (slope.norm(dim=-1) - 1).square().mean()
        (F.cross_entropy(model(x), batch["y"]) + penalty).backward()
        optimizer.step()
        optimizer.zero_grad()
        return penalty.detach(), slope.detach()

    compare(made(), step)


def test_closure() -> None:
    def step(model: nn.Module, optimizer: Any, batch: Batch) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            return loss

        loss: Tensor = optimizer.step(closure)
        optimizer.zero_grad()
        return loss.detach()

    compare(made(), step)


class Lion(Optimizer):
    """An optimizer of one's own, as its paper writes it (Chen and others 2023)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            (one, two), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                parameter.data.mul_(1 - lr * group["weight_decay"])
                parameter.add_(state["exp_avg"].mul(one).add(parameter.grad, alpha=1 - one).sign_(), alpha=-lr)
                state["exp_avg"].mul_(two).add_(parameter.grad, alpha=1 - two)
        return closure and closure()


def test_optimizer_of_ones_own() -> None:
    compare(made(None, Lion))


def penalised(penalty: Callable[[nn.Module, Tensor], Tensor]) -> Any:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = F.cross_entropy(model(batch["x"]), batch["y"]) + penalty(model, batch["x"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def of_each_row(model: nn.Module, x: Tensor) -> Tensor:
    parameters = dict(model.named_parameters())
    return vmap(lambda row: functional_call(model, parameters, (row,)))(x).square().mean()


FUNCTIONAL: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functional_call": lambda model, x: functional_call(model, dict(model.named_parameters()), (x,)).square().mean(),
    "vmap": of_each_row,
    "jacrev": lambda model, x: vmap(jacrev(model))(x).square().mean(),
    "jvp": lambda model, x: jvp(model, (x,), (torch.ones_like(x),))[1].square().mean(),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functions_of_functions(name: str) -> None:
    compare(made(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))), penalised(FUNCTIONAL[name]))


def test_gradients_of_each_row() -> None:
    def step(model: nn.Module, batch: Batch) -> Tensor:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        gradients, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(parameters, batch["x"], batch["y"])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(gradients[name].clamp(-0.1, 0.1).mean(0), alpha=0.1)
        return losses.mean()  # type: ignore[no-any-return]

    compare((made()[0],), step)


@pytest.mark.parametrize("parametrize", [parametrizations.orthogonal, parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrizations(parametrize: Callable[[nn.Module], nn.Module]) -> None:
    model = Net()
    parametrize(model.fc)
    compare(made(model))


def test_the_last_batch_is_smaller_than_the_number_of_devices() -> None:
    model, optimizer = made()
    theirs = copy.deepcopy((model, optimizer))
    step = maniple.parallelize(train_step, model, optimizer, strategy="dp=4 zero=1")
    for number, rows in enumerate((8, 8, 3, 8, 3)):
        batch = batch_of(number, rows)
        torch.testing.assert_close(step(batch), train_step(*theirs, batch), rtol=1e-10, atol=1e-12)
        assert_same((model, optimizer), theirs)
    assert len(step.compiled) == 3  # the first step makes the optimizer's state
