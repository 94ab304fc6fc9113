"""Small inputs on which distributed training systems were reported to go wrong, with the right outcome worked out by hand.

The numbers of cases are those of the project's list; each has the repository and number of a report in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import maniple

F64 = torch.float64
Batch = dict[str, Tensor]


class Weight(nn.Module):
    """One parameter."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(value.to(F64).clone())


def run(
    loss_of: Callable[[Tensor, Batch], Any], value: Tensor, batch: Batch, strategy: str, optimizer: Callable[..., Optimizer] = SGD
) -> tuple[Any, Tensor, Tensor]:
    """Return what `loss_of` gives, the gradient of its first result's sum, and the parameter after one step."""

    def step(model: Weight, optimizer: Optimizer, batch: Batch) -> Any:
        found = loss_of(model.w, batch)
        found.sum().backward()
        gradient = model.w.grad
        assert gradient is not None
        gradient = gradient * 1
        optimizer.step()
        optimizer.zero_grad()
        return found, gradient

    model = Weight(value)
    parallel = maniple.parallelize(step, model, optimizer(model.parameters(), lr=0.1), strategy=strategy)
    found, gradient = parallel(batch)
    assert not parallel.last.plan.problems()
    return found.detach(), gradient, model.w.detach()


ONE = torch.ones((), dtype=F64)


@pytest.mark.parametrize("strategy", ["tp=4 pin:batch.x={_,tp}", "dp=4 pin:batch.x={_,dp}", "dp=4"])
def test_reshape_across_the_sharded_dim(strategy: str) -> None:
    """Case 1, pytorch#179502."""
    x = torch.arange(96, dtype=F64).view(12, 8)
    found, _, _ = run(lambda w, b: b["x"].reshape(16, 6) * w, ONE, {"x": x}, strategy)
    assert torch.equal(found, x.reshape(16, 6))


@pytest.mark.parametrize(
    ("shape", "strategy"),
    [
        ((5, 10), "dp=4"),
        ((6, 256), "dp=4"),
        ((2,), "dp=2 tp=4 pin:batch.x={dp.tp}"),
        ((2,), "dp=2 tp=4 pin:batch.x={tp.dp}"),
    ],
)
def test_uneven_and_empty_shards(shape: tuple[int, ...], strategy: str) -> None:
    """Case 2, pytorch#103306, #143372, #144109, #161368, #108869."""
    x = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=F64).view(shape)
    found, gradient, _ = run(lambda w, b: (b["x"] * w).flatten().square(), torch.ones(shape), {"x": x}, strategy)
    assert torch.equal(found, x.flatten().square())
    assert torch.equal(gradient, 2 * x.square())


@pytest.mark.parametrize("strategy", ["dp=3", *(f"tp={n} place:w={{_,tp}}" for n in (2, 4, 8)), "dp=2 tp=4 place:w={dp,tp}"])
def test_label_smoothing_over_a_divided_vocabulary(strategy: str) -> None:
    """Case 6, Megatron#737, #7464."""
    rows, columns = torch.arange(6)[:, None], torch.arange(8)[None]
    logits, labels = (3 * rows + 5 * columns) % 7 / 2, 3 * torch.arange(6) % 8
    loss, gradient, _ = run(lambda w, b: F.cross_entropy(w, b["y"], label_smoothing=0.1), logits, {"y": labels}, strategy)
    assert float(loss) == pytest.approx(3.1287028598, abs=1e-9)
    first = [-0.148783, 0.038118, 0.012706, 0.003357, 0.064198, 0.022300, 0.006887, 0.001217]
    assert gradient[0].tolist() == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("strategy", ["dp=2 zero=3", "dp=4 zero=1", "tp=2", "tp=3 place:w={tp,_}", "dp=2 tp=2 zero=3"])
def test_tied_embedding(strategy: str) -> None:
    """Case 10, torchtitan#1524, slapo#15, thunder#257, Megatron#1447."""
    table = torch.tensor([[0.1, 0.2], [0.3, -0.1], [0.0, 0.5], [-0.2, 0.4]], dtype=F64)
    batch = {"x": torch.tensor([0, 1, 1, 3]), "y": torch.tensor([1, 1, 3, 2])}

    def loss_of(w: Tensor, b: Batch) -> Tensor:
        return F.cross_entropy(F.embedding(b["x"], w) @ w.T, b["y"])

    loss, gradient, after = run(loss_of, table, batch, strategy, Adam)
    assert float(loss) == pytest.approx(1.3684361, abs=1e-7)
    assert float(gradient.norm()) == pytest.approx(0.1762089, abs=1e-7)
    assert torch.allclose(after, run(loss_of, table, batch, "", Adam)[2], rtol=1e-12)


def test_shift_by_one_row() -> None:
    """Case 13, jax#18434."""
    x = torch.arange(48, dtype=F64).view(16, 3)
    found, _, _ = run(lambda w, b: b["x"].roll(-1, 0) * w, ONE, {"x": x}, "dp=8")
    assert torch.equal(found, x.roll(-1, 0))


def test_concatenation_of_unequal_parts() -> None:
    """Case 13, jax#24576."""
    batch = {"a": torch.ones(4, dtype=F64), "b": torch.ones(12, dtype=F64)}
    found, _, _ = run(lambda w, b: torch.cat([b["a"], b["b"]]) * w, ONE, batch, "dp=4 tp=2")
    assert torch.equal(found, torch.ones(16, dtype=F64))


def test_scatter_into_one_row() -> None:
    """Case 13, pytorch#191571."""
    index = torch.zeros(8, 3, dtype=torch.long)

    def loss_of(w: Tensor, b: Batch) -> Tensor:
        return (torch.zeros(8, 3, dtype=F64).scatter_add(0, index, b["x"]) * w)[index[:, 0]]

    found, _, _ = run(loss_of, ONE, {"x": torch.ones(8, 3, dtype=F64)}, "dp=4")
    assert torch.equal(found, torch.full((8, 3), 8.0, dtype=F64))


def test_maximum_of_partial_sums() -> None:
    """Case 13, pytorch#165962."""
    x = torch.tensor([[5.0, -4.0], [-3.0, 6.0]], dtype=F64)
    found, _, _ = run(lambda w, b: (b["x"] * w).sum(0).max(), torch.ones(2), {"x": x}, "dp=2")
    assert float(found) == 2


def test_weighted_loss_with_uneven_weights() -> None:
    """Case 13, pytorch#185167."""
    batch = {
        "x": -torch.tensor([[1.0, 9.0], [1.0, 9.0], [9.0, 5.0], [9.0, 5.0]], dtype=F64),
        "y": torch.tensor([0, 0, 1, 1]),
        "class_weights": torch.tensor([1.0, 3.0], dtype=F64),
    }
    found, _, _ = run(lambda w, b: F.nll_loss(b["x"] * w, b["y"], weight=b["class_weights"]), ONE, batch, "dp=2")
    assert float(found) == pytest.approx(4.0)


@pytest.mark.parametrize("strategy", ["tp=2 place:w={tp,_}", "dp=2 zero=3", "dp=2 tp=2 place:w={tp,_}"])
def test_gradient_of_a_divided_table(strategy: str) -> None:
    """Case 13, openxla/xla#42481."""
    batch = {"ids": torch.tensor([0, 2]), "g": torch.tensor([1.0, 10.0], dtype=F64)}
    _, gradient, _ = run(lambda w, b: F.embedding(b["ids"], w)[:, 0] * b["g"], torch.zeros(4, 1), batch, strategy)
    assert gradient[:, 0].tolist() == [1, 0, 10, 0]


def test_gradient_of_dropout_is_its_mask() -> None:
    """Case 13, pytorch#190758."""
    found, gradient, _ = run(lambda w, _: F.dropout(w, 0.5), torch.ones(64, 8), {"x": torch.ones(8)}, "dp=2 tp=2 zero=3")
    assert torch.equal(found, gradient)
    assert set(found.unique().tolist()) == {0.0, 2.0}
