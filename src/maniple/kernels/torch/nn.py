"""Composites and lookups on PyTorch: the framework's fused kernels.

What the fused kernels do not take (empty tensors, other devices for CPU flash attention, low precision with wide statistics) is written out
here; which of the two is chosen depends on local shapes and dtypes and is settled when the body is made, where it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.kernels.torch import nn_functions as functions
from maniple.kernels.torch.emit import Emit, dtype, full, literal, offset, scalar


def _filled(kind: TensorType, value: float = 0) -> str:
    return full(scalar(value, kind.dtype), kind)


def _zeros(op: Op) -> str:
    """Return zeros for every result."""
    filled = [_filled(result.type) for result in op.results]
    return filled[0] if len(filled) == 1 else f"({', '.join(filled)})"


def _has_empty(op: Op) -> bool:
    """Return whether an operand or result has no elements."""
    return any(value.type.num_elements == 0 for value in (*op.operands, *op.results))


def _or_zeros(emit: Emit) -> Emit:
    """Return `emit`, except for ops of which an operand or result is empty: those give zeros."""
    return lambda op, x: _zeros(op) if _has_empty(op) else emit(op, x)


def _indices(op: Op, expression: str) -> str:
    """Return the expression of operand 1 as i64."""
    return expression if op.operands[1].type.dtype == "i64" else f"{expression}.long()"


def _embedding(op: Op, x: Sequence[str]) -> str:
    ids = _indices(op, x[1])
    if len(x) == 2:
        return f"torch.embedding({x[0]}, {ids})"
    return f"embedding_shard({x[0]}, {ids}, {x[2]})"


def _embedding_grad(op: Op, x: Sequence[str]) -> str:
    rows, padding = op.results[0].type.shape[0], op.integer("padding_idx")
    ids = _indices(op, x[1])
    if len(x) == 2:
        return f"torch.ops.aten.embedding_dense_backward.default({x[0]}, {ids}, {rows}, {padding}, False)"
    return f"embedding_shard_grad({x[0]}, {ids}, {rows}, {padding}, {x[2]})"


def _pick(op: Op, x: Sequence[str]) -> str:
    return f"pick({x[0]}, {_indices(op, x[1])}, {op.integer('ignore_index')}, {offset(x, 2)}, is_shard={literal(len(x) == 3)})"


def _pick_grad(op: Op, x: Sequence[str]) -> str:
    width = op.results[0].type.shape[-1]
    where = f"{op.integer('ignore_index')}, {offset(x, 2)}, is_shard={literal(len(x) == 3)}"
    return f"pick_grad({x[0]}, {_indices(op, x[1])}, {width}, {where})"


def _cross_entropy_grad(op: Op, x: Sequence[str]) -> str:
    return f"cross_entropy_grad({x[0]}, {_indices(op, x[1])}, {x[2]}, {op.integer('ignore_index')})"


def _adam(_op: Op, x: Sequence[str]) -> str:
    return f"adam({', '.join(x[:4])}, ({', '.join(x[4:-3])}), ({', '.join(x[-3:])}))"


def _attention_attrs(op: Op) -> str:
    return f"causal={literal(op.attr('causal'))}, scale={literal(op.attr('scale'))}"


def _attention(op: Op, x: Sequence[str]) -> str:
    mask = x[3] if len(x) == 4 else "None"
    return f"attention({x[0]}, {x[1]}, {x[2]}, {mask}, {_attention_attrs(op)})"


def _attention_grad(op: Op, x: Sequence[str]) -> str:
    mask = x[6] if len(x) == 7 else "None"
    return f"attention_grad({', '.join(x[:6])}, {mask}, {_attention_attrs(op)})"


def _softmax(name: str) -> Emit:
    return lambda op, x: f"torch.{name}({x[0]}, {op.integer('dim')})"


def _softmax_grad(name: str) -> Emit:
    def emit(op: Op, x: Sequence[str]) -> str:
        return f"torch.{name}({x[0]}, {x[1]}, {op.integer('dim')}, {dtype(op.results[0].type.dtype)})"

    return emit


def _eps(op: Op) -> float:
    eps = op.attr("eps")
    assert isinstance(eps, int | float)
    return float(eps)


def _empty_rstd(op: Op) -> float:
    """Return the reciprocal standard deviation of nothing."""
    return _eps(op) ** -0.5 if _eps(op) > 0 else math.inf if _eps(op) == 0 else math.nan


def _layer_norm(op: Op, x: Sequence[str]) -> str:
    y, mean, rstd = (result.type for result in op.results)
    if y.num_elements == 0:
        return f"({_filled(y)}, {_filled(mean)}, {_filled(rstd, _empty_rstd(op))})"
    return f"layer_norm({x[0]}, {x[1]}, {x[2]}, {literal(_eps(op))})"


def _layer_norm_grad(_op: Op, x: Sequence[str]) -> str:
    return f"layer_norm_grad({', '.join(x)})"


def _batch_norm(op: Op, x: Sequence[str]) -> str:
    y, mean, rstd, variance = (result.type for result in op.results)
    if y.num_elements == 0:
        return f"({_filled(y)}, {_filled(mean)}, {_filled(rstd, _empty_rstd(op))}, {_filled(variance)})"
    return f"batch_norm({x[0]}, {x[1]}, {x[2]}, {literal(_eps(op))})"


def _batch_norm_grad(_op: Op, x: Sequence[str]) -> str:
    return f"batch_norm_grad({', '.join(x)})"


def _activation(name: str) -> Emit:
    def emit(op: Op, x: Sequence[str]) -> str:
        attrs = f", approximate={literal(op.attr('approximate'))}" if "gelu" in name else ""
        return f"torch.ops.aten.{name}.default({', '.join(x)}{attrs})"

    return emit


def _convolution_attrs(op: Op) -> str:
    stride, padding, dilation = (literal(op.ints(name)) for name in ("stride", "padding", "dilation"))
    output_padding = literal((0,) * len(op.ints("stride")))
    return f"{stride}, {padding}, {dilation}, False, {output_padding}, {op.integer('groups')}"


def _convolution(op: Op, x: Sequence[str]) -> str:
    return f"torch.convolution({x[0]}, {x[1]}, None, {_convolution_attrs(op)})"


def _convolution_grad_input(op: Op, x: Sequence[str]) -> str:
    shape = literal(op.results[0].type.shape)
    like = f"{x[0]}.new_empty(()).expand({shape})"  # only its shape is read
    arguments = f"{x[0]}, {like}, {x[1]}, None, {_convolution_attrs(op)}, (True, False, False)"
    return f"torch.ops.aten.convolution_backward.default({arguments})[0]"


def _convolution_grad_weight(op: Op, x: Sequence[str]) -> str:
    shape = literal(op.results[0].type.shape)
    like = f"{x[0]}.new_empty(()).expand({shape})"  # only its shape is read
    arguments = f"{x[0]}, {x[1]}, {like}, None, {_convolution_attrs(op)}, (False, True, False)"
    return f"torch.ops.aten.convolution_backward.default({arguments})[1]"


def _window(op: Op) -> tuple[int, str]:
    """Return the number of spatial dims that PyTorch's kernel has (one is run as two), and the window as its arguments."""
    window = [op.ints(name) for name in ("kernel", "stride", "padding", "dilation")]
    if len(window[0]) == 1:
        window = [(plain, *size) for plain, size in zip((1, 1, 0, 1), window, strict=True)]
    return len(window[0]), ", ".join([*(literal(size) for size in window), literal(op.attr("ceil_mode"))])


def _max_pool(op: Op, x: Sequence[str]) -> str:
    space, window = _window(op)
    if op.results[0].type.rank == 3:
        return f"tuple(y.squeeze(2) for y in torch.ops.aten.max_pool2d_with_indices.default({x[0]}.unsqueeze(2), {window}))"
    return f"torch.ops.aten.max_pool{space}d_with_indices.default({x[0]}, {window})"


def _max_pool_grad(op: Op, x: Sequence[str]) -> str:
    space, window = _window(op)
    if op.results[0].type.rank == 3:
        g, values, indices = (f"{item}.unsqueeze(2)" for item in x)
        return f"torch.ops.aten.max_pool2d_with_indices_backward.default({g}, {values}, {window}, {indices}).squeeze(2)"
    return f"torch.ops.aten.max_pool{space}d_with_indices_backward.default({x[0]}, {x[1]}, {window}, {x[2]})"


def _sum_window(op: Op) -> tuple[int, str]:
    """Return the number of spatial dims that PyTorch's average pooling has, and the window with 1 for the divisor."""
    window = [op.ints(name) for name in ("kernel", "stride", "padding")]
    if len(window[0]) == 1:
        window = [(plain, *size) for plain, size in zip((1, 1, 0), window, strict=True)]
    return len(window[0]), ", ".join([*(literal(size) for size in window), literal(op.attr("ceil_mode")), "True", "1"])


def _sum_pool(op: Op, x: Sequence[str]) -> str:
    space, window = _sum_window(op)
    if op.results[0].type.rank == 3:
        return f"torch.ops.aten.avg_pool2d.default({x[0]}.unsqueeze(2), {window}).squeeze(2)"
    return f"torch.ops.aten.avg_pool{space}d.default({x[0]}, {window})"


def _sum_pool_grad(op: Op, x: Sequence[str]) -> str:
    space, window = _sum_window(op)
    shape = op.results[0].type.shape
    g, like = (f"{x[0]}.unsqueeze(2)", (*shape[:2], 1, *shape[2:])) if len(shape) == 3 else (x[0], shape)
    values = f"{x[0]}.new_empty({literal(like)})"  # of which the kernel reads the shape
    call = f"torch.ops.aten.avg_pool{space}d_backward.default({g}, {values}, {window})"
    return f"{call}.squeeze(2)" if len(shape) == 3 else call


NN: Final[Mapping[str, Emit]] = {
    "embedding": _or_zeros(_embedding),
    "embedding_grad": _or_zeros(_embedding_grad),
    "pick": _or_zeros(_pick),
    "pick_grad": _or_zeros(_pick_grad),
    "cross_entropy_grad": _cross_entropy_grad,  # made by `fuse`
    "adam": _adam,  # made by `fuse`; its last operands are the destinations of its results
    "attention": _or_zeros(_attention),
    "attention_grad": _or_zeros(_attention_grad),
    "softmax": _or_zeros(_softmax("softmax")),
    "log_softmax": _or_zeros(_softmax("log_softmax")),
    "softmax_grad": _or_zeros(_softmax_grad("_softmax_backward_data")),
    "log_softmax_grad": _or_zeros(_softmax_grad("_log_softmax_backward_data")),
    "layer_norm": _layer_norm,
    "layer_norm_grad": _or_zeros(_layer_norm_grad),
    "batch_norm": _batch_norm,
    "batch_norm_grad": _or_zeros(_batch_norm_grad),
    "gelu": _activation("gelu"),
    "gelu_grad": _activation("gelu_backward"),
    "silu": _activation("silu"),
    "silu_grad": _activation("silu_backward"),
    "convolution": _or_zeros(_convolution),
    "convolution_grad_input": _or_zeros(_convolution_grad_input),
    "convolution_grad_weight": _or_zeros(_convolution_grad_weight),
    "max_pool": _or_zeros(_max_pool),
    "max_pool_grad": _or_zeros(_max_pool_grad),
    "sum_pool": _or_zeros(_sum_pool),
    "sum_pool_grad": _or_zeros(_sum_pool_grad),
}
"""Lookups, attention, normalisations, activations, convolutions and pooling."""

NN_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "embedding_shard": functions.embedding_shard,
    "embedding_shard_grad": functions.embedding_shard_grad,
    "pick": functions.pick,
    "pick_grad": functions.pick_grad,
    "cross_entropy_grad": functions.cross_entropy_grad,
    "adam": functions.adam,
    "attention": functions.attention,
    "attention_grad": functions.attention_grad,
    "layer_norm": functions.layer_norm,
    "layer_norm_grad": functions.layer_norm_grad,
    "batch_norm": functions.batch_norm,
    "batch_norm_grad": functions.batch_norm_grad,
}
"""What those expressions call besides PyTorch itself."""
