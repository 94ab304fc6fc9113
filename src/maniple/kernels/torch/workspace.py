"""What PyTorch's CPU kernels allocate beside their results: upper bounds, by ATen op.

Kernels that go element by element allocate nothing. Others copy operands that are not contiguous, work in a wider dtype, or need buffers
of their own: fused attention (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp), and convolutions, which oneDNN computes in layouts of
channels in blocks, or which PyTorch writes out as matrix products (ConvolutionMM2d.cpp). Kernels run on one thread here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_SCALARS_BYTES: Final = 64
"""Python numbers among the operands become tensors of one element."""

_PRODUCT_BYTES: Final = 36864
"""What oneDNN's matrix product needs, which gradients of strided convolutions use."""

_PARTIALS: Final = 5
"""Most copies of a convolution's weight gradient, summed at the end."""

Rule = Callable[[Sequence[Any], Sequence[Tensor]], int]
"""(arguments, results) -> bytes."""


def workspace_bytes(func: torch._ops.OpOverload, args: Sequence[Any], result: Any) -> int:
    """Return at least as many bytes as the CPU kernel of `func` allocates at one time beyond its results.

    Args:
        func: the op called.
        args: its positional arguments; tensors may be fake.
        result: what it returned.
    """
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    name = func.overloadpacket.__name__
    if name in _RULES:
        return _SCALARS_BYTES + _RULES[name](args, results)
    if func.is_view or name in _NOTHING:
        return _SCALARS_BYTES
    if torch.Tag.pointwise in func.tags:
        return _SCALARS_BYTES + _promoted(args, results)
    return _SCALARS_BYTES + _copies(args, results) + _widened(args, results)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]


def _is_low(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def _promoted(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count the copies of operands in the dtype in which operands of several dtypes meet."""
    wide = [x for x in _tensors(args) if x.dim() and x.dtype != torch.bool]
    if len({x.dtype for x in wide}) < 2:
        return 0
    size = max(x.element_size() for x in wide)
    return sum(x.numel() * size for x in wide)


def _copies(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count a copy of each operand that is not contiguous."""
    return sum(_bytes(x) for x in _tensors(args) if not x.is_contiguous())


def _widened(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count a copy in f32 of each operand of low precision."""
    return sum(4 * x.numel() for x in _tensors(args) if _is_low(x))


def _converted(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Count a copy of the operand in the dtype of the result, if that is another one."""
    x: Tensor = args[0]
    return x.numel() * results[0].element_size() if x.dtype != results[0].dtype else 0


def _matrices(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count a copy of each matrix of which neither rows nor columns lie side by side."""
    return sum(_bytes(x) for x in _tensors(args) if x.numel() and not _is_matrix(x))


def _is_matrix(x: Tensor) -> bool:
    if x.dim() < 2:
        return x.is_contiguous()
    (rows, columns), (row, column) = x.shape[-2:], x.stride()[-2:]
    return (column == 1 and row >= columns) or (row == 1 and column >= rows) or (rows == columns == 1)


def _indexed(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Count what is written in a wider dtype first."""
    return 4 * results[0].numel() + _copies(args, results) if _is_low(results[0]) else _copies(args, results)


def _layer_norm_grad(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Count partial gradients of weight and bias."""
    shape: tuple[int, ...] = tuple(args[2])
    return 16 * math.prod(shape) + _copies(args, results)


def _batch_norm(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    x: Tensor = args[0]
    copied = 2 * _bytes(x) if _is_low(x) and not x.is_contiguous() else 0
    return copied + 32 * x.shape[1] + _SCALARS_BYTES


def _batch_norm_grad(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    x: Tensor = args[1]
    return _bytes(x) * (2 if _is_low(x) else 1) + _batch_norm(args[1:], results) + _SCALARS_BYTES


def _attention_tiles(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Return how many rows of q and of k the kernel takes at a time."""
    rows = q.shape[2]
    return (256 if rows >= 768 else 64 if rows >= 192 else 32), min(512, k.shape[2])


def _wide_size(x: Tensor) -> int:
    return max(4, x.element_size())


def _attention(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count one tile of scores, its running maximum and sum, and one of the output; in low precision k and v packed as well."""
    q, k, v = (x for x in args[:3] if isinstance(x, Tensor))
    rows, columns = _attention_tiles(q, k)
    packed = rows * columns * q.element_size() + _bytes(k) + _bytes(v) if _is_low(q) else 0
    return rows * (columns + 2 + q.shape[3]) * _wide_size(q) + packed


def _attention_grad(args: Sequence[Any], _results: Sequence[Tensor]) -> int:
    """Count tiles of scores and of their gradient, and one gradient laid out anew."""
    q, k = args[1:3]
    rows, columns = _attention_tiles(q, k)
    packed = 2 * rows * columns * q.element_size() if _is_low(q) else 0
    return 2 * rows * (columns + 1) * _wide_size(q) + packed + max(_bytes(q), _bytes(k))


def _block() -> int:
    """Return how many channels oneDNN puts side by side; the last block is padded."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _blocked(x: Tensor, dims: Sequence[int], *, plain: bool = False) -> int:
    """Return the bytes of `x` with `dims` filled up to whole blocks; 0 if it has so few channels that it may stay `plain`."""
    if plain and x.shape[dims[0]] <= 3:
        return 0
    block = _block()
    return math.prod(-(-n // block) * block if d in dims else n for d, n in enumerate(x.shape)) * x.element_size()


def _columns(x: Tensor, w: Tensor, y: Tensor) -> int:
    """Return the bytes of `x` written out as a matrix of windows."""
    return x.shape[0] * math.prod(w.shape[1:]) * math.prod(y.shape[2:]) * x.element_size()


def _strided(x: Tensor, y: Tensor) -> int:
    """Return the bytes of one row of the batch without what a stride leaves out."""
    return _blocked(x[:1], (1,)) // max(math.prod(x.shape[2:]), 1) * math.prod(y.shape[2:]) + 2 * _SCALARS_BYTES


def _written_out(x: Tensor, w: Tensor) -> bool:
    """Return whether PyTorch may leave a convolution to its own kernels (`use_mkldnn` in ATen's Convolution.cpp)."""
    return x.dtype != torch.float32 or x.shape[0] == 1 or set(w.shape[2:]) == {1}


def _convolution(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    x, w, y = args[0], args[1], results[0]
    outputs = _blocked(y, (1,))
    blocked = max(_blocked(x, (1,), plain=True) + _blocked(w, (0, 1)) + outputs - _bytes(y) + _strided(x, y), outputs)
    own = _columns(x, w, y) + (_bytes(x) + _bytes(y) + _bytes(w) if args[-1] > 1 else 0)
    return _either(x, w, blocked, own) + _copies(args[:2], results)


def _convolution_grad(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    dy, x, w = args[:3]
    function = _convolution_grad_input if args[-1][0] else _convolution_grad_weight
    operands = [operand for operand in (dy, x, w) if 0 not in operand.stride()]  # one of them is there for its shape only
    return function(dy, x, w, args[-2]) + _copies(operands, results)


def _convolution_grad_input(dy: Tensor, x: Tensor, w: Tensor, groups: int) -> int:
    outputs, weights, inputs = _blocked(dy, (1,)), _blocked(w, (0, 1)), _blocked(x, (1,))
    blocked = max(outputs + weights + inputs, _bytes(x) + 2 * inputs, _bytes(x) + inputs + weights + _PRODUCT_BYTES)
    own = _bytes(x) + (_bytes(x) + _bytes(dy) + _bytes(w) if groups > 1 else 0) + (_columns(x, w, dy) + _bytes(w) if x.dim() > 4 else 0)
    return _either(x, w, blocked, own)


def _convolution_grad_weight(dy: Tensor, x: Tensor, w: Tensor, groups: int) -> int:
    blocked = _blocked(x, (1,), plain=True) + _blocked(dy, (1,)) + _blocked(w, (0, 1)) + _strided(x, dy)
    blocked = max(blocked, _PARTIALS * _bytes(w) + _bytes(x) + _bytes(dy))
    own = _columns(x, w, dy) + _bytes(w) + (_bytes(x) + _bytes(dy) + _bytes(w) if groups > 1 else 0)
    return _either(x, w, blocked, own)


def _either(x: Tensor, w: Tensor, blocked: int, own: int) -> int:
    """Return what the kernel that is chosen needs; f64 has no other choice than PyTorch's own."""
    if x.dtype == torch.float64:
        return own
    return max(blocked, own) if _written_out(x, w) else blocked


_RULES: Final[Mapping[str, Rule]] = MappingProxyType({
    "sum": _converted,
    "cumsum": _converted,
    "mm": _matrices,
    "bmm": _matrices,
    "gather": _indexed,
    "scatter_": _indexed,
    "gelu": _copies,
    "gelu_backward": _copies,
    "_softmax": _copies,
    "_log_softmax": _copies,
    "_softmax_backward_data": _copies,
    "_log_softmax_backward_data": _copies,
    "native_layer_norm": _copies,
    "native_layer_norm_backward": _layer_norm_grad,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_grad,
    "embedding_dense_backward": _copies,
    "max_pool2d_with_indices": _copies,
    "max_pool2d_with_indices_backward": _copies,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_grad,
    "convolution": _convolution,
    "convolution_backward": _convolution_grad,
})  # fmt: skip

_NOTHING: Final = frozenset({
    "amax", "amin", "any", "all", "arange", "cat", "clone", "constant_pad_nd", "copy_", "embedding", "empty", "expand", "fill_", "flip",
    "full", "index_select", "masked_fill_", "new_empty", "new_zeros", "ones", "ones_like", "slice_scatter", "tril_", "zero_", "zeros",
    "zeros_like", "_to_copy", "_unsafe_view", "lift_fresh", "lift_fresh_copy", "empty_like", "scalar_tensor",
})  # fmt: skip
"""Ops that write their result and no more."""
