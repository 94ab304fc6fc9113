"""Rows of the ATen table, each with its gradient, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from capture_harness import assert_same_training
from torch import Tensor, nn


class Holder(nn.Module):
    """One parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4, 6))


def index() -> Tensor:
    return torch.tensor([2, 0, -1])


ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "abs": lambda w, x: w.abs(),
    "add alpha": lambda w, x: torch.add(w, x, alpha=2),
    "sub alpha": lambda w, x: torch.sub(w, x[0], alpha=0.5),
    "rsub": lambda w, x: 1.5 - w,
    "broadcast": lambda w, x: w[:, :1] * x[:1] + w[0, 0, 0] * x[1, :, :1],
    "exp log": lambda w, x: (w.exp() + 1).log() + w.exp().log1p() + torch.expm1(w),
    "log2 log10": lambda w, x: (w.exp() + 1).log2() + (w.exp() + 2).log10(),
    "sin cos": lambda w, x: w.sin() * w.cos(),
    "erf": lambda w, x: torch.erf(w),
    "powers": lambda w, x: w**2 + w**3 + (w**2 + 1) ** 0.5 + (w**2 + 1) ** -0.5 + (w**2 + 1) ** -1 + (w**2 + 1) ** 1.7 + 2**w,
    "tensor power": lambda w, x: (w**2 + 1) ** x,
    "reciprocal": lambda w, x: 1 / (w**2 + 1) + (w**2 + 1).reciprocal(),
    "rsqrt": lambda w, x: torch.rsqrt(w**2 + 1),
    "clamp": lambda w, x: w.clamp(-0.5, 0.5) + w.clamp(min=0) + w.clamp(max=0.3) + torch.clamp(w, min=x),
    "maximum": lambda w, x: torch.maximum(w, x) + torch.minimum(w, x),
    "where": lambda w, x: torch.where(x > 0, w, 2.0) + torch.where(w > 0, w, x),
    "masked_fill": lambda w, x: w.masked_fill(x[0] > 0, 0.0),
    "logical": lambda w, x: w * ((x > 0) & (w < 1) | ~(x < 0.5)).to(w.dtype) * torch.logical_xor(x > 0, w > 0),
    "compare dtypes": lambda w, x: w * (torch.arange(6) > 2.5) * (torch.arange(6) == torch.arange(6.0)),
    "integer division": lambda w, x: w * (torch.arange(6) // 4) + torch.div(torch.arange(6) - 3, 2, rounding_mode="trunc"),
    "remainder": lambda w, x: w * (torch.arange(6) % 4),
    "floor ceil trunc": lambda w, x: w * (w.floor() + w.ceil() + w.trunc()),
    "sign": lambda w, x: w * w.sign(),
    "lerp": lambda w, x: torch.lerp(w, x, 0.3),
    "addcmul": lambda w, x: torch.addcmul(w, w, x, value=0.5) + torch.addcdiv(w, x, w**2 + 1, value=2),
    "activations": lambda w, x: F.relu(w) + F.leaky_relu(w, 0.1) + F.elu(w) + F.softplus(w) + F.hardtanh(w) + F.logsigmoid(w),
    "gelu silu": lambda w, x: F.gelu(w) + F.gelu(w, approximate="tanh") + F.silu(w),
    "relu6": lambda w, x: F.relu6(w),
    "mish": lambda w, x: F.mish(w),
    "selu": lambda w, x: F.selu(w),
    "hardswish": lambda w, x: F.hardswish(w),
    "hardsigmoid": lambda w, x: F.hardsigmoid(w),
    "glu": lambda w, x: F.glu(w, dim=-1),
    "isnan isfinite": lambda w, x: w * (~w.isnan()) * w.isfinite() * (~w.isinf()),
    "nan_to_num": lambda w, x: torch.nan_to_num(w),
}

VIEWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "permute": lambda w, x: w.permute(2, 0, 1) @ x.permute(2, 1, 0),
    "squeeze": lambda w, x: w[:, :1].squeeze(1) * x[:, 0].unsqueeze(1).squeeze(),
    "slices": lambda w, x: w[:, 1:3, ::2].sum() * w[..., -1] + w[1, 2, 3],
    "split": lambda w, x: torch.cat([p * (i + 1) for i, p in enumerate(w.split((1, 2, 3), -1))], -1) + torch.cat(w.chunk(2, 1)[::-1], 1),
    "unbind stack": lambda w, x: torch.stack([p * (i + 1) for i, p in enumerate(w.unbind(1))], -1),
    "repeat": lambda w, x: w.repeat(2, 1, 2).sum(0) + w.repeat_interleave(2, 2)[0],
    "expand": lambda w, x: w[:, :1].expand(3, 4, 6) * x,
    "flatten": lambda w, x: w.flatten(1).unflatten(1, (2, 12)),
    "flip": lambda w, x: w.flip(0, 2) * x,
    "windows": lambda w, x: w.unfold(-1, 3, 2)[:, :, :, :1] * x[..., ::3, None] + w.unfold(1, 2, 1).sum() + w.unfold(2, 1, 4).sum(),
    "windows side by side": lambda w, x: w.unfold(-1, 2, 2).square(),
    "memory": lambda w, x: (2 * w).as_strided((3, 2), (24, 3), 1) * (w * x).mT.as_strided((3, 6, 4), (24, 1, 6)).std(),
    "memory of one": lambda w, x: w.mean((1, 2), keepdim=True).as_strided((3, 1, 1), (1, 5, 5)) * x,
    "roll": lambda w, x: w.roll(2, -1) * x + w.roll((1, 2), (0, 1)) * x + w.roll(1),
    "pad": lambda w, x: F.pad(w, (1, 2, 0, 1)) + F.pad(w, (-1, 4, 1, 0), value=2.0),
    "tril triu": lambda w, x: w.tril() * x + w.triu(1) + w.tril(-1),
    "diagonal mask": lambda w, x: w[0] * torch.eye(4, 6, dtype=w.dtype),
    "in place": lambda w, x: (w * 1).mul_(2).add_(x).clamp_(min=0.1),
    "in place slice": lambda w, x: _fill_slice(w * 1, x),
    "outer": lambda w, x: torch.outer(w[0, 0], x[0, 0]) @ w[1].t(),
    "einsum": lambda w, x: torch.einsum("abc,adc->abd", w, x),
    "matmul": lambda w, x: w @ x.transpose(1, 2) + w[0] @ x[1].t() + (w @ x[0, 0])[..., None],
    "baddbmm": lambda w, x: torch.baddbmm(w[:, :1, :4], w, x.transpose(1, 2), beta=0.5, alpha=2),
    "dot mv": lambda w, x: torch.dot(w[0, 0], x[0, 0]) * torch.mv(w[0], x[0, 0]),
}

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sums": lambda w, x: w.sum() + w.sum(1).mean() + w.mean((0, 2), keepdim=True).sum() + w.mean(-1).sum(),
    "max": lambda w, x: w.max() + w.min() + w.amax((0, 1)).sum() + w.amin(-1, keepdim=True).sum(),
    "max dim": lambda w, x: w.max(1).values + w.min(1, keepdim=True).values[:, 0],
    "arg": lambda w, x: w * (w.argmax(-1, keepdim=True) + w.argmin(1, keepdim=True) + w.argmax()),
    "variance": lambda w, x: w.var() + w.var(1).sum() + w.std(-1, correction=0).sum() + torch.var_mean(w, 0)[0].sum(),
    "norms": lambda w, x: w.norm() + w.norm(dim=1).sum() + w.norm(p=1) + w.norm(p=float("inf")) + torch.linalg.vector_norm(w, 3),
    "cumsum": lambda w, x: w.cumsum(1) * x,
    "logsumexp": lambda w, x: w.logsumexp(-1) + w.logsumexp((0, 1)).sum(),
    "softmax": lambda w, x: w.softmax(1) * x + w.log_softmax(-1) * x,
    "any all": lambda w, x: w * (x > 1).any(-1, keepdim=True) * (x > -9).all(),
    "integer sum": lambda w, x: w * (x > 0).sum(1, keepdim=True),
    "normalize": lambda w, x: F.normalize(w, dim=-1) * x,
}

LOOKUPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda w, x: w[index()] * x,
    "index dim 1": lambda w, x: w[:, index()] * x[:, :3],
    "index pair": lambda w, x: w[index(), torch.tensor([1, 3, 1])] * x[:, 0],
    "index pair last": lambda w, x: w[:, torch.arange(3), torch.tensor([1, 5, 1])] * x[:, 0, :3],
    "index_select": lambda w, x: w.index_select(2, torch.tensor([5, 0, 5])) * x[..., :3],
    "gather": lambda w, x: w.gather(-1, torch.tensor([[[1], [2], [0], [5]]]).expand(3, 4, 1)) * x[..., :1],
    "gather many": lambda w, x: w.gather(1, torch.tensor([[[1, 2], [0, 3], [1, 1]], [[0, 0], [3, 3], [2, 1]]])),
    "gather rows": lambda w, x: w.gather(0, (x > 0).long()),
    "take_along_dim": lambda w, x: torch.take_along_dim(w, x.argmax(1, keepdim=True), 1),
    "one_hot": lambda w, x: w * F.one_hot(torch.tensor([1, 0, 3, 5]), 6),
    "scatter": lambda w, x: w.scatter(1, x.argmax(1, keepdim=True), 2.0),
    "embedding": lambda w, x: F.embedding(torch.tensor([[1, 0], [3, 3]]), w[0], padding_idx=0) * x[0, :2],
}

LAYERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda w, x: F.layer_norm(w, (6,)) * x + F.layer_norm(w, (4, 6), x[0], x[1]),
    "rms_norm": lambda w, x: F.rms_norm(w, (6,), x[0, 0]) * x + F.rms_norm(w * 2, (4, 6), eps=1e-3) * x,
    "group_norm": lambda w, x: F.group_norm(w, 2, x[0, :, 0], x[0, :, 1]) * x + F.group_norm(w, 4) * x,
    "batch_norm": lambda w, x: F.batch_norm(w, None, None, training=True) * x,
    "batch_norm eval": lambda w, x: F.batch_norm(w, x[0, :, 0], x[0, :, 1] ** 2 + 1, w[0, :, 0], w[0, :, 1]) * x,
    "conv1d": lambda w, x: F.conv1d(x, w[:2, :, :3].transpose(0, 1).reshape(2, 4, 3), w[0, 0, :2], padding=1, dilation=2),
    "conv2d groups": lambda w, x: F.conv2d(x[None].reshape(1, 4, 3, 6), w[:2, :, :2].reshape(4, 1, 2, 2), stride=2, groups=4),
    "max_pool": lambda w, x: F.max_pool2d(w, 2) * x[:, :2, :3] + F.max_pool2d(w, 3, 1, 1, ceil_mode=True).sum(),
    "avg_pool": lambda w, x: F.avg_pool2d(w, 2) + F.adaptive_avg_pool2d(w, (2, 3)) + F.adaptive_avg_pool2d(w, 1),
    "attention": lambda w, x: F.scaled_dot_product_attention(*(t.reshape(3, 2, 2, 6) for t in (w, w * 2, w + x))) * x.view(3, 2, 2, 6),
    "attention bool mask": lambda w, x: F.scaled_dot_product_attention(
        *(t.reshape(3, 2, 2, 6) for t in (w, w * 2, w + x)), attn_mask=torch.tensor([[True, False], [True, True]]), scale=0.3
    ),
    "grouped attention": lambda w, x: F.scaled_dot_product_attention(
        w.reshape(3, 4, 1, 6).expand(3, 4, 2, 6), *(t.reshape(3, 2, 2, 6) for t in (w * 2, w + x)), enable_gqa=True
    ),
    "causal math attention": lambda w, x: F.scaled_dot_product_attention(w, w * 2, w + x, is_causal=True),
}


def _fill_slice(y: Tensor, x: Tensor) -> Tensor:
    y[:, 0] = x[:, 1]
    y[:, 1:3, 2] *= 2
    y[0] = 1.0
    return y


ALL = {**ELEMENTWISE, **VIEWS, **REDUCTIONS, **LOOKUPS, **LAYERS}


@pytest.mark.parametrize("name", ALL)
def test_row(name: str) -> None:
    def step(model: Holder, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        y = ALL[name](model.w, x)
        loss = (y * torch.arange(1, y.numel() + 1, dtype=y.dtype).view(y.shape)).sum() / y.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return y.detach()

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Holder().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    torch.manual_seed(1)
    batches = [(torch.randn(3, 4, 6, dtype=torch.float64),) for _ in range(2)]
    assert_same_training(make, step, batches, num_captures=1)
