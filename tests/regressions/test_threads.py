"""Threads that step at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

import maniple

Batch = dict[str, Tensor]


def fit(model: nn.Module, optimizer: AdamW, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def subject() -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    return model, AdamW(model.parameters(), lr=0.01)


def batches(count: int) -> list[Batch]:
    torch.manual_seed(1)
    return [{"x": torch.randn(8, 6, dtype=torch.float64), "y": torch.randint(3, (8,))} for _ in range(count)]


def at_once(functions: list[Callable[[], object]]) -> None:
    """Run functions on threads that begin together; raise what one of them raises."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        begin.wait()
        try:
            function()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_models_of_their_own() -> None:
    """Each is traced by its thread: one at a time, for tracing takes hold of parts of PyTorch."""
    model, optimizer = subject()
    for batch in batches(3):
        fit(model, optimizer, batch)
    found = [subject() for _ in range(3)]
    kinds = [("dp=2", "realm:2"), ("dp=2 tp=2", "realm:3"), ("dp=4", "reference")]
    steps = [maniple.parallelize(fit, *item, strategy=text, engine=engine) for item, (text, engine) in zip(found, kinds, strict=True)]
    given = batches(3)  # made here: the random generator is one for all threads
    at_once([lambda step=step: [step(batch) for batch in given] for step in steps])
    for other, _ in found:
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("engine", ["realm:2", "reference"])
def test_one_model_in_one_step_and_in_two(engine: str) -> None:
    """Every step counts, whichever thread makes it; the batch is always the same, so that their order does not matter."""
    model, optimizer = subject()
    (batch,) = batches(1)
    for _ in range(9):
        fit(model, optimizer, batch)
    other = subject()
    step = maniple.parallelize(fit, *other, strategy="dp=2", engine=engine)
    second = maniple.parallelize(fit, *other, strategy="tp=2", engine=engine)
    at_once([lambda each=each: [each(batch) for _ in range(3)] for each in (step, step, second)])
    assert step.num_steps == 6
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(other[0].state_dict()[name], tensor, msg=name)
