"""Functions of whole matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, broadcast_shape
from maniple.ir.program import Value


def _emitted(e: Emitter, function: str, operands: Sequence[Value], ranks: Sequence[int], **options: Any) -> Any:  # a value or several
    """Emit one function of operands whose last `ranks` dims are the matrix's; batch dims are broadcast."""
    batch = broadcast_shape([x.type.shape[: x.type.rank - rank] for x, rank in zip(operands, ranks, strict=True)])
    wide = [e.expand(x, (*batch, *x.type.shape[x.type.rank - rank :])) for x, rank in zip(operands, ranks, strict=True)]
    outs = [e.out_at(at) for at in range(len(e.outs))]
    made = e.emit(
        "matrix_function", wide, function=function, ranks=tuple(ranks), options=tuple(sorted(options.items())),
        sizes=tuple(out.shape[len(batch) :] for out in outs), dtypes=tuple(out.dtype for out in outs),
    )  # fmt: skip
    return made if len(made) > 1 else made[0]


def _of_matrix(function: str) -> Callable[..., Any]:
    """Return a row for a function of one matrix; its other arguments are options, by the names of ATen's schema."""

    def row(e: Emitter, x: Value, *rest: Any, **options: Any) -> Any:
        return _emitted(e, function, [x], [2], **_named(function, 1, rest), **_checked(function, options))

    return row


def _checked(function: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the check of whether a function could do its work: what the step asks there is left out while tracing."""
    return {**options, "check_errors": True} if function.endswith("_ex") else options


_SCHEMAS: Final = {
    "_linalg_svd": ("A", "full_matrices", "compute_uv"),
    "linalg_qr": ("A", "mode"),
    "_linalg_eigh": ("A", "UPLO", "compute_v"),
    "lu_unpack": ("LU_data", "LU_pivots", "unpack_data", "unpack_pivots"),
}
"""Names of arguments that are given by place."""


def _named(function: str, skip: int, rest: Sequence[Any]) -> dict[str, Any]:
    names = _SCHEMAS.get(function, ())[skip:]
    return dict(zip(names, rest, strict=False))


def _is_vector(a: Value, b: Value) -> bool:
    """Return whether a right-hand side is one vector for each matrix, as PyTorch tells."""
    return b.type.rank == 1 or (a.type.rank - 1 == b.type.rank and b.type.shape == a.type.shape[:-1])


def _solve(e: Emitter, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    ranks = (2, 1 if _is_vector(a, b) else 2)
    made: tuple[Value, ...] = _emitted(e, "_linalg_solve_ex", (a, b), ranks, left=left, check_errors=True)
    return made


def _solve_triangular(e: Emitter, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    return _emitted(e, "linalg_solve_triangular", (a, b), (2, 2), upper=upper, left=left, unitriangular=unitriangular)


def _lu_solve(e: Emitter, lu: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Any:
    return _emitted(e, "linalg_lu_solve", (lu, pivots, b), (2, 1, 2), left=left, adjoint=adjoint)


def _ldl_solve(e: Emitter, ld: Value, pivots: Value, b: Value, *, hermitian: bool = False) -> Any:
    return _emitted(e, "linalg_ldl_solve", (ld, pivots, b), (2, 1, 2), hermitian=hermitian)


def _householder(e: Emitter, x: Value, tau: Value) -> Any:
    return _emitted(e, "linalg_householder_product", (x, tau), (2, 1))


def _unpack(e: Emitter, lu: Value, pivots: Value, *rest: Any, **options: Any) -> Any:
    return _emitted(e, "lu_unpack", (lu, pivots), (2, 1), **_named("lu_unpack", 2, rest), **options)


_PLAIN: Final = (
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_svd", "linalg_cholesky_ex", "linalg_inv_ex", "linalg_ldl_factor_ex",
    "linalg_lu", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_qr",
)  # fmt: skip

MATRIX: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten.{name}.default": _of_matrix(name) for name in _PLAIN},
    "aten._linalg_solve_ex.default": _solve,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten.linalg_lu_solve.default": _lu_solve,
    "aten.linalg_ldl_solve.default": _ldl_solve,
    "aten.linalg_householder_product.default": _householder,
    "aten.lu_unpack.default": _unpack,
}
