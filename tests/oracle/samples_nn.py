"""Sample ops of the neural-network rows: lookups, attention, normalisations, activations, convolutions, pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from samples import Sample, f, i, sample
from torch import Tensor
from torch.nn import functional as F

from maniple.base.types import TensorType

Prepare = Callable[[list[Tensor]], list[Tensor]]


def like(*shape: int) -> TensorType:
    return TensorType("f64", shape)


def lookups() -> Iterator[Sample]:
    for rows, width, ids in ((5, 4, (3, 2)), (4, 1, (5,)), (2, 5, (1, 5)), (1, 2, (2, 2, 1)), (7, 3, ())):
        index = i(*ids, low=0, high=rows)
        yield sample("embedding", f(rows, width), index)
        for padding in (-1, rows // 2):
            yield sample("embedding_grad", f(*ids, width), index, like=like(rows, width), padding_idx=padding)
    for shape, ignored in (((5, 4), -100), ((5, 5), 2), ((2, 5), -1), ((1, 3), 0), ((4, 1), 5), ((2, 3, 5), 1), ((4, 2), 0)):
        labels = i(*shape[:-1], low=min(0, ignored) if ignored >= -1 else 0, high=shape[-1])
        yield sample("pick", f(*shape), labels, ignore_index=ignored)
        yield sample("pick_grad", f(*shape[:-1]), labels, like=like(*shape), ignore_index=ignored)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """Return the masked, scaled scores, written plainly."""
    scores = torch.einsum("bhse,bhte->bhst", q, k) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        s, t = scores.shape[-2:]
        scores = scores.masked_fill(torch.arange(s)[:, None] < torch.arange(t), -torch.inf)
    return scores


def attention_state(*, causal: bool, scale: float) -> Prepare:
    def prepare(values: list[Tensor]) -> list[Tensor]:
        g, q, k, v, _, _, *mask = values
        scores = attention_weights(q, k, mask[0] if mask else None, causal=causal, scale=scale)
        return [g, q, k, v, scores.softmax(-1) @ v, scores.logsumexp(-1), *mask]

    return prepare


def attentions() -> Iterator[Sample]:
    shapes = ((5, 2, 4, 4, 3), (2, 3, 5, 5, 4), (1, 1, 2, 5, 8), (2, 5, 5, 2, 1), (4, 1, 1, 1, 2))
    for batch, heads, s, t, e in shapes:
        q, k, lse = f(batch, heads, s, e), f(batch, heads, t, e), f(batch, heads, s)
        for causal in (False, True):
            for mask in ((), (f(batch, heads, s, t),)):
                attrs = {"causal": causal, "scale": 0.6}
                yield Sample("attention", (q, k, k, *mask), attrs)
                operands = (q, q, k, k, q, lse, *mask)
                yield Sample("attention_grad", operands, attrs, prepare=attention_state(causal=causal, scale=0.6))


def softmaxes() -> Iterator[Sample]:
    for shape in ((5, 4), (2, 5, 1), (1, 2, 3, 5), (5,)):
        for dim in range(len(shape)):
            yield sample("softmax", f(*shape), dim=dim)
            yield sample("log_softmax", f(*shape), dim=dim)
            yield sample("softmax_grad", f(*shape), f(*shape, low=0, high=1), dim=dim)
            yield sample("log_softmax_grad", f(*shape), f(*shape, low=-3, high=0), dim=dim)


def layer_norm_state(rank: int) -> Prepare:
    def prepare(values: list[Tensor]) -> list[Tensor]:
        g, x, _, _, w = values
        dims = tuple(range(-rank, 0))
        variance = x.var(dims, unbiased=False)
        return [g, x, x.mean(dims), (variance + 1e-5).rsqrt(), w]

    return prepare


def layer_norms() -> Iterator[Sample]:
    for shape, rank in (((5, 4), 1), ((2, 5, 3), 1), ((4, 3, 5), 2), ((1, 2, 5), 1), ((2, 1, 2, 3), 3), ((5, 1), 1), ((6,), 1)):
        w, lead = f(*shape[len(shape) - rank :]), f(*shape[: len(shape) - rank])
        yield sample("layer_norm", f(*shape), w, w, eps=1e-5)
        operands = (f(*shape), f(*shape), lead, lead, w)
        yield replace(sample("layer_norm_grad", *operands, eps=1e-5), prepare=layer_norm_state(rank))


def batch_norm_state(values: list[Tensor]) -> list[Tensor]:
    g, x, _, _, w = values
    dims = tuple(d for d in range(x.dim()) if d != 1)
    return [g, x, x.mean(dims), (x.var(dims, unbiased=False) + 1e-5).rsqrt(), w]


def batch_norms() -> Iterator[Sample]:
    for shape in ((5, 4), (4, 5, 3), (2, 3, 4, 5), (1, 2, 5), (1, 5), (5, 1, 2, 1), (2, 2, 3, 2, 2)):
        c = f(shape[1])
        yield sample("batch_norm", f(*shape), c, c, eps=1e-5)
        yield replace(sample("batch_norm_grad", f(*shape), f(*shape), c, c, c, eps=1e-5), prepare=batch_norm_state)


def activations() -> Iterator[Sample]:
    for shape in ((5, 4), (2, 1, 5), (1,), ()):
        for approximate in ("none", "tanh"):
            yield sample("gelu", f(*shape), approximate=approximate)
            yield sample("gelu_grad", f(*shape), f(*shape), approximate=approximate)
        yield sample("silu", f(*shape))
        yield sample("silu_grad", f(*shape), f(*shape))


CONVOLUTIONS = (
    # batch, in, out, groups, space, kernel, stride, padding, dilation
    (5, 3, 4, 1, (6,), (3,), (1,), (1,), (1,)),
    (2, 4, 6, 2, (7,), (2,), (2,), (0,), (2,)),
    (2, 5, 2, 1, (6, 5), (3, 2), (2, 1), (1, 0), (1, 1)),
    (1, 3, 3, 3, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 2, 4, 2, (5, 5), (2, 2), (1, 2), (1, 1), (2, 1)),
    (4, 6, 4, 2, (5, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 10, 5, 5, (3, 3), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 2, 5, 1, (4, 3, 5), (2, 3, 2), (1, 1, 2), (0, 1, 1), (1, 1, 1)),
    (1, 1, 1, 1, (2, 2), (2, 2), (1, 1), (0, 0), (1, 1)),
)


def convolved(space: tuple[int, ...], kernel: tuple[int, ...], *window: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(space, kernel, *window, strict=True))


def convolutions() -> Iterator[Sample]:
    for batch, channels, out, groups, space, kernel, stride, padding, dilation in CONVOLUTIONS:
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        x, w = (batch, channels, *space), (out, channels // groups, *kernel)
        y = (batch, out, *convolved(space, kernel, stride, padding, dilation))
        yield sample("convolution", f(*x), f(*w), **attrs)
        yield sample("convolution_grad_input", f(*y), f(*w), like=like(*x), **attrs)
        yield sample("convolution_grad_weight", f(*y), f(*x), like=like(*w), **attrs)


POOLS = (
    # shape, kernel, stride, padding, dilation, ceil_mode
    ((5, 3, 6), (3,), (2,), (1,), (1,), False),
    ((2, 5, 7), (2,), (2,), (0,), (1,), True),
    ((4, 2, 5, 6), (3, 2), (2, 2), (1, 0), (1, 1), False),
    ((2, 5, 6, 5), (2, 3), (2, 3), (1, 1), (2, 1), True),
    ((1, 1, 2, 2), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((2, 3, 4, 5, 3), (2, 2, 2), (1, 2, 1), (0, 1, 0), (1, 1, 1), False),
)


def max_pool(x: Tensor, kernel: tuple[int, ...], *window: tuple[int, ...], ceil_mode: bool) -> tuple[Tensor, Tensor]:
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    y, indices = function(x, kernel, *window, ceil_mode=ceil_mode, return_indices=True)
    return y, indices


def pool_state(kernel: tuple[int, ...], *window: tuple[int, ...], ceil_mode: bool) -> Prepare:
    def prepare(values: list[Tensor]) -> list[Tensor]:
        g, x, _ = values
        return [g, x, max_pool(x, kernel, *window, ceil_mode=ceil_mode)[1]]

    return prepare


def pools() -> Iterator[Sample]:
    for shape, kernel, stride, padding, dilation, ceil_mode in POOLS:
        window = (stride, padding, dilation)
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
        yield Sample("max_pool", (f(*shape),), attrs)
        # the shape of the result, from PyTorch
        y = tuple(max_pool(torch.zeros(shape), kernel, *window, ceil_mode=ceil_mode)[0].shape)
        prepare = pool_state(kernel, *window, ceil_mode=ceil_mode)
        yield Sample("max_pool_grad", (f(*y), f(*shape), i(*y, low=0, high=1)), attrs, prepare=prepare)


NN_SAMPLES: tuple[Sample, ...] = (
    *lookups(), *attentions(), *softmaxes(), *layer_norms(), *batch_norms(), *activations(), *convolutions(), *pools(),
)  # fmt: skip
"""Several samples of every neural-network row."""
