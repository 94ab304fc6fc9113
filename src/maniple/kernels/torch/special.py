"""Special functions as PyTorch calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from maniple.ir.program import Op
from maniple.kernels.torch.emit import Emit, tensor
from maniple.ops.special import INTEGER_BINARY, SPECIAL_BINARY, SPECIAL_UNARY

_NAMES: Final = {
    "exponential_minus_one": "expm1", "round_nearest_even": "round", "erf_inv": "erfinv", "next_after": "nextafter",
    "shift_left": "bitwise_left_shift", "shift_right_arithmetic": "bitwise_right_shift",
    "bessel_i0": "special.i0", "bessel_i0e": "special.i0e", "bessel_i1": "special.i1", "bessel_i1e": "special.i1e",
    "bessel_k0": "special.modified_bessel_k0", "bessel_k1": "special.modified_bessel_k1",
    "bessel_k0e": "special.scaled_modified_bessel_k0", "bessel_k1e": "special.scaled_modified_bessel_k1",
    "zeta": "special.zeta", "erfcx": "special.erfcx", "ndtri": "special.ndtri", "log_ndtr": "special.log_ndtr",
    "airy_ai": "special.airy_ai",
}  # fmt: skip
"""Functions that PyTorch has under another name."""

_IN_SPECIAL: Final = ("bessel_", "spherical_", "chebyshev_", "shifted_", "hermite_", "laguerre_", "legendre_")
"""How names begin of functions that PyTorch has in `torch.special`."""


def _function(name: str) -> str:
    return _NAMES.get(name, f"special.{name}" if name.startswith(_IN_SPECIAL) else name)


def _call(op: Op, operands: Sequence[str], *, function: str) -> str:
    values = (tensor(x, value.type.dtype) for x, value in zip(operands, op.operands, strict=True))
    return f"torch.{function}({', '.join(values)})"


SPECIAL: Final[Mapping[str, Emit]] = {
    name: partial(_call, function=_function(name)) for name in (*SPECIAL_UNARY, *SPECIAL_BINARY, *INTEGER_BINARY)
}
"""Kernels that take rank-0 constants as Python literals, as those of elementwise ops do."""
