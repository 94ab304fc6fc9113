"""Small inputs on which distributed training systems were reported to go wrong, with the right outcome worked out by hand.

The numbers of cases are those of the project's list; each has the repository and number of a report in its docstring. What needs no
pipeline, experts, checkpoint files or second process is covered: 1, 2, 4, 6, 8, 10, 11 and 13 here; 2's saving and loading, 10's whole
gradient, meta device and tied parameter, 11's vocabulary and 12 in test_reported_state.py.
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
from maniple.base.errors import StrategyError

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


@pytest.mark.parametrize("strategy", ["dp=4 zero=1", "dp=4 zero=3", "dp=4 tp=2 zero=2 place:w={tp,_}", "tp=4 place:w={tp,_}"])
def test_adam_on_uneven_shards(strategy: str) -> None:
    """Case 2, for gradients and optimizer state; rows split in four are 2, 2, 1 and 0."""
    x = torch.arange(50, dtype=F64).view(5, 10) / 10

    def loss_of(w: Tensor, b: Batch) -> Tensor:
        return (b["x"] * w).square().sum()

    _, gradient, after = run(loss_of, torch.ones(5, 10), {"x": x}, strategy, Adam)
    assert torch.allclose(gradient, 2 * x.square(), rtol=1e-12)
    assert torch.allclose(after, run(loss_of, torch.ones(5, 10), {"x": x}, "", Adam)[2], rtol=1e-12)


@pytest.mark.parametrize("strategy", ["", "dp=2", "dp=3 zero=2", "tp=2", "dp=2 tp=2 zero=3"])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_accumulation_is_normalised_once(times: int, strategy: str) -> None:
    """Case 4, torchtitan#2972, #1732, #4194: the parts without a pipeline."""
    x = torch.arange(1, 9, dtype=F64).view(4, 2)

    def step(model: Weight, optimizer: Optimizer, batch: Batch) -> Tensor:
        for part in batch["x"].chunk(times):
            ((part * model.w).square().sum() / batch["x"].numel()).backward()
        assert model.w.grad is not None
        gradient = model.w.grad * 1
        optimizer.step()
        optimizer.zero_grad()
        return gradient

    model = Weight(torch.ones(1))
    gradient = maniple.parallelize(step, model, SGD(model.parameters(), lr=0.1), strategy=strategy)({"x": x})
    assert gradient.tolist() == [51.0]


@pytest.mark.parametrize("strategy", ["", "dp=3", *(f"tp={n} place:w={{_,tp}}" for n in (2, 4, 8)), "dp=2 tp=4 place:w={dp,tp}"])
def test_label_smoothing_over_a_divided_vocabulary(strategy: str) -> None:
    """Case 6, Megatron#737, #7464."""
    rows, columns = torch.arange(6)[:, None], torch.arange(8)[None]
    logits, labels = (3 * rows + 5 * columns) % 7 / 2, 3 * torch.arange(6) % 8
    loss, gradient, _ = run(lambda w, b: F.cross_entropy(w, b["y"], label_smoothing=0.1), logits, {"y": labels}, strategy)
    assert float(loss) == pytest.approx(3.1287028598, abs=1e-9)
    first = [-0.148783, 0.038118, 0.012706, 0.003357, 0.064198, 0.022300, 0.006887, 0.001217]
    assert gradient[0].tolist() == pytest.approx(first, abs=1e-6)


class Blocks(nn.Module):
    """Four parameters whose gradients have the norms 3, 4, 12 and 84."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.ParameterList(nn.Parameter(torch.zeros(size, dtype=F64)) for size in (1, 2, 5))
        self.dense = nn.Parameter(torch.zeros(7, 3, dtype=F64))

    def forward(self, rows: Tensor) -> Tensor:
        norms = (3.0, 4.0, 12.0, 84.0)
        terms = [w.sum() * (norm / w.numel() ** 0.5) for w, norm in zip((*self.expert, self.dense), norms, strict=True)]
        return torch.stack(terms).sum() * rows.mean()


@pytest.mark.parametrize(
    "strategy",
    ["", "dp=2", "dp=2 zero=1", "dp=4 zero=3", "tp=2 place:dense={tp,_}", "dp=2 tp=2 zero=3 place:dense={_,tp} place:expert.2={tp}"],
)
def test_clipping_does_not_depend_on_placement(strategy: str) -> None:
    """Case 8, DeepSpeed#8475, Automodel#3816, Megatron#5916: the layouts without experts or a pipeline."""

    def step(model: Blocks, optimizer: Optimizer, batch: Batch) -> Tensor:
        model(batch["x"]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    model = Blocks()
    norm = maniple.parallelize(step, model, SGD(model.parameters(), lr=1.0), strategy=strategy)({"x": torch.ones(4, dtype=F64)})
    assert float(norm) == pytest.approx(85, rel=1e-12)
    assert [float(w.detach().norm()) for w in model.parameters()] == pytest.approx([84 / 85, 3 / 85, 4 / 85, 12 / 85], rel=1e-6)


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


@pytest.mark.parametrize("strategy", ["dp=2 tp=2 place:w={tp,_}", "tp=2 dp=2 zero=3", "dp=2 tp=3 place:w={tp,_} pin:batch.x={_,tp}"])
def test_partial_sums_become_partly_replicated(strategy: str) -> None:
    """Case 13, openxla/xla#40034: a product that is partial over one axis and split over the other."""
    x, w = torch.arange(24, dtype=F64).view(4, 6), torch.arange(30, dtype=F64).view(6, 5) - 7
    found, _, _ = run(lambda w, b: (b["x"] @ w).tanh() + b["x"] @ w, w, {"x": x}, strategy)
    assert torch.allclose(found, (x @ w).tanh() + x @ w, rtol=1e-12)


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 zero=3", "dp=2 tp=2 zero=1"])
def test_gradients_of_a_tied_weight_are_summed_over_uses_and_averaged_over_rows(strategy: str) -> None:
    """Case 13, Megatron-LM#844: gradients 1, 2, 4 and 8."""
    batch = {"first": torch.tensor([1.0, 2.0], dtype=F64), "last": torch.tensor([4.0, 8.0], dtype=F64)}
    _, gradient, _ = run(lambda w, b: (b["first"] * w + b["last"] * w).mean(), ONE, batch, strategy)
    assert float(gradient) == 7.5


@pytest.mark.parametrize("strategy", ["dp=2 zero=3", "dp=4 zero=3", "tp=3 place:w={tp,_}"])
def test_rows_that_one_device_holds_and_others_do_not_use(strategy: str) -> None:
    """Case 13, pytorch#130918: every device takes part in moving them."""
    _, gradient, _ = run(lambda w, b: (b["x"] * w[:1]).sum(), torch.ones(5, 2), {"x": torch.full((4, 2), 3.0, dtype=F64)}, strategy)
    assert gradient.tolist() == [[12.0, 12.0], *[[0.0, 0.0]] * 4]


@pytest.mark.parametrize("frozen", ["0", "2"])
@pytest.mark.parametrize("strategy", ["tp=2", "tp=3", "dp=2 tp=2 zero=3", "tp=2 sp"])
def test_frozen_parameters(strategy: str, frozen: str) -> None:
    """Case 13, pytorch#133499: the others train as if nothing was divided."""

    def trained(strategy: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        model.get_submodule(frozen).requires_grad_(requires_grad=False)

        def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
            loss = model(batch["x"]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        maniple.parallelize(step, model, Adam(model.parameters(), lr=0.1), strategy=strategy)({"x": torch.ones(4, 4, dtype=F64)})
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    got, want = trained(strategy), trained("")
    assert all(torch.allclose(got[name], want[name], rtol=1e-12) for name in want)


@pytest.mark.parametrize("strategy", ["dp=2", "tp=2", "dp=2 zero=2"])
def test_accumulated_gradients_are_averaged(strategy: str) -> None:
    """Case 13, DeepSpeed#8152: gradients 2 and 4 over two microbatches are 3."""

    def step(model: Weight, optimizer: Optimizer, batch: Batch) -> Tensor:
        for part in batch["x"].chunk(2):
            ((part * model.w).mean() / 2).backward()
        assert model.w.grad is not None
        gradient = model.w.grad * 1
        optimizer.step()
        optimizer.zero_grad()
        return gradient

    model = Weight(torch.ones(1))
    x = torch.tensor([[1.0], [3.0], [3.0], [5.0]], dtype=F64)
    gradient = maniple.parallelize(step, model, SGD(model.parameters(), lr=0.1), strategy=strategy)({"x": x})
    assert gradient.tolist() == [3.0]


class Grouped(nn.Module):
    """Eight heads over two of keys and values, head dim 4, a vocabulary that nothing divides."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 12), nn.Linear(12, vocabulary, bias=False)
        self.q, self.kv, self.o = nn.Linear(12, 32, bias=False), nn.Linear(12, 16, bias=False), nn.Linear(32, 12)

    def forward(self, batch: Batch) -> Tensor:
        x = self.embed(batch["x"])
        rows, tokens, _ = x.shape
        q = self.q(x).view(rows, tokens, 8, 4).transpose(1, 2)
        k, v = self.kv(x).view(rows, tokens, 2, 2, 4).permute(2, 0, 3, 1, 4).repeat_interleave(4, dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, tokens, 32)
        return F.cross_entropy(self.head(x + self.o(mixed)).flatten(0, 1), batch["y"].flatten())


@pytest.mark.parametrize(
    ("rows", "strategy"),
    [(4, "tp=4"), (5, "dp=4 zero=3"), (6, "dp=4"), (2, "tp=8 sp"), (5, "dp=2 tp=3 zero=1"), (3, "tp=5"), (8, "dp=8 zero=3")],
)
def test_nothing_is_dropped_where_counts_do_not_divide(rows: int, strategy: str) -> None:
    """Case 11, torchtitan#2574, transformers#48307, thunder#248: heads, vocabulary, rows; 257 words stand for 32001."""
    torch.manual_seed(0)
    batch = {name: torch.randint(257, (rows, 5)) for name in ("x", "y")}

    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss: Tensor = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = Grouped(257).double()
    twin = Grouped(257).double()
    twin.load_state_dict(model.state_dict())
    parallel = maniple.parallelize(step, model, SGD(model.parameters(), lr=0.1), strategy=strategy)
    got, want = parallel(batch), step(twin, SGD(twin.parameters(), lr=0.1), batch)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not parallel.last.plan.problems()


def test_fewer_rows_than_ways_are_refused() -> None:
    """Case 11's kind: what would leave devices without any rows by the user's own words."""
    with pytest.raises(StrategyError, match=r"more ways than batch\.x has rows: 2"):
        run(lambda w, b: (b["x"] * w).sum(), ONE, {"x": torch.ones(2, 3, dtype=F64)}, "dp=4")


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ({"x": (4, 6), "mask": (6, 6), "positions": (6,)}, 4),
        ({"mask": (1, 1, 6, 6), "positions": (1, 6), "x": (4, 6), "y": (4, 6)}, 4),
        ({"x": (6, 4), "y": (6,), "weights": (4,)}, 6),
        ({"x": (4, 4), "y": (4,)}, 4),
    ],
)
def test_rows_are_what_the_batch_has(shapes: dict[str, tuple[int, ...]], rows: int) -> None:
    """A mask of tokens by tokens, or a row of positions, is not the batch."""
    batch = {name: torch.ones(shape, dtype=F64) for name, shape in shapes.items()}

    def step(model: Weight, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = torch.stack([(value * model.w).sum() for value in batch.values()]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = Weight(ONE)
    parallel = maniple.parallelize(step, model, SGD(model.parameters(), lr=0.1), strategy="dp=2")
    assert parallel(batch).item() == sum(torch.Size(shape).numel() for shape in shapes.values())
    sharded = parallel.last.plan.sharded
    divided = {item.name.partition(".")[2] for item in sharded.program.inputs if item.kind == "batch" and item.value.layout.axes}
    assert divided == {name for name, shape in shapes.items() if shape[0] == rows}
    assert set(sharded.notes["batch"].removeprefix("rows are dim 0 of ").split(", ")) == {f"batch.{name}" for name in divided}
