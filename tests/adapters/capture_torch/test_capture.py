"""Names, origins, guards and random numbers of captured steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from capture_harness import Runner, assert_same_training
from capture_models import VOCABULARY, Gpt, Mlp
from torch import Tensor, nn

from maniple.capture.torch import Captured, capture, describe_change, signature
from maniple.ir import parse_program, print_program

Model, Optimizer = Any, torch.optim.Optimizer


def step(model: Model, optimizer: Optimizer, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["x"])
    loss = F.mse_loss(logits, batch["y"])
    loss.backward()  # here
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def batch(rows: int = 4) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 6), "y": torch.randn(rows, 3)}


def captured(model: nn.Module, optimizer: Optimizer) -> Captured:
    return capture(step, (model, optimizer), (batch(),))


def test_names_and_kinds() -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    runner = Runner(step, (model, optimizer))
    for _ in range(2):
        runner(batch())
    first, steady = (entry[0] for entry in runner.compiled)
    parameters = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    created = [f"optimizer.{key}.{name}" for name in parameters for key in ("step", "exp_avg", "exp_avg_sq")]
    rest = {"lr.0": "hyperparameter", "betas.0.0": "hyperparameter", "betas.0.1": "hyperparameter", "batch.x": "batch", "batch.y": "batch"}
    kinds = {item.name: item.kind for item in first.program.inputs}
    assert kinds == dict.fromkeys(parameters, "parameter") | rest
    assert list(first.created) == created
    kinds = {item.name: item.kind for item in steady.program.inputs}
    assert kinds == dict.fromkeys(parameters, "parameter") | dict.fromkeys(created, "optimizer") | rest
    assert steady.created == ()
    for entry in (first, steady):
        assert [item.name for item in entry.program.outputs] == [*parameters, *created, "result"]
        assert [name for name, _ in entry.program.gradients] == parameters


def test_text_form_parses_back() -> None:
    model = Mlp()
    text = print_program(captured(model, torch.optim.AdamW(model.parameters())).program)
    assert print_program(parse_program(text)) == text


def test_gradients_are_those_before_clipping() -> None:
    model = Mlp()
    program = captured(model, torch.optim.SGD(model.parameters(), lr=0.1)).program
    phases = {op.results[0]: op.phase for op in program.ops}
    assert {phases[value] for _, value in program.gradients} == {"backward"}


def test_origins() -> None:
    model = Gpt()

    def language(model: Model, optimizer: Optimizer, ids: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    program = capture(language, (model, torch.optim.AdamW(model.parameters())), (torch.zeros(2, 5, dtype=torch.int64),)).program
    assert all(op.location and op.location.line for op in program.ops)
    forward = [op for op in program.ops if op.name == "gelu"]
    backward = [op for op in program.ops if op.name == "gelu_grad"]
    assert [op.location.scope for op in forward] == ["blocks.0", "blocks.1"]
    assert [op.location for op in backward] == [op.location for op in reversed(forward)]
    assert {op.phase for op in backward} == {"backward"}
    assert forward[0].location.file.endswith("capture_models.py")
    first = program.ops[0].location
    phases = [op.phase for op in program.ops]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    (line,) = {op.location.line for op in program.ops if op.phase == "update"}
    assert line == language.__code__.co_firstlineno + 4
    assert first.scope == "wte"


def test_scopes_of_leaf_modules() -> None:
    model = Mlp()
    program = captured(model, torch.optim.SGD(model.parameters(), lr=0.1)).program
    scopes = [op.location.scope for op in program.ops if op.name == "dot_general" and op.phase == "forward"]
    assert scopes == ["fc1", "fc2"]


def test_several_modules_and_optimizers_are_told_apart() -> None:
    def adversarial(generator: Model, critic: Model, opt_g: Optimizer, opt_c: Optimizer, x: Tensor) -> dict[str, Tensor]:
        loss_c = critic(generator(x).repeat(1, 2).detach()).mean()
        loss_c.backward()
        opt_c.step()
        opt_c.zero_grad()
        loss_g = -critic(generator(x).repeat(1, 2)).mean()
        loss_g.backward()
        opt_g.step()
        opt_g.zero_grad()
        opt_c.zero_grad()
        return {"c": loss_c, "g": loss_g}

    one, other = Mlp(), Mlp()
    opts = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(other.parameters())
    made = capture(adversarial, (one, other, *opts), (torch.randn(4, 6),))
    names = {item.name for item in (*made.program.inputs, *made.program.outputs)}
    assert {"generator.fc1.weight", "critic.fc1.weight", "opt_g.lr.0", "opt_c.betas.0.0", "batch"} <= names
    assert {"opt_g.momentum_buffer.generator.fc1.weight", "opt_c.exp_avg.critic.fc2.bias", "result.c", "result.g"} <= names


@pytest.mark.parametrize(("change", "words"), [
    (lambda m, o, b: b.update(batch(6)), "`batch.x` was float32[4,6], is float32[6,6]"),
    (lambda m, o, b: b.update(extra=1), "structure of the batch"),
    (lambda m, o, b: m.eval(), "`model.training` was True, is False"),
    (lambda m, o, b: m.drop.eval(), "`drop.training` was True, is False"),
    (lambda m, o, b: setattr(m.drop, "p", 0.5), "`drop.p` was 0.0, is 0.5"),
    (lambda m, o, b: m.fc1.weight.requires_grad_(requires_grad=False), "`fc1.weight` was float32[8,6] requires_grad, is float32[8,6]"),
    (lambda m, o, b: setattr(m.fc1, "weight", nn.Parameter(m.fc1.weight.clone())), "the objects that hold parameters and state are others"),
    (lambda m, o, b: m.double(), "`fc1.weight` was float32"),
    (lambda m, o, b: o.param_groups[0].update(weight_decay=0.5), "`optimizer.param_groups[0]['weight_decay']` was 0.01, is 0.5"),
    (lambda m, o, b: o.state[m.fc1.weight].update(step=torch.tensor(1.0)), "`optimizer.step.fc1.weight` is new"),
    (lambda m, o, b: o.add_param_group({"params": [nn.Parameter(torch.ones(2))]}), "`optimizer.params.1.0` is new"),
])  # fmt: skip
def test_signature_tells_what_changed(change: Any, words: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    example = batch()
    old = signature(step, (model, optimizer), (example,))
    assert hash(old) == hash(signature(step, (model, optimizer), (example,)))
    change(model, optimizer, example)
    new = signature(step, (model, optimizer), (example,))
    assert new != old
    assert words in describe_change(old, new)
    assert not describe_change(old, old)


def test_lr_and_betas_are_no_guards() -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    old = signature(step, (model, optimizer), (batch(),))
    optimizer.param_groups[0].update(lr=0.5, betas=(0.5, 0.5))
    assert signature(step, (model, optimizer), (batch(),)) == old


def test_question_about_a_hyperparameter_is_a_guard() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)
    made = captured(model, optimizer)
    assert "momentum.0" in {item.name for item in made.program.inputs}
    assert not made.broken_guard()
    optimizer.param_groups[0]["momentum"] = 0.9
    assert "momentum.0" in made.broken_guard()


def test_momentum_that_begins_later() -> None:
    def between(optimizer: Optimizer, number: int) -> None:
        optimizer.param_groups[0]["momentum"] = 0.0 if number < 1 else 0.8 + number / 100

    def make() -> tuple[nn.Module, Optimizer]:
        model = Mlp().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = [({name: value.double() for name, value in batch().items()},) for _ in range(5)]
    assert_same_training(make, step, batches, between=between, num_captures=3)


def test_one_cycle_schedule() -> None:
    torch.manual_seed(0)
    schedulers: dict[int, Any] = {}

    def between(optimizer: Optimizer, number: int) -> None:
        if id(optimizer) not in schedulers:
            schedulers[id(optimizer)] = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
        if number:
            schedulers[id(optimizer)].step()

    def make() -> tuple[nn.Module, Optimizer]:
        model = Mlp().double()
        return model, torch.optim.AdamW(model.parameters())

    batches = [({name: value.double() for name, value in batch().items()},) for _ in range(5)]
    assert_same_training(make, step, batches, between=between)


def test_frozen_and_unused_parameters() -> None:
    class Partly(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.fc1.weight.requires_grad_(requires_grad=False)
            self.scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    def make() -> tuple[nn.Module, Optimizer]:
        model = Partly().double()
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    batches = [({name: value.double() for name, value in batch().items()},) for _ in range(3)]
    runner = assert_same_training(make, step, batches)
    program = runner.compiled[-1][0].program
    assert [name for name, _ in program.gradients] == ["fc1.bias", "fc2.weight", "fc2.bias"]
    values = {item.name: item.value for item in program.inputs}
    outputs = {item.name: item.value for item in program.outputs}
    for name in ("fc1.weight", "unused.weight", "scale"):
        assert outputs[name] is values[name]


def test_average_of_parameters_in_a_buffer() -> None:
    class Averaged(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(3))
            self.register_buffer("replaced", torch.zeros(3))

    def averaging(model: Model, optimizer: Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
        loss = step(model, optimizer, {"x": x, "y": y})
        with torch.no_grad():
            model.average.lerp_(model.fc2.bias, 0.1)
            model.replaced = 0.5 * model.replaced + model.fc2.bias.detach()
        return loss.detach(), {"lr": optimizer.param_groups[0]["lr"], "loss": loss.item(), "name": "a", "list": [None, model.average.sum()]}

    def make() -> tuple[nn.Module, Optimizer]:
        model = Averaged().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = [tuple(value.double() for value in batch().values()) for _ in range(3)]
    assert_same_training(make, averaging, batches, num_captures=1)


def test_constants_that_only_the_code_holds() -> None:
    weights, one = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)

    def weighted(model: Model, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = ((model(x) - y) ** 2 * weights * one).mean() * torch.tensor(0.5, dtype=x.dtype)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def make() -> tuple[nn.Module, Optimizer]:
        model = Mlp().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = [tuple(value.double() for value in batch().values()) for _ in range(2)]
    runner = assert_same_training(make, weighted, batches, num_captures=1)
    made = runner.compiled[0][0]
    assert [item.name for item in made.program.inputs if item.name.startswith("constant")] == ["constant.0", "constant.1"]
    assert all(made.slots[f"constant.{at}"].get() is value for at, value in enumerate((weights, one)))


class TestDropout:
    def run(self, model: nn.Module, seed: int = 0) -> tuple[Runner, list[Tensor]]:
        def masked(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
            y = F.dropout(model.fc1(x) * 0 + 1, 0.3) + 0 * F.dropout(model.fc1(x), 0.3)
            loss = (y * model.fc1.weight.sum()).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return y

        runner = Runner(masked, (model, torch.optim.SGD(model.parameters(), lr=0.0)))
        runner.seed = seed
        return runner, [runner(torch.randn(2000, 6)) for _ in range(2)]

    def test_rate_and_scale(self) -> None:
        _, (first, second) = self.run(Mlp())
        for mask in (first, second):
            kept = (mask != 0).double().mean().item()
            assert abs(kept - 0.7) < 4 * (0.21 / mask.numel()) ** 0.5
            assert torch.allclose(mask[mask != 0], torch.tensor(1 / 0.7))
        assert not torch.equal(first, second)

    def test_draws_have_ids_of_their_own(self) -> None:
        model = Gpt(dropout=0.2)

        def language(model: Model, optimizer: Optimizer, ids: Tensor) -> Tensor:
            loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        program = capture(language, (model, torch.optim.SGD(model.parameters(), lr=0.1)), (torch.zeros(2, 5, dtype=torch.int64),)).program
        draws = [op for op in program.ops if op.name == "rng_uniform"]
        assert [op.attr("id") for op in draws] == list(range(6))
        assert {op.phase for op in draws} == {"forward"}
        assert next(item for item in program.inputs if item.kind == "rng").name == "seed"

    def test_backward_uses_the_mask_of_forward(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = nn.Parameter(torch.ones(50, 20))

        def masked(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
            y = F.dropout(model.w * x, 0.5)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return y.detach()

        model = Scaled()
        runner = Runner(masked, (model, torch.optim.SGD(model.parameters(), lr=1.0)))
        y = runner(torch.ones(50, 20))
        assert torch.equal(model.w, 1 - y)


def test_capture_leaves_the_generator_alone_when_random_numbers_are_used() -> None:
    model, example = Mlp(dropout=0.5), batch()
    before = torch.get_rng_state()
    made = capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)), (example,))
    assert "seed" in {item.name for item in made.program.inputs}
    assert torch.equal(before, torch.get_rng_state())


FACTORIES = [torch.rand_like, torch.randn_like, lambda x: torch.rand(x.shape), lambda x: torch.empty_like(x).normal_(1, 2)]


@pytest.mark.parametrize("make", FACTORIES)
def test_random_factories(make: Any) -> None:
    def noisy(model: Model, optimizer: Optimizer, x: Tensor) -> Tensor:
        noise = make(x)
        model(noise).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return noise

    model = Mlp()
    noise = Runner(noisy, (model, torch.optim.SGD(model.parameters(), lr=0.1)))(torch.zeros(3000, 6))
    torch.manual_seed(0)
    expected = make(torch.zeros(3000, 6))
    assert abs(noise.mean() - expected.mean()) < 0.08
    assert abs(noise.std() - expected.std()) < 0.06


def test_meta_and_fake_models() -> None:
    with torch.device("meta"):
        model = Mlp()
    made = captured(model, torch.optim.AdamW(model.parameters()))
    assert next(item for item in made.program.inputs if item.name == "fc1.weight").value.type.shape == (8, 6)
    with torch._subclasses.FakeTensorMode():
        fake = Mlp()
        made = capture(step, (fake, torch.optim.AdamW(fake.parameters())), (batch(),))
    assert made.created


def test_fused_and_foreach_flags_are_put_back() -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    groups = [dict(group) for group in optimizer.param_groups]
    captured(model, optimizer)
    assert [dict(group) for group in optimizer.param_groups] == groups
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    assert captured(model, fused).created
    assert fused.param_groups[0]["fused"] is True


def test_zero_grad_to_zeros() -> None:
    def zeroing(model: Model, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    def make() -> tuple[nn.Module, Optimizer]:
        model = Mlp().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = [tuple(value.double() for value in batch().values()) for _ in range(3)]
    assert_same_training(make, zeroing, batches, num_captures=1)


def test_autocast() -> None:
    def mixed(model: Model, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def make() -> tuple[nn.Module, Optimizer]:
        model = Mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    assert_same_training(make, mixed, [tuple(batch().values()) for _ in range(3)], tolerance=2e-2, num_captures=1)
