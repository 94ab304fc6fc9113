"""What a kernel table holds: for each op, how its Python expression is written.

A table is a `Mapping[str, Emit]`. An `Emit` takes the op, whose types and attributes are local, and the expressions of its operands, and
returns one Python expression: a tensor, or a tuple of tensors if the op has several results. The expression may use `torch`, `device`
(where new tensors are made), `inf`, `nan` and the functions of the family's second table (a `Mapping[str, Callable]`), which suits
whatever is longer than one or two calls. Shapes and attributes are written in as literals with `literal` and `dtype`.

Operand expressions name tensors, with two exceptions: offset operands (and other rank-0 i64 inputs of a local program that say where
a shard begins) name Python ints, and elementwise ops get rank-0 constants as Python literals. Operands are never changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from maniple.base.types import LONG_NAMES, TensorType
from maniple.ir.program import Attr, Op

Emit = Callable[[Op, Sequence[str]], str]
"""(op with local types, operand expressions) -> expression of its result, or of the tuple of its results."""

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, long) for name, long in LONG_NAMES.items()}
"""PyTorch's name of every dtype of `TensorType`."""


def literal(value: Attr) -> str:
    """Return `value` as Python source.

    >>> literal((1, float("-inf"), True, None))
    '(1, -inf, True, None,)'

    Raises:
        TypeError: if `value` is not a number, a bool, a string, None or a tuple of them.
    """
    if type(value) is tuple:
        return "(" + "".join(literal(item) + ", " for item in value).rstrip() + ")"
    if type(value) is float and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if type(value) in (int, float, bool, str, type(None)):
        return repr(value)
    raise TypeError(f"attribute {value!r} cannot be written into a kernel")


def dtype(name: str) -> str:
    """Return the source that names a dtype.

    >>> dtype("f32")
    'torch.float32'
    """
    return str(TORCH_DTYPES[name])


class Literal(str):
    """An operand expression that is a Python number and no tensor; only elementwise ops get them."""

    __slots__ = ()


def scalar(value: Attr, kind: str) -> Literal:
    """Return a constant of dtype `kind` as Python source that can stand next to any operator.

    >>> scalar(-2, "f32")
    '(-2.0)'

    Raises:
        TypeError: if `value` is no number.
    """
    if not isinstance(value, bool | int | float):
        raise TypeError(f"constant {value!r} is no number")
    number = bool(value) if kind == "bool" else float(value) if TensorType(kind).is_float else int(value)
    text = literal(number)
    return Literal(f"({text})" if text.startswith("-") else text)


def tensor(operand: str, kind: str) -> str:
    """Return the expression of an operand as a tensor, of rank 0 if it is a literal."""
    return full(operand, TensorType(kind)) if isinstance(operand, Literal) else operand


def full(value: str, kind: TensorType) -> str:
    """Return the expression of a new tensor filled with `value`."""
    return f"torch.full({literal(kind.shape)}, {value}, dtype={dtype(kind.dtype)}, device=device)"


def offset(operands: Sequence[str], number: int) -> str:
    """Return the expression of offset operand `number`, which is 0 where the op has none."""
    return operands[number] if number < len(operands) else "0"
