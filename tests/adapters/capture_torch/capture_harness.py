"""Runs a step eagerly and as a captured program, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from maniple.capture.torch import Captured, PromoteFloat64, capture, describe_change, signature
from maniple.kernels.torch import compile_program

torch.set_num_threads(1)

Step = Callable[..., Any]


class Runner:
    """The captured step on one device; captures anew when the signature or a guard changes."""

    def __init__(self, step: Step, bound: Sequence[Any], *, promote: bool = False) -> None:
        self.step, self.bound, self.promote = step, tuple(bound), promote
        self.compiled: list[tuple[Captured, Any]] = []
        self.changes: list[str] = []
        self.seed = 0

    def find(self, args: Sequence[Any]) -> tuple[Captured, Any]:
        """Return a capture that is right for this call."""
        now = signature(self.step, self.bound, args)
        for captured, body in self.compiled:
            if captured.signature == now and not captured.broken_guard():
                return captured, body
        if self.compiled:
            self.changes.append(describe_change(self.compiled[-1][0].signature, now))
        captured = capture(self.step, self.bound, args, promote_float64=self.promote)
        self.compiled.append((captured, compile_program(captured.program)))
        return self.compiled[-1]

    def __call__(self, *args: Any) -> Any:
        """Run one step and write its state back."""
        captured, body = self.find(args)
        values: dict[str, Any] = {**captured.state(), **captured.batch.tensors(args)}
        values |= {name: torch.tensor(value, dtype=torch.float64) for name, value in captured.hyperparameters().items()}
        values["seed"] = torch.tensor(self.seed, dtype=torch.int64)
        self.seed += 1
        with torch.no_grad():
            made = body(*(values[item.name].detach() for item in captured.program.inputs))
        outputs = {item.name: value for item, value in zip(captured.program.outputs, made, strict=True)}
        left_out = captured.left_out(outputs)
        for name, slot in captured.slots.items():
            if name in left_out:
                continue
            slot.set(outputs[name].clone())
        captured.note_step()
        return captured.result.rebuild(outputs)


def all_state(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return copies of parameters, buffers and optimizer state by name."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    found = {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}
    for parameter, state in optimizer.state.items():
        found |= {f"{key}.{names[parameter]}": value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
    return found


def assert_close(name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Fail unless two tensors have one type and agree, relative to the larger norm."""
    assert got.dtype == expected.dtype, f"{name}: {got.dtype} is not {expected.dtype}"
    assert got.shape == expected.shape, f"{name}: {got.shape} is not {expected.shape}"
    away = (got.double() - expected.double()).norm().item()
    size = max(expected.double().norm().item(), 1e-3)
    assert away <= tolerance * size, f"{name} is off by {away / size:.3e}"


def assert_same_training(  # one call says everything about a case
    make: Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer]],
    step: Step,
    batches: Sequence[tuple[Any, ...]],
    *,
    tolerance: float = 1e-12,
    between: Callable[[torch.optim.Optimizer, int], None] | None = None,
    num_captures: int = 2,
    promote: bool = False,
) -> Runner:
    """Train twice from the same state, eagerly and captured, in float64; compare results and all state after each step."""
    torch.manual_seed(0)
    module, optimizer = make()
    eager_module, eager_optimizer = copy.deepcopy((module, optimizer))
    runner = Runner(step, (module, optimizer), promote=promote)
    for number, batch in enumerate(batches):
        with PromoteFloat64() if promote else nullcontext():
            expected = step(eager_module, eager_optimizer, *batch)
        got = runner(*batch)
        assert_same_result(got, expected, tolerance)
        expected_state, state = all_state(eager_module, eager_optimizer), all_state(module, optimizer)
        assert state.keys() == expected_state.keys()
        for name, value in expected_state.items():
            assert_close(f"step {number}: {name}", state[name], value, tolerance)
        for item in (optimizer, eager_optimizer):
            if between:
                between(item, number)
    assert len(runner.compiled) == num_captures, runner.changes
    return runner


def assert_same_result(got: Any, expected: Any, tolerance: float) -> None:
    """Compare what two steps returned, leaf by leaf."""
    ours, our_spec = torch.utils._pytree.tree_flatten(got)
    theirs, their_spec = torch.utils._pytree.tree_flatten(expected)
    assert our_spec == their_spec
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert_close("result", one, other.detach(), tolerance)
        elif isinstance(other, float):
            assert abs(one - other) <= tolerance * max(abs(other), 1e-3)
        else:
            assert one == other
