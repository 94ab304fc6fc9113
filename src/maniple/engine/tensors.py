"""What engines for PyTorch's tensors have in common: dtypes, combining partial results, outputs with memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import torch

from maniple.mesh.sharding import Pending

DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType({
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
})  # fmt: skip
"""PyTorch's name of every dtype of `TensorType`."""

COMBINERS: Final[Mapping[Pending, Callable[..., torch.Tensor]]] = MappingProxyType(
    {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
)
"""What makes one of two partial results; takes `out=`."""


def detached(outputs: Mapping[str, torch.Tensor], others: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `outputs`, those copied that share memory with one of `others`, an earlier output or within themselves."""
    taken = {address(tensor) for tensor in others}
    result = {}
    for name, tensor in outputs.items():
        overlaps = tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size()  # strides of 0
        result[name] = tensor.clone(memory_format=torch.contiguous_format) if address(tensor) in taken or overlaps else tensor
        taken.add(address(tensor))
    return result


def address(tensor: torch.Tensor) -> int:
    """Return where the memory of `tensor` begins."""
    return tensor.untyped_storage().data_ptr()
