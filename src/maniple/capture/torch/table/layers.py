"""Layers that the op set has composites for: attention, convolution, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.views import padded, sliced
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


def spatial(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one value for each spatial dim; ATen lets one stand for all."""
    found = tuple(int(value) for value in values)
    return found * (rank - 2) if len(found) == 1 else found


def _convolution_attrs(rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> dict[str, Any]:
    return {
        "stride": spatial(stride, rank), "padding": spatial(padding, rank), "dilation": spatial(dilation, rank), "groups": groups,
    }  # fmt: skip


def _with_batch(e: Emitter, x: Value, rank: int) -> Value:
    """Return values with a batch dim, which ATen lets them lack."""
    return x if x.type.rank == rank else e.reshape(x, (1, *x.type.shape))


def _fitted(e: Emitter, x: Value, y: TensorType, w: Value, attrs: dict[str, Any]) -> Value:
    """Return what a transposed convolution spreads, with zeros after it where the result is longer than it alone makes it."""
    window = zip(y.shape[2:], w.type.shape[2:], attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
    for d, (n, k, s, p, dilation) in enumerate(window, start=2):
        x = padded(e, x, d, 0, (n + 2 * p - dilation * (k - 1) - 1) // s + 1 - x.type.shape[d])
    return x


def _convolution(
    e: Emitter, x: Value, w: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, _output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    x, rank = _with_batch(e, x, w.type.rank), w.type.rank
    attrs = _convolution_attrs(rank, stride, padding, dilation, groups)
    if transposed:  # the gradient of a convolution from the result to x
        out = e.out if e.out.rank == rank else e.out.with_shape((1, *e.out.shape))
        y = e("convolution_grad_input", _fitted(e, x, out, w, attrs), w, like=out, **attrs)
    else:
        y = e("convolution", x, w, **attrs)
    if bias is not None:
        y = e("add", y, e.b.broadcast(bias, y.type.shape, (1,)))
    return e.reshape(y, e.out.shape)


def _convolution_backward(
    e: Emitter, g: Value, x: Value, w: Value, _bias_sizes: object, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, _output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    shape, rank = x.type.shape, w.type.rank
    g, x = _with_batch(e, g, rank), _with_batch(e, x, rank)
    attrs = _convolution_attrs(rank, stride, padding, dilation, groups)
    dx = dw = None
    if transposed:
        long = _fitted(e, x, g.type, w, attrs)
        if wanted[0]:
            dx = _corner(e, e("convolution", g, w, **attrs), x)
        if wanted[1]:
            dw = e("convolution_grad_weight", long, g, like=w.type, **attrs)
    else:
        dx = e("convolution_grad_input", g, w, like=x.type, **attrs) if wanted[0] else None
        dw = e("convolution_grad_weight", g, x, like=w.type, **attrs) if wanted[1] else None
    db = e.sum(g, [d for d in range(g.type.rank) if d != 1]) if wanted[2] else None
    return None if dx is None else e.reshape(dx, shape), dw, db


def _corner(e: Emitter, x: Value, like: Value) -> Value:
    """Return the first elements of each dim, so many as `like` has."""
    for d, n in enumerate(like.type.shape):
        x = sliced(e, x, d, 0, n)
    return x


LAYERS: Final[dict[str, Callable[..., Any]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
