"""Composites against torch.nn.functional and autograd, in float64: an oracle that knows nothing of the op table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from evaluate import assert_close, program_of, run, type_of, whole
from samples import Sample
from samples_nn import CONVOLUTIONS, NN_SAMPLES, POOLS, convolved
from torch import Tensor
from torch.nn import functional as F

from maniple.base.types import TensorType
from maniple.ir.program import Attr, Output, Program
from maniple.ops import CATALOG, Builder, definition


def call(name: str, *operands: Tensor, like: TensorType | None = None, decomposed: bool = False, **attrs: Attr) -> list[Tensor]:
    """Return the results of one op of the table through the kernels, or of its decomposition."""
    builder = Builder(CATALOG, prefix="a")
    values = [builder.fresh(type_of(operand)) for operand in operands]
    builder.emit(name, values, like, **attrs)
    (op,) = builder.ops
    program = program_of(op)
    if decomposed:
        inner = Builder(CATALOG, prefix="d")
        decompose = definition(name).decompose
        assert decompose is not None
        outputs = tuple(Output(value, value.name) for value in decompose(inner, op))
        program = Program(program.inputs, tuple(inner.ops), outputs)
    return run(program, operands)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def backward(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return the gradients of `function` by autograd."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    return list(torch.autograd.grad(function(*leaves), leaves, grad))


both_ways = pytest.mark.parametrize("decomposed", [False, True], ids=["kernel", "decomposed"])


@both_ways
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("s", "t"), [(5, 5), (4, 7), (7, 4), (1, 1), (130, 70)])
def test_attention(s: int, t: int, *, causal: bool, masked: bool, decomposed: bool) -> None:
    q, k, v, g = draw(2, 3, s, 4), draw(2, 3, t, 4, seed=1), draw(2, 3, t, 4, seed=2), draw(2, 3, s, 4, seed=3)
    mask = draw(2, 3, s, t, seed=4)
    mask[..., : t // 2] += -1e4
    extra = (mask,) if masked else ()
    bias = mask if masked else torch.zeros(s, t, dtype=torch.float64)
    if causal:
        bias = bias.masked_fill(~torch.ones(s, t, dtype=torch.bool).tril(), -torch.inf)

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.7)

    attrs = {"causal": causal, "scale": 0.7}
    out, lse = call("attention", q, k, v, *extra, decomposed=decomposed, **attrs)
    assert_close([out], [oracle(q, k, v)])
    assert_close([lse], [torch.logsumexp(torch.einsum("bhse,bhte->bhst", q, k) * 0.7 + bias, -1)])
    grads = call("attention_grad", g, q, k, v, out, lse, *extra, decomposed=decomposed, **attrs)
    assert_close(grads, backward(oracle, (q, k, v), g))


@both_ways
def test_attention_row_without_keys_is_zero(*, decomposed: bool) -> None:
    q, k, v, g = (draw(1, 2, 3, 4, seed=seed) for seed in range(4))
    mask = torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    mask[:, :, 1] = -torch.inf
    attrs = {"causal": False, "scale": 0.5}
    out, lse = call("attention", q, k, v, mask, decomposed=decomposed, **attrs)
    assert (out[:, :, 1] == 0).all()
    assert (lse[:, :, 1] == 0).all()
    gq, gk, gv = call("attention_grad", g, q, k, v, out, lse, mask, decomposed=decomposed, **attrs)
    assert (gq[:, :, 1] == 0).all()
    kept = [0, 2]

    def oracle(k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q[:, :, kept], k, v, scale=0.5)

    assert_close([gk, gv], backward(oracle, (k, v), g[:, :, kept]))


@both_ways
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax(dim: int, *, decomposed: bool) -> None:
    x, g = draw(4, 5, 3) * 30, draw(4, 5, 3, seed=1)
    for name, function in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        (y,) = call(name, x, dim=dim, decomposed=decomposed)
        assert_close([y], [function(x, dim)])
        (dx,) = call(f"{name}_grad", g, y, dim=dim, decomposed=decomposed)
        assert_close([dx], backward(lambda x, of=function: of(x, dim), (x,), g))


@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_cross_entropy(ignore_index: int) -> None:
    x, labels = draw(7, 5), torch.tensor([0, 2, 4, 2, 1, 3, 0])
    if ignore_index < 0:
        labels[3] = ignore_index

    def oracle(x: Tensor) -> Tensor:
        return F.cross_entropy(x, labels, ignore_index=ignore_index, reduction="none")

    (logs,) = call("log_softmax", x, dim=1)
    (picked,) = call("pick", logs, labels, ignore_index=ignore_index)
    assert_close([-picked], [oracle(x)])
    g = draw(7, seed=1)
    (dlogs,) = call("pick_grad", -g, labels, like=type_of(x), ignore_index=ignore_index)
    (dx,) = call("log_softmax_grad", dlogs, logs, dim=1)
    assert_close([dx], backward(oracle, (x,), g))


@pytest.mark.parametrize("padding_idx", [-1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_embedding(padding_idx: int, dtype: torch.dtype) -> None:
    table, ids, g = draw(5, 4), torch.tensor([[0, 2, 4], [2, 2, 1]], dtype=dtype), draw(2, 3, 4, seed=1)

    def oracle(table: Tensor) -> Tensor:
        return F.embedding(ids, table, padding_idx=None if padding_idx < 0 else padding_idx)

    assert_close(call("embedding", table, ids), [oracle(table)])
    grads = call("embedding_grad", g, ids, like=type_of(table), padding_idx=padding_idx)
    assert_close(grads, backward(oracle, (table,), g))


@both_ways
@pytest.mark.parametrize(("shape", "rank"), [((5, 4), 1), ((2, 3, 4, 5), 2), ((6,), 1), ((3, 4), 2)])
def test_layer_norm(shape: tuple[int, ...], rank: int, *, decomposed: bool) -> None:
    inner, dims = shape[len(shape) - rank :], tuple(range(-rank, 0))
    x, w, bias, g = draw(*shape) + 3, draw(*inner, seed=1), draw(*inner, seed=2), draw(*shape, seed=3)

    def oracle(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, inner, w, bias, 1e-3)

    y, mean, rstd = call("layer_norm", x, w, bias, eps=1e-3, decomposed=decomposed)
    expected = [oracle(x, w, bias), x.mean(dims), (x.var(dims, unbiased=False) + 1e-3).rsqrt()]
    assert_close([y, mean, rstd], expected)
    grads = call("layer_norm_grad", g, x, mean, rstd, w, decomposed=decomposed)
    assert_close(grads, backward(oracle, (x, w, bias), g))


@both_ways
@pytest.mark.parametrize("shape", [(5, 4), (4, 3, 5), (2, 3, 4, 5), (2, 1, 2, 3, 2)])
def test_batch_norm(shape: tuple[int, ...], *, decomposed: bool) -> None:
    channels, dims = shape[1], tuple(d for d in range(len(shape)) if d != 1)
    x, w, bias, g = draw(*shape) + 3, draw(channels, seed=1), draw(channels, seed=2), draw(*shape, seed=3)

    def oracle(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, w, bias, training=True, eps=1e-3)

    y, mean, rstd, variance = call("batch_norm", x, w, bias, eps=1e-3, decomposed=decomposed)
    biased = x.var(dims, unbiased=False)
    assert_close([y, mean, rstd, variance], [oracle(x, w, bias), x.mean(dims), (biased + 1e-3).rsqrt(), biased])
    grads = call("batch_norm_grad", g, x, mean, rstd, w, decomposed=decomposed)
    assert_close(grads, backward(oracle, (x, w, bias), g))


@both_ways
def test_activations(*, decomposed: bool) -> None:
    x, g = draw(4, 5) * 3, draw(4, 5, seed=1)
    for approximate in ("none", "tanh"):
        attrs = {"approximate": approximate, "decomposed": decomposed}

        def gelu(x: Tensor, how: str = approximate) -> Tensor:
            return F.gelu(x, approximate=how)

        assert_close(call("gelu", x, **attrs), [gelu(x)])
        assert_close(call("gelu_grad", g, x, **attrs), backward(gelu, (x,), g))
    assert_close(call("silu", x, decomposed=decomposed), [F.silu(x)])
    assert_close(call("silu_grad", g, x, decomposed=decomposed), backward(F.silu, (x,), g))


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case: tuple[int | tuple[int, ...], ...]) -> None:
    batch, channels, out, groups, space, kernel, stride, padding, dilation = case
    function = (F.conv1d, F.conv2d, F.conv3d)[len(space) - 1]
    x, w = draw(batch, channels, *space), draw(out, channels // groups, *kernel, seed=1)
    g = draw(batch, out, *convolved(space, kernel, stride, padding, dilation), seed=2)

    def oracle(x: Tensor, w: Tensor) -> Tensor:
        return function(x, w, None, stride, padding, dilation, groups)

    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    assert_close(call("convolution", x, w, **attrs), [oracle(x, w)])
    dx, dw = backward(oracle, (x, w), g)
    assert_close(call("convolution_grad_input", g, w, like=type_of(x), **attrs), [dx])
    assert_close(call("convolution_grad_weight", g, x, like=type_of(w), **attrs), [dw])


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_max_pool(case: tuple[tuple[int, ...] | bool, ...]) -> None:
    shape, kernel, stride, padding, dilation, ceil_mode = case
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    x = draw(*shape)

    def oracle(x: Tensor) -> Tensor:
        return function(x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)

    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    y, indices = call("max_pool", x, **attrs)
    assert_close([y], [oracle(x)])
    assert_close([x.flatten(2).gather(2, indices.flatten(2)).reshape(y.shape)], [y])
    g = draw(*y.shape, seed=1)
    assert_close(call("max_pool_grad", g, x, indices, **attrs), backward(oracle, (x,), g))


@pytest.mark.parametrize("sample", NN_SAMPLES, ids=str)
def test_operands_of_any_strides(sample: Sample) -> None:
    values = sample.draw()
    expected = whole(sample, values)
    turned = [value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else value for value in values]
    assert_close(whole(sample, turned), expected)
    for number, value in enumerate(values):
        if value.is_floating_point():
            repeated = value.flatten()[:1].reshape((1,) * value.dim()).expand(value.shape)
            one, other = list(values), list(values)
            one[number], other[number] = repeated, repeated.contiguous()
            assert_close(whole(sample, one), whole(sample, other))


def is_conditioned(sample: Sample) -> bool:
    """Return whether no statistic is that of one element, whose deviation of 0 magnifies every rounding by 1 / sqrt(eps)."""
    first = sample.operands[0].type.num_elements
    if sample.name.startswith("layer_norm"):
        return sample.operands[-1].type.num_elements > 1
    return not sample.name.startswith("batch_norm") or first > sample.operands[-1].type.num_elements


LOW_SAMPLES = [
    sample
    for sample in NN_SAMPLES
    if (definition(sample.name).decompose or "convolution" in sample.name or "embedding" in sample.name) and is_conditioned(sample)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sample", LOW_SAMPLES, ids=str)
def test_low_precision_is_near(sample: Sample, dtype: torch.dtype) -> None:
    kept = {"attention_grad": {5}, "layer_norm_grad": {2, 3}, "batch_norm_grad": {2, 3}}.get(sample.name, set())
    low = [
        value.to(torch.float32 if number in kept else dtype) if value.is_floating_point() else value
        for number, value in enumerate(sample.draw())
    ]
    expected = whole(sample, [value.double() if value.is_floating_point() else value for value in low])
    like = None if sample.like is None else TensorType(type_of(low[0]).dtype, sample.like.shape)
    for decomposed in (False, True) if definition(sample.name).decompose else (False,):
        actual = call(sample.name, *low, like=like, decomposed=decomposed, **sample.attrs)
        assert all(one.dtype in {dtype, torch.float32} for one in actual)
        assert_close([one.double() for one in actual], expected, tolerance=20 * torch.finfo(dtype).eps)
