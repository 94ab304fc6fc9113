"""What the expressions of `nn` call where one framework call is not enough. Functions of tensors; none changes an operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor


def embedding_shard(table: Tensor, ids: Tensor, start: int) -> Tensor:
    """Return rows of a table of which only rows `[start, start + len(table))` are here; 0 for the others.

    Args:
        table: `[v, d]`, v > 0.
        ids: i64 `[...]`, in the whole table.
        start: the whole table's row that is the first one here.
    """
    local = ids - start
    outside = (local < 0) | (local >= table.shape[0])
    rows = torch.embedding(table, local.masked_fill_(outside, 0))
    return rows.masked_fill_(outside.unsqueeze(-1), 0)


def embedding_shard_grad(grad: Tensor, ids: Tensor, rows: int, padding_idx: int, start: int) -> Tensor:
    """Return the gradient `[rows, d]` of the rows from `start` on; -1 for `padding_idx` is none."""
    outside = (ids < start) | (ids >= start + rows)
    if padding_idx >= 0:
        outside |= ids == padding_idx
    local = (ids - start).masked_fill_(outside, rows)  # one more row collects what belongs elsewhere
    backward = torch.ops.aten.embedding_dense_backward.default
    dtable: Tensor = backward(grad, local, rows + 1, rows, scale_grad_by_freq=False)
    return dtable[:rows]


_SAME: Final = 1e-7
"""Difference of two numbers that are one, rounded to float32."""

_ROWS_ELEMENTS: Final = 1 << 16
"""Elements that loops over rows take at a time."""


def rows_of(x: Tensor) -> int:
    """Return how many rows of `x`, which has a dim at least, such loops take at a time."""
    return max(1, _ROWS_ELEMENTS * len(x) // max(x.numel(), 1))


def _targets(labels: Tensor, width: int, ignore_index: int, start: int, *, is_shard: bool) -> tuple[Tensor, Tensor]:
    """Return labels as columns of this shard, 0 where there is none, and where there is none."""
    absent = labels == ignore_index
    if is_shard:
        absent |= (labels < start) | (labels >= start + width)
    return (labels - start).masked_fill_(absent, 0), absent


def pick(x: Tensor, labels: Tensor, ignore_index: int, start: int, *, is_shard: bool) -> Tensor:
    """Return `x[..., label]` for each label; 0 for labels to ignore, and in a shard for those outside of it.

    Args:
        x: `[..., v]`, v > 0: columns from `start` on.
        labels: i64 `[...]`.
        ignore_index: the label that counts for nothing.
        start: the whole value's column that is the first one here.
        is_shard: whether labels may lie outside of `x`; where they may not, one that does is an error.
    """
    local, absent = _targets(labels, x.shape[-1], ignore_index, start, is_shard=is_shard)
    return torch.gather(x, -1, local.unsqueeze(-1)).squeeze(-1).masked_fill_(absent, 0)


def pick_grad(grad: Tensor, labels: Tensor, width: int, ignore_index: int, start: int, *, is_shard: bool) -> Tensor:
    """Return the gradient of `pick`: `grad` at each label, 0 elsewhere."""
    local, absent = _targets(labels, width, ignore_index, start, is_shard=is_shard)
    dx = grad.new_zeros((*grad.shape, width))
    return dx.scatter_(-1, local.unsqueeze(-1), grad.masked_fill(absent, 0).unsqueeze(-1))


def cross_entropy_grad(grad: Tensor, labels: Tensor, y: Tensor, ignore_index: int) -> Tensor:
    """Return the gradient of `pick(log_softmax(logits), labels)` with respect to the logits, some rows at a time to stay in cache.

    Args:
        grad: `[n]`, of the picked values.
        labels: i64 `[n]`.
        y: `[n, v]`, the log-softmax.
        ignore_index: the label that counts for nothing.
    """
    local, absent = _targets(labels, y.shape[1], ignore_index, 0, is_shard=False)
    column = grad.masked_fill(absent, 0).unsqueeze(1)
    dx = torch.empty_like(y, memory_format=torch.contiguous_format)
    rows = max(1, _ROWS_ELEMENTS // y.shape[1])
    for out, part, g, at in zip(dx.split(rows), y.split(rows), column.split(rows), local.unsqueeze(1).split(rows), strict=True):
        torch.exp(part, out=out)
        out.mul_(g.neg())
        out.scatter_add_(1, at, g)
    return dx


def adam(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, scalars: Sequence[Tensor | float], targets: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a parameter and Adam's two averages become, by PyTorch's fused kernel where that takes the tensors.

    `m' = m + (g - m) rate1`, `v' = beta2 v + rate2 g^2`, `p' = kept p + size m' / (sqrt(v') / correction + eps)`.

    The kernel knows no such numbers but what they are made of: learning rate, decay and the number of the step. Those are found so that
    it computes the same; the step need not be whole.

    Args:
        p: the parameter.
        g: its gradient, of the same shape and dtype, as are the averages.
        m: average of gradients.
        v: average of their squares.
        scalars: rate1, beta2, rate2, correction, eps, size and, with weight decay, kept.
        targets: memory for the results, which may be that of p, m and v; None for new memory.
    """
    old = (p, m, v)
    new = tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) if to is None else to for x, to in zip(old, targets, strict=True)
    )
    for x, to in zip(old, new, strict=True):
        if to.data_ptr() != x.data_ptr():
            to.copy_(x)
    rate1, beta2, rate2, correction, eps, size, kept = *(float(x) for x in scalars), *([1.0] * (7 - len(scalars)))
    p, m, v = new
    plain = all(x.is_contiguous() and x.dtype == g.dtype for x in (g, *new)) and abs(beta2 + rate2 - 1) < _SAME
    gone = 1 - correction * correction  # beta2 to the power of the step
    if plain and g.is_floating_point() and 0 < beta2 < 1 and 0 < gone < 1 and size < 0:
        step = math.log(gone) / math.log(beta2)
        lr = -size * (1 - (1 - rate1) ** step)
        decay = {"weight_decay": (1 - kept) / lr, "amsgrad": False, "maximize": False}
        steps = [torch.tensor(step, dtype=torch.float64)]
        torch._fused_adamw_([p], [g], [m], [v], [], steps, lr=lr, beta1=1 - rate1, beta2=beta2, eps=eps, **decay)  # what fused=True calls
    else:
        m.lerp_(g, rate1)
        v.mul_(beta2).addcmul_(g, g, value=rate2)
        for p_rows, m_rows, v_rows in zip(*(x.split(rows_of(x)) if x.dim() else (x,) for x in new), strict=True):
            p_rows.mul_(kept).addcdiv_(m_rows, v_rows.sqrt().div_(correction).add_(eps), value=size)
    return p, m, v


def _wide(x: Tensor) -> Tensor:
    """Return `x` in the dtype in which sums over it are kept."""
    return x if x.dtype == torch.float64 else x.float()


def _rows(x: Tensor) -> Tensor:
    """Return `x` with the elements of its last dim side by side, as fused attention requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril_()
        scores = scores.masked_fill_(~seen, -torch.inf)
    return scores


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return out `[b,h,s,e]` and log-sum-exp `[b,h,s]` of attention; flash attention on CPU, matrix products elsewhere.

    A causal mask lets query i see keys up to i, whatever the two lengths.
    """
    if q.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
        q, k, v = _rows(q), _rows(k), _rows(v)
        out, lse = fused(q, k, v, 0.0, causal, attn_mask=None if mask is None else _rows(mask), scale=scale)
        return out, lse
    wide = _scores(_wide(q), _wide(k), mask, causal=causal, scale=scale)
    top = torch.nan_to_num(wide.amax(-1, keepdim=True), neginf=0.0)
    p = torch.exp_(wide - top)
    total = p.sum(-1, keepdim=True)
    total = total.masked_fill_(total == 0, 1)
    return (p @ _wide(v) / total).to(q.dtype), (top + total.log()).squeeze(-1)


def attention_grad(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of attention."""
    if q.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default  # noqa: SLF001
        grad, q, k, v, out = map(_rows, (grad, q, k, v, out))
        mask = None if mask is None else _rows(mask)
        gq, gk, gv = fused(grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
        return gq, gk, gv
    wide = _wide(grad)
    p = torch.exp_(_scores(_wide(q), _wide(k), mask, causal=causal, scale=scale) - lse.unsqueeze(-1))
    delta = (wide * out).sum(-1, keepdim=True)
    gs = (wide @ _wide(v).transpose(-1, -2) - delta) * p * scale
    gq, gk, gv = gs @ _wide(k), gs.transpose(-1, -2) @ _wide(q), p.transpose(-1, -2) @ wide
    return gq.to(q.dtype), gk.to(q.dtype), gv.to(q.dtype)


def layer_norm(x: Tensor, w: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and mean and rstd (f32 or f64) of the dims of `x` that `w` lacks, for `x` that is not empty."""
    y, mean, rstd = torch.native_layer_norm(x, w.shape, _wide(w).contiguous(), _wide(bias).contiguous(), eps)
    lead = x.shape[: x.dim() - w.dim()]
    return y, mean.reshape(lead), rstd.reshape(lead)


def layer_norm_grad(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias of layer normalisation, for `x` that is not empty."""
    ones = (1,) * w.dim()
    # the kernel reads all of these as if they were contiguous
    mean, rstd = (value.contiguous().reshape(*value.shape, *ones) for value in (mean, rstd))
    backward = torch.ops.aten.native_layer_norm_backward.default
    wide = _wide(w).contiguous()
    dx, dw, db = backward(grad.contiguous(), x.contiguous(), w.shape, mean, rstd, wide, wide, (True, True, True))
    return dx, dw.to(w.dtype), db.to(w.dtype)


def batch_norm(x: Tensor, w: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, mean, rstd and the biased variance of each channel, for `x` that is not empty."""
    wide = _wide(w).contiguous()
    count = x.numel() // x.shape[1]
    # with momentum 1 the running variance is the batch's unbiased one, which does not exist for one element
    means, running = (torch.zeros_like(wide), torch.zeros_like(wide)) if count > 1 else (None, None)
    y, mean, rstd = torch.native_batch_norm(x, wide, _wide(bias).contiguous(), means, running, training=True, momentum=1.0, eps=eps)
    return y, mean, rstd, torch.zeros_like(wide) if running is None else running.mul_((count - 1) / count)


def batch_norm_grad(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias of batch normalisation, for `x` that is not empty."""
    backward = torch.ops.aten.native_batch_norm_backward.default
    # the kernel reads these as if they were contiguous
    wide, mean, rstd = _wide(w).contiguous(), mean.contiguous(), rstd.contiguous()
    dx, dw, db = backward(grad, x, wide, None, None, mean, rstd, train=True, eps=0.0, output_mask=(True, True, True))
    return dx, dw.to(w.dtype), db.to(w.dtype)
