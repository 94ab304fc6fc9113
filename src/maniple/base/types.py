"""Tensor types: a dtype and a global shape."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from maniple.base.errors import ParseError
from maniple.base.literals import NUMBER

DTYPE_BYTES: Final[dict[str, int]] = {
    "f64": 8, "f32": 4, "bf16": 2, "f16": 2,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
}  # fmt: skip
"""Bytes per element of every dtype a program may hold."""

LONG_NAMES: Final[dict[str, str]] = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool",
}  # fmt: skip
"""What frameworks call every dtype."""

_PATTERN = re.compile(rf"(\w+)\[((?:{NUMBER}(?:,{NUMBER})*)?)\]")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype and a shape.

    >>> TensorType("f32", (2, 3)).num_bytes
    24
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in bytes of a dense tensor of this type."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a floating-point one."""
        return "f" in self.dtype

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """Return this type with another shape."""
        return TensorType(self.dtype, shape)

    def __str__(self) -> str:
        """Return the text form, e.g. `f32[2,3]`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @staticmethod
    def parse(text: str) -> TensorType:
        """Return the type that `text` spells.

        >>> TensorType.parse("f32[2,3]")
        TensorType(dtype='f32', shape=(2, 3))

        Raises:
            ParseError: if `text` is not a dtype and a shape.
        """
        match = _PATTERN.fullmatch(text)
        if match is None or match[1] not in DTYPE_BYTES:
            raise ParseError(f"cannot read tensor type {text!r}", hint="write it as f32[2,3]")
        return TensorType(match[1], tuple(int(n) for n in match[2].split(",") if n))
