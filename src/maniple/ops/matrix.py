"""Functions of whole matrices: factorisations, solutions, determinants. Batch dims are free, matrix dims are whole.

One row stands for all of them. The attributes say which function of the framework it is, with what options, how many of the last dims of
each operand are the matrix's (or vector's), and what those of each result are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, Linear, OpDef
from maniple.ops.structure import ints_attr

MATRIX_FUNCTIONS: Final = (
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "linalg_cholesky_ex", "linalg_householder_product",
    "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_matrix_exp",
    "linalg_qr", "linalg_solve_triangular", "lu_unpack",
)  # fmt: skip
"""Functions, by the names that PyTorch's native library has for them."""

_LINEAR: Final = {"_linalg_solve_ex": 1, "linalg_solve_triangular": 1, "linalg_lu_solve": 2, "linalg_ldl_solve": 2}
"""Operand in which a function is linear in all its results that are used: the right-hand side."""


def _sizes_attr(attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    value = attrs.get("sizes")
    if not isinstance(value, tuple):
        raise ValueError(f"attribute sizes must hold the sizes of each result's last dims, got {value!r}")  # noqa: TRY004
    return tuple(ints_attr({"sizes": item}, "sizes") for item in value)


def infer_matrix_function(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the operands' batch dims with the result's own after them.

    Raises:
        ValueError: if there is no such function, or the operands' batch dims differ.
    """
    ranks, sizes, dtypes = ints_attr(attrs, "ranks"), _sizes_attr(attrs), attrs.get("dtypes")
    if attrs.get("function") not in MATRIX_FUNCTIONS or not isinstance(dtypes, tuple) or len(dtypes) != len(sizes):
        raise ValueError(f"attributes {attrs!r} do not describe a function of matrices")
    if len(operands) != len(ranks) or any(x.rank < rank for x, rank in zip(operands, ranks, strict=True)):
        raise ValueError(f"expected {len(ranks)} operands with {ranks} dims at least")
    batches = {x.shape[: x.rank - rank] for x, rank in zip(operands, ranks, strict=True)}
    if len(batches) != 1:
        raise ValueError("operands must have the same batch dims")
    (batch,) = batches
    return tuple(TensorType(str(dtype), (*batch, *size)) for dtype, size in zip(dtypes, sizes, strict=True))


def matrix_function_factors(op: Op) -> FactorRule:
    """Return the rule: batch dims are free, all others whole."""
    ranks, sizes = op.ints("ranks"), _sizes_attr(dict(op.attrs))
    batch = op.operands[0].type.rank - ranks[0]
    found = {f"b{d}": n for d, n in enumerate(op.operands[0].type.shape[:batch])}
    lead = tuple((f"b{d}",) for d in range(batch))
    sides = []
    for letter, values in (("x", op.operands), ("y", op.results)):
        side = []
        for number, value in enumerate(values):
            own = {f"{letter}{number}.{d}": n for d, n in enumerate(value.type.shape[batch:])}
            found.update(own)
            side.append((*lead, *((name,) for name in own)))
        sides.append(tuple(side))
    assert len(sizes) == len(op.results), "infer has checked it"
    return FactorRule(sides[0], sides[1], found, frozenset(name for name in found if not name.startswith("b")))


def _linear(op: Op) -> Linear:
    at = _LINEAR.get(str(op.attr("function")))
    return (frozenset({at}),) if at is not None and len(op.results) == 1 else ()


def _flops(op: Op) -> int:
    """Return the batch times the cube of the largest matrix dim, which is the order of all of them."""
    ranks = op.ints("ranks")
    n = max((max(v.type.shape[-rank:], default=1) for v, rank in zip(op.operands, ranks, strict=True) if rank), default=1)
    return 2 * op.operands[0].type.num_elements * n


MATRIX: tuple[OpDef, ...] = (OpDef("matrix_function", infer_matrix_function, matrix_function_factors, _linear, _flops),)
