"""Layers that the op set has composites for: attention, convolution, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter
from maniple.ir.program import Value


def _mask(e: Emitter, mask: Value | None, q: Value, k: Value) -> list[Value]:
    if mask is None:
        return []
    if mask.type.dtype == "bool":
        mask = e.select(mask, 0.0, float("-inf"), q.type.dtype)
    return [e.expand(e.cast(mask, q.type.dtype), (*q.type.shape[:3], k.type.shape[2]))]


def _heads(e: Emitter, x: Value, heads: int) -> Value:
    """Return keys or values with every head repeated for its group of queries."""
    b, h, t, size = x.type.shape
    if h == heads:
        return x
    wide = e.expand(e.reshape(x, (b, h, 1, t, size)), (b, h, heads // h, t, size))
    return e.reshape(wide, (b, heads, t, size))


def _group_sum(e: Emitter, g: Value, like: Value) -> Value:
    b, h, t, size = like.type.shape
    if g.type.shape[1] == h:
        return g
    return e.sum(e.reshape(g, (b, h, g.type.shape[1] // h, t, size)), (2,))


def _attention(
    e: Emitter, q: Value, k: Value, v: Value, dropout: float = 0.0, causal: bool = False,
    *, attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    if dropout:
        raise NotImplementedError("dropout in the fused kernel")
    factor = 1 / math.sqrt(q.type.shape[3]) if scale is None else scale
    heads = q.type.shape[1]
    operands = (q, _heads(e, k, heads), _heads(e, v, heads), *_mask(e, attn_mask, q, k))
    out, lse = e.emit("attention", operands, causal=causal, scale=float(factor))
    return out, lse


def _attention_backward(
    e: Emitter, g: Value, q: Value, k: Value, v: Value, out: Value, lse: Value, dropout: float, causal: bool,
    *, attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    if dropout:
        raise NotImplementedError("dropout in the fused kernel")
    factor = 1 / math.sqrt(q.type.shape[3]) if scale is None else scale
    heads = q.type.shape[1]
    operands = (g, q, _heads(e, k, heads), _heads(e, v, heads), out, lse, *_mask(e, attn_mask, q, k))
    gq, gk, gv = e.emit("attention_grad", operands, causal=causal, scale=float(factor))
    return gq, _group_sum(e, gk, k), _group_sum(e, gv, v)


def _spatial(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one value for each spatial dim; ATen lets one stand for all."""
    found = tuple(int(value) for value in values)
    return found * (rank - 2) if len(found) == 1 else found


def _convolution_attrs(
    x: Value, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool, groups: int
) -> dict[str, Any]:
    if transposed:
        raise NotImplementedError("transposed convolution")
    rank = x.type.rank
    return {
        "stride": _spatial(stride, rank), "padding": _spatial(padding, rank), "dilation": _spatial(dilation, rank), "groups": groups,
    }  # fmt: skip


def _convolution(
    e: Emitter, x: Value, w: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, _output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    y = e("convolution", x, w, **_convolution_attrs(x, stride, padding, dilation, transposed, groups))
    if bias is None:
        return y
    return e("add", y, e.b.broadcast(bias, y.type.shape, (1,)))


def _convolution_backward(
    e: Emitter, g: Value, x: Value, w: Value, _bias_sizes: object, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, _output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    attrs = _convolution_attrs(x, stride, padding, dilation, transposed, groups)
    dx = e("convolution_grad_input", g, w, like=x.type, **attrs) if wanted[0] else None
    dw = e("convolution_grad_weight", g, x, like=w.type, **attrs) if wanted[1] else None
    db = e.sum(g, [d for d in range(g.type.rank) if d != 1]) if wanted[2] else None
    return dx, dw, db


def _pool_attrs(
    x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil: bool
) -> dict[str, Any]:
    rank = x.type.rank
    return {
        "kernel": _spatial(kernel, rank), "stride": _spatial(stride or kernel, rank), "padding": _spatial(padding, rank),
        "dilation": _spatial(dilation, rank), "ceil_mode": ceil,
    }  # fmt: skip


def _batched(e: Emitter, x: Value) -> Value:
    """Return `x` with a batch dim, which ATen lets images lack."""
    return e.reshape(x, (1, *x.type.shape)) if x.type.rank == 3 else x


def _max_pool(
    e: Emitter, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
    ceil: bool = False,
) -> tuple[Value, ...]:  # fmt: skip
    batch = _batched(e, x)
    results = e.emit("max_pool", (batch,), **_pool_attrs(batch, kernel, stride, padding, dilation, ceil))
    return tuple(e.reshape(value, kind.shape) for value, kind in zip(results, (e.out_at(0), e.out_at(1)), strict=True))


def _max_pool_backward(
    e: Emitter, g: Value, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil: bool, indices: Value,
) -> Value:  # fmt: skip
    operands = [_batched(e, value) for value in (g, x, indices)]
    dx = e("max_pool_grad", *operands, **_pool_attrs(operands[1], kernel, stride, padding, dilation, ceil))
    return e.reshape(dx, x.type.shape)


def _even_windows(x: Value, out: TensorType) -> tuple[int, ...]:
    windows = tuple(n // m if m and n % m == 0 else 0 for n, m in zip(x.type.shape[-2:], out.shape[-2:], strict=True))
    if not all(windows):
        raise NotImplementedError("average pooling whose windows are not of one size")
    return windows


def _average_windows(e: Emitter, x: Value, out: TensorType, kernel: Sequence[int]) -> Value:
    """Return means of windows that tile the last two dims."""
    lead, (h, w) = out.shape[:-2], out.shape[-2:]
    split = e.reshape(x, (*lead, h, kernel[0], w, kernel[1]))
    rank = len(lead)
    return e.elementwise("multiply", e.sum(split, (rank + 1, rank + 3)), 1 / (kernel[0] * kernel[1]))


def _spread_windows(e: Emitter, g: Value, x: Value, kernel: Sequence[int]) -> Value:
    lead, (h, w) = g.type.shape[:-2], g.type.shape[-2:]
    part = e.elementwise("multiply", g, 1 / (kernel[0] * kernel[1]))
    wide = e.expand(e.reshape(part, (*lead, h, 1, w, 1)), (*lead, h, kernel[0], w, kernel[1]))
    return e.reshape(wide, x.type.shape)


def _adaptive_average(e: Emitter, x: Value, _size: object) -> Value:
    return _average_windows(e, x, e.out, _even_windows(x, e.out))


def _adaptive_average_backward(e: Emitter, g: Value, x: Value) -> Value:
    return _spread_windows(e, g, x, _even_windows(x, g.type))


def _tiles(x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[int, ...]:
    k = _spatial(kernel, 4)
    steps = _spatial(stride, 4) if stride else k
    if steps != k or any(padding) or any(n % m for n, m in zip(x.type.shape[-2:], k, strict=True)):
        raise NotImplementedError("average pooling whose windows overlap, are padded, or do not fill the input")
    return k


def _average(
    e: Emitter, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0), *_rest: object
) -> Value:
    return _average_windows(e, x, e.out, _tiles(x, kernel, stride, padding))


def _average_backward(
    e: Emitter, g: Value, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *_rest: object
) -> Value:
    return _spread_windows(e, g, x, _tiles(x, kernel, stride, padding))


LAYERS: Final[dict[str, Callable[..., Any]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    "aten._adaptive_avg_pool2d.default": _adaptive_average,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_average_backward,
    "aten.avg_pool2d.default": _average,
    "aten.avg_pool2d_backward.default": _average_backward,
}
