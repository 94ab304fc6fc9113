"""Division that rounds and remainders: bit for bit what PyTorch and Python compute, for both signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import Runner
from torch import Tensor, nn

from maniple.base.errors import CaptureError

BIG = 2**53 + 1
FLOATS = [1.0, -1.0, 0.3, -0.3, 0.7, 7.5, -7.5, 6.0, -6.0, 1e17, -1e17, 3.0000000000000004, 0.0, -0.0, math.inf, math.nan]
DIVISORS = [0.1, -0.1, 0.3, -0.7, 1.0, -2.0, 3.0, 1e-3, 0.0, math.inf, -math.inf]
INTEGERS = [BIG, -BIG, 2**62 + 3, -(2**62) - 3, 7, -7, 6, -6, 0, 1, -1]
INTEGER_DIVISORS = [1, -1, 2, -2, 3, -3, 7, 2**31 + 11]

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
}


def run(function: Callable[..., Any], *args: Any) -> Any:
    """Return what the captured `function` gives in a step."""
    model = nn.Linear(1, 1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, *args: Any) -> Any:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return function(*args)

    return Runner(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)))(*args)


def assert_same_bits(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(got.isnan(), expected.isnan())
    plain = ~expected.isnan()
    assert torch.equal(got[plain], expected[plain])
    assert torch.equal(got[plain].signbit(), expected[plain].signbit())


def every(x: Any, y: Any) -> dict[str, Any]:
    return {name: op(x, y) for name, op in OPS.items()}


def check_every(*pairs: tuple[Any, Any]) -> None:
    """Compare all ops on all pairs; what is a tensor is an argument of one step."""
    tensors = [item for pair in pairs for item in pair if isinstance(item, Tensor)]

    def function(*given: Tensor) -> list[dict[str, Any]]:
        left = iter(given)
        return [every(*(next(left) if isinstance(item, Tensor) else item for item in pair)) for pair in pairs]

    for got, (x, y) in zip(run(function, *tensors), pairs, strict=True):
        for name, expected in every(x, y).items():
            try:
                assert_same_bits(got[name], expected)
            except AssertionError as error:
                error.add_note(name)
                raise


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_floats(dtype: torch.dtype) -> None:
    check_every((torch.tensor(FLOATS, dtype=dtype)[:, None], torch.tensor(DIVISORS, dtype=dtype)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    check_every((torch.tensor(INTEGERS).to(dtype)[:, None], torch.tensor(INTEGER_DIVISORS).to(dtype)))


@pytest.mark.parametrize("number", [0.1, -0.3, 2, -3])
def test_by_a_number(number: float) -> None:
    check_every((torch.tensor(FLOATS, dtype=torch.float64), number), (torch.tensor(INTEGERS[:3]), number))


def test_of_a_number() -> None:
    x = torch.tensor([2.0, -0.1, 0.3], dtype=torch.float64)
    for one, other in zip(run(lambda x: (1 % x, 1 // x, -7.5 % x), x), (1 % x, 1 // x, -7.5 % x), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("dividend", [1.0, -1.0, 7.5, -0.3])
def test_computed_numbers(dividend: float) -> None:
    divisors = (0.1, -0.1, 2.0, -0.7)
    got = run(lambda x: [(x.item() % y, y % x.item()) for y in divisors], torch.tensor(dividend, dtype=torch.float64))
    assert got == [(dividend % y, y % dividend) for y in divisors]


def test_floor_of_a_computed_float_is_refused() -> None:
    """Torch traces `a // b` of symbolic floats as floor(a / b), which is not what Python computes: 1.0 // 0.1 is 9."""
    with pytest.raises(CaptureError, match="floor"):
        run(lambda x: x.item() // 0.1, torch.tensor(1.0))


@pytest.mark.parametrize("dividend", [BIG, -BIG, 7, -7])
def test_computed_integers(dividend: int) -> None:
    got = run(lambda x: [(x.item() // y, x.item() % y) for y in (1, 2, -3)], torch.tensor(dividend))
    assert got == [(dividend // y, dividend % y) for y in (1, 2, -3)]


def test_gradients() -> None:
    x = torch.tensor([1.0, -1.0, 7.5, -7.5], dtype=torch.float64)
    y = torch.tensor([0.3, -0.7, -2.0, 2.0], dtype=torch.float64)

    def gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        return torch.autograd.grad((x % y).sum() + torch.fmod(x, y).sum(), (x, y))

    for one, other in zip(run(gradients, x, y), gradients(x, y), strict=True):
        assert_same_bits(one, other)
