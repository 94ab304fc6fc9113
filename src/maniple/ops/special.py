"""Elementwise functions beyond arithmetic: the rest of trigonometry, the gamma, error and Bessel functions, orthogonal polynomials."""

from __future__ import annotations

from functools import partial
from typing import Final

from maniple.ops.elementwise import elementwise_factors, infer_elementwise
from maniple.ops.opdef import OpDef

SPECIAL_UNARY: Final = (
    "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "exponential_minus_one", "round_nearest_even",
    "lgamma", "digamma", "erfc", "erfcx", "erf_inv", "ndtri", "log_ndtr",
    "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0",
    "bessel_k0", "bessel_k1", "bessel_k0e", "bessel_k1e", "airy_ai",
)  # fmt: skip
"""Functions of one float; names as in StableHLO and CHLO where these have them."""

SPECIAL_BINARY: Final = (
    "atan2", "zeta", "igamma", "igammac", "next_after",
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
)  # fmt: skip
"""Functions of two floats; a polynomial's second one is its degree."""

INTEGER_BINARY: Final = ("gcd", "shift_left", "shift_right_arithmetic")
"""Functions of two integers."""

_FLOPS: Final = 10
"""What such a function costs, roughly."""


def _row(name: str, arity: int) -> OpDef:
    infer = partial(infer_elementwise, arity=arity)
    return OpDef(name, infer, elementwise_factors, flops=lambda op: _FLOPS * op.results[0].type.num_elements)


SPECIAL: tuple[OpDef, ...] = (
    *(_row(name, 1) for name in SPECIAL_UNARY),
    *(_row(name, 2) for name in (*SPECIAL_BINARY, *INTEGER_BINARY)),
)
