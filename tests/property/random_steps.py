"""Random training steps: a recipe of ops on a batch and on parameters, drawn from a seed and replayed in each forward pass."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

F64 = torch.float64
Replay = Callable[[list[Tensor], dict[str, Tensor]], Tensor]
Draw = Callable[["Recipe", int, tuple[int, ...]], "Replay | None"]
MAX_ELEMENTS, MAX_RANK = 4000, 5


class Net(nn.Module):
    """What a recipe makes. The loss is over its last few values, so that some earlier ones are used twice and some not at all."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.weights = nn.ParameterList(recipe.weights)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        values = [batch["x"], batch["z"]]
        for replay in self.recipe.ops:
            values.append(replay([*values, *self.weights], batch))
        terms = [value.tanh().square().mean() for value in values[-4:] if value.numel()]
        return torch.stack(terms).sum(), values[-1]


@dataclass
class Recipe:
    """A recipe while it is drawn; `known` holds the values on the batch at hand."""

    rng: random.Random
    batch: dict[str, Tensor]
    known: list[Tensor] = field(default_factory=list)
    weights: list[nn.Parameter] = field(default_factory=list)
    ops: list[Replay] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def weight(self, *shape: int) -> Callable[[list[Tensor]], Tensor]:
        """Make a parameter and return how a replay finds it among values and parameters."""
        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        self.weights.append(nn.Parameter(torch.randn(shape, generator=generator, dtype=F64) * 0.4))
        number, num_values = len(self.weights) - 1, len(self.known)  # an op is replayed when there are as many values as now
        return lambda values: values[num_values + number]

    def add(self, draw: Draw) -> None:
        """Draw one op on a late value and keep it if it can be computed."""
        at = self.rng.randrange(max(0, len(self.known) - 4), len(self.known))
        num_weights = len(self.weights)
        replay = draw(self, at, tuple(self.known[at].shape))
        try:
            made = None if replay is None else replay([*self.known, *self.weights], self.batch).detach()
        except (RuntimeError, IndexError):
            made = None
        if replay is None or made is None or made.numel() > MAX_ELEMENTS or made.dim() > MAX_RANK:
            del self.weights[num_weights:]
            return
        self.ops.append(replay)
        self.text.append(f"v{len(self.known)}{list(made.shape)} = {draw.__name__}(v{at})")
        self.known.append(made)


def linear(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape or not shape[-1]:
        return None
    outputs = recipe.rng.choice([2, 3, 4, 5, 6, 8, 12])
    weight, bias = recipe.weight(outputs, shape[-1]), recipe.weight(outputs)
    return lambda values, _: F.linear(values[at], weight(values), bias(values))


def contracted(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if len(shape) != 3:
        return None
    weight = recipe.weight(3, shape[2], 4)
    text = recipe.rng.choice(["bsh,ahf->bsaf", "bsh,ahf->basf", "bsh,ahf->bsf", "bsh,ahf->baf"])
    return lambda values, _: torch.einsum(text, values[at], weight(values))


UNARY: Sequence[Callable[[Tensor], Tensor]] = (torch.tanh, torch.sigmoid, torch.sin, torch.abs, torch.square, F.gelu, F.silu, F.softplus)


def unary(recipe: Recipe, at: int, _shape: tuple[int, ...]) -> Replay:
    function = recipe.rng.choice(UNARY)
    return lambda values, _: function(values[at])


def with_weight(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay:
    sizes = list(shape[recipe.rng.randint(0, len(shape)) :])
    if sizes and recipe.rng.random() < 0.3:
        sizes[recipe.rng.randrange(len(sizes))] = 1
    weight, function = recipe.weight(*sizes), recipe.rng.choice([torch.add, torch.mul, torch.sub, torch.maximum])
    return lambda values, _: function(values[at], weight(values))


def with_earlier(recipe: Recipe, at: int, _shape: tuple[int, ...]) -> Replay:
    other, function = recipe.rng.randrange(len(recipe.known)), recipe.rng.choice([torch.add, torch.mul, torch.minimum])
    return lambda values, _: function(values[at], values[other])


def reduced(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape:
        return None
    dims = recipe.rng.sample(range(len(shape)), recipe.rng.randint(1, len(shape)))
    function = recipe.rng.choice([torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp])
    return lambda values, _: function(values[at], dims, keepdim=True)


def reshaped(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    left = math.prod(shape)
    if left < 2:
        return None
    sizes = []
    while left > 1:
        sizes.append(recipe.rng.choice([d for d in range(2, left + 1) if left % d == 0]))
        left //= sizes[-1]
    recipe.rng.shuffle(sizes)
    return lambda values, _: values[at].reshape(sizes)


def dim_split(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape or not all(shape):
        return None
    dim = recipe.rng.randrange(len(shape))
    first = recipe.rng.choice([d for d in range(1, shape[dim] + 1) if shape[dim] % d == 0])
    return lambda values, _: values[at].unflatten(dim, (first, shape[dim] // first))


def permuted(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay:
    dims = recipe.rng.sample(range(len(shape)), len(shape))
    return lambda values, _: values[at].permute(dims)


def sliced(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape or not all(shape):
        return None
    dim = recipe.rng.randrange(len(shape))
    start = recipe.rng.randrange(shape[dim])
    part = slice(start, recipe.rng.randint(start + 1, shape[dim]), recipe.rng.choice([1, 1, 2]))
    return lambda values, _: values[at][(slice(None),) * dim + (part,)]


def joined(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape:
        return None
    other, dim = recipe.rng.randrange(len(recipe.known)), recipe.rng.randrange(len(shape))
    return lambda values, _: torch.cat([values[at], values[other]], dim)


def stacked(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay:
    dim = recipe.rng.randint(0, len(shape))
    return lambda values, _: torch.stack([values[at], values[at].sin()], dim)


def along_dim(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape:
        return None
    dim, shift = recipe.rng.randrange(len(shape)), recipe.rng.randint(1, 3)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.softmax(dim), lambda x: x.log_softmax(dim), lambda x: x.cumsum(dim), lambda x: x.roll(shift, dim),
        lambda x: x.flip(dim), lambda x: x.repeat_interleave(2, dim), lambda x: x.max(dim)[0],
    ]  # fmt: skip
    function = recipe.rng.choice(functions)
    return lambda values, _: function(values[at])


def normalized(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape or shape[-1] < 2:
        return None
    weight, bias = recipe.weight(shape[-1]), recipe.weight(shape[-1])
    return lambda values, _: F.layer_norm(values[at], (shape[-1],), weight(values), bias(values))


def embedded(recipe: Recipe, _at: int, _shape: tuple[int, ...]) -> Replay:
    table = recipe.weight(7, recipe.rng.choice([4, 6, 9]))
    return lambda values, batch: F.embedding(batch["ids"], table(values))


def attended(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if len(shape) not in (3, 4):
        return None
    causal = recipe.rng.random() < 0.5
    return lambda values, _: F.scaled_dot_product_attention(values[at], values[at].sin(), values[at], is_causal=causal)


def padded(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if not shape:
        return None
    amounts = recipe.rng.randint(-1, 2), recipe.rng.randint(0, 2)
    return lambda values, _: F.pad(values[at], amounts)


def convolved(recipe: Recipe, at: int, shape: tuple[int, ...]) -> Replay | None:
    if len(shape) != 3 or shape[2] < 3:
        return None
    weight, stride = recipe.weight(recipe.rng.choice([2, 4, 5]), shape[1], 3), recipe.rng.choice([1, 2])
    return lambda values, _: F.conv1d(values[at], weight(values), stride=stride, padding=1)


DRAWS: Sequence[Draw] = (
    linear, linear, linear, contracted, unary, unary, with_weight, with_earlier, with_earlier, reduced, reshaped, dim_split, dim_split,
    permuted, sliced, joined, stacked, along_dim, along_dim, normalized, embedded, attended, padded, convolved,
)  # fmt: skip


def random_net(seed: int) -> tuple[Net, dict[str, Tensor]]:
    """Return a module and a batch for it; it has at least one parameter that the loss depends on."""
    rng = random.Random(seed)
    rows, length, width = rng.choice([4, 5, 6, 8]), rng.choice([1, 3, 4]), rng.choice([4, 6, 9, 12])
    generator = torch.Generator().manual_seed(seed)
    batch = {
        "x": torch.randn(rows, length, width, generator=generator, dtype=F64),
        "z": torch.randn(rows, width, generator=generator, dtype=F64),
        "ids": torch.randint(7, (rows, length), generator=generator),
    }
    recipe = Recipe(rng, batch, [batch["x"], batch["z"]])
    for draw in (linear, *(rng.choice(DRAWS) for _ in range(rng.randint(3, 8)))):
        recipe.add(draw)
    return Net(recipe), batch
