"""Functions of whole matrices and Fourier transforms as PyTorch calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from maniple.ir.program import Op
from maniple.kernels.torch.emit import Emit, full, literal, scalar


def _zeros(op: Op) -> str:
    return "(" + "".join(f"{full(scalar(0, result.type.dtype), result.type)}, " for result in op.results) + ")"


def _first(expression: str, op: Op) -> str:
    return f"{expression}[0]" if len(op.results) == 1 else expression


def matrix_function(operands: Sequence[Tensor], function: str, options: Sequence[tuple[str, Any]], wanted: int) -> tuple[Tensor, ...]:
    """Return the results of a function of PyTorch's native library, the first `wanted` ones.

    Args:
        operands: tensors, the function's first arguments.
        function: its name.
        options: its other arguments, by name.
        wanted: number of results.
    """
    results = getattr(torch.ops.aten, function)(*operands, **dict(options))
    return tuple(results[:wanted]) if isinstance(results, tuple) else (results,)


def _matrix_function(op: Op, x: Sequence[str]) -> str:
    if not any(value.type.num_elements for value in op.results):
        return _first(_zeros(op), op)
    what = f"{literal(op.attr('function'))}, {literal(op.attr('options'))}, {len(op.results)}"
    return _first(f"matrix_function(({', '.join(x)},), {what})", op)


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.real.contiguous(), z.imag.contiguous()


def fft(real: Tensor, imaginary: Tensor, dims: Sequence[int], *, forward: bool) -> tuple[Tensor, Tensor]:
    """Return real and imaginary parts of the transform over `dims`, or of the transform back without its factor."""
    return _parts(torch.ops.aten._fft_c2c.default(torch.complex(real, imaginary), tuple(dims), 0, forward))  # noqa: SLF001


def rfft(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the parts of a real tensor's transform, half of the last dim."""
    return _parts(torch.ops.aten._fft_r2c.default(x, tuple(dims), 0, True))  # noqa: FBT003, SLF001


def irfft(real: Tensor, imaginary: Tensor, dims: Sequence[int], size: int) -> Tensor:
    """Return the real tensor of which half a transform is given, without the factor of the transform back."""
    result: Tensor = torch.ops.aten._fft_c2r.default(torch.complex(real, imaginary), tuple(dims), 0, size)  # noqa: SLF001
    return result


def _fourier(name: str, *attrs: str) -> Emit:
    def emit(op: Op, x: Sequence[str]) -> str:
        if not op.operands[0].type.num_elements:
            return _first(_zeros(op), op)
        options = "".join(f", {attr}={literal(op.attr(attr))}" for attr in attrs)
        return f"{name}({', '.join(x)}, {literal(op.ints('dims'))}{options})"

    return emit


MATRIX: Final[Mapping[str, Emit]] = {
    "matrix_function": _matrix_function,
    "fft": _fourier("fft", "forward"),
    "rfft": _fourier("rfft"),
    "irfft": _fourier("irfft", "size"),
}

MATRIX_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "matrix_function": matrix_function,
    "fft": fft,
    "rfft": rfft,
    "irfft": irfft,
}
"""What those expressions call besides PyTorch itself."""
