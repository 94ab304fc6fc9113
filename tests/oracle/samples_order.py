"""Sample ops of the rows that gather, scatter, sort and search, of special functions and of pooling by sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from samples import Operand, Sample, f, i, sample
from torch import Tensor

from maniple.base.types import TensorType
from maniple.ir.program import Attr
from maniple.ops.special import INTEGER_BINARY, SPECIAL_BINARY, SPECIAL_UNARY

LOOKUPS = (
    # batch dims, rows, index dims, rest
    ((), 5, (3, 2), (4,)),
    ((), 4, (5,), ()),
    ((2,), 3, (5,), (4,)),
    ((5, 2), 3, (4,), ()),
    ((3,), 5, (), (2,)),
    ((), 2, (), ()),
)


def like(shape: tuple[int, ...], dtype: str = "f64") -> TensorType:
    return TensorType(dtype, shape)


def gathers() -> Iterator[Sample]:
    for batch, v, many, rest in LOOKUPS:
        x, index, rows = (*batch, v, *rest), i(*batch, *many, low=0, high=v), (*batch, *many, *rest)
        lead = len(batch)
        yield sample("gather", f(*x), index, batch=lead)
        yield sample("scatter_sum", f(*rows), index, like=like(x), batch=lead)
        for kind in ("set", "max", "min", "multiply"):
            yield sample("scatter", f(*x), f(*rows), index, batch=lead, kind=kind)
    yield sample("gather", f(5, 0), i(4, low=0, high=5), batch=0)
    yield sample("gather", Operand(like((5, 2), "bool")), i(4, low=0, high=5), batch=0)
    yield sample("scatter_sum", i(0, 3), i(0, low=0, high=1), like=like((4, 3), "i64"), batch=0)


def orders() -> Iterator[Sample]:
    for shape, dim in (((5, 4), 1), ((4, 5, 2), 0), ((5,), 0), ((2, 0), 1)):
        for flag in (False, True):
            yield sample("sort", f(*shape), dim=dim, descending=flag)
            yield sample("top_k", f(*shape), dim=dim, k=min(2, shape[dim]), largest=flag)
        for name in ("cumprod", "logcumsumexp", "cummax", "cummin"):
            yield sample(name, f(*shape), dim=dim)
        yield sample("reduce_prod", f(*shape), dims=(dim,))
    yield sample("reduce_prod", i(5, 2, 3), dims=(0, 2))


def _sorted(values: list[Tensor]) -> list[Tensor]:
    return [torch.sort(values[0], dim=-1)[0], values[1]]


def searches() -> Iterator[Sample]:
    for bounds, values in (((5,), (4,)), ((2, 5), (2, 3)), ((1,), (5,)), ((0,), (2,))):
        for right in (False, True):
            yield replace(sample("searchsorted", f(*bounds), f(*values), right=right), prepare=_sorted)
    yield replace(sample("searchsorted", i(4), i(5), right=True), prepare=_sorted)


_ABOVE_ONE = ("acosh", "zeta")
_INSIDE = ("asin", "acos", "atanh", "erf_inv", "ndtri")


def specials() -> Iterator[Sample]:
    for name in SPECIAL_UNARY:
        low, high = (1.1, 3.0) if name in _ABOVE_ONE else (0.1, 0.9) if name in _INSIDE else (0.2, 2.0)
        yield sample(name, f(5, 2, low=low, high=high))
    for name in SPECIAL_BINARY:
        yield sample(name, f(5, 2, low=1.1, high=3.0), f(5, 2, low=0.5, high=3.0))
    yield sample("atan2", f(5), f(low=0.5))
    for name in INTEGER_BINARY:
        yield sample(name, i(5, 2, low=0), i(5, 2, low=1, high=5))


SUMS = (
    # shape, kernel, stride, padding, ceil_mode, space of the result
    ((5, 3, 6), (3,), (2,), (1,), False, (3,)),
    ((4, 2, 5, 6), (3, 2), (2, 2), (1, 0), True, (3, 3)),
    ((2, 3, 4, 5, 3), (2, 2, 2), (1, 2, 1), (0, 1, 0), False, (3, 3, 2)),
)


def sums() -> Iterator[Sample]:
    for shape, kernel, stride, padding, ceil_mode, space in SUMS:
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        yield Sample("sum_pool", (f(*shape),), attrs)
        yield Sample("sum_pool_grad", (f(*shape[:2], *space),), attrs, like(shape))


INTEGERS = {"_linalg_det": (2,), "linalg_inv_ex": (1,), "_linalg_solve_ex": (2, 3), "linalg_cholesky_ex": (1,)}
"""Results that are integers."""

Sizes = tuple[tuple[int, ...], ...]


def _matrix(function: str, operands: tuple[Operand, ...], ranks: tuple[int, ...], sizes: Sizes, **options: Attr) -> Sample:
    pairs = tuple(sorted(options.items()))
    dtypes = tuple("i32" if at in INTEGERS.get(function, ()) else "f64" for at in range(len(sizes)))
    return sample("matrix_function", *operands, function=function, ranks=ranks, sizes=sizes, dtypes=dtypes, options=pairs)


def _solvable(values: list[Tensor]) -> list[Tensor]:
    matrix = values[0]
    return [matrix @ matrix.mT + torch.eye(matrix.shape[-1], dtype=matrix.dtype), *values[1:]]


def matrices() -> Iterator[Sample]:
    for batch in ((), (5,), (2, 3)):
        square, wide = f(*batch, 3, 3), f(*batch, 3, 2)
        yield replace(_matrix("linalg_inv_ex", (square,), (2,), ((3, 3), ()), check_errors=True), prepare=_solvable)
        yield replace(_matrix("linalg_cholesky_ex", (square,), (2,), ((3, 3), ()), upper=False), prepare=_solvable)
        solve = _matrix("_linalg_solve_ex", (square, wide), (2, 2), ((3, 2), (3, 3), (3,), ()), left=True)
        yield replace(solve, prepare=_solvable)
        yield replace(_matrix("linalg_solve_triangular", (square, wide), (2, 2), ((3, 2),), upper=True), prepare=_solvable)
        yield _matrix("linalg_qr", (wide,), (2,), ((3, 2), (2, 2)), mode="reduced")
        yield _matrix("_linalg_svd", (wide,), (2,), ((3, 2), (2,), (2, 2)), full_matrices=False, compute_uv=True)
    yield _matrix("_linalg_det", (f(2, 0, 0),), (2,), ((), (0, 0), (0,)))


def transforms() -> Iterator[Sample]:
    for shape, dims in (((5, 4), (1,)), ((4, 5, 3), (0, 2)), ((5,), (0,))):
        x = f(*shape)
        for forward in (False, True):
            yield sample("fft", x, x, dims=dims, forward=forward)
        yield sample("rfft", x, dims=dims)
        for size in (2 * shape[dims[-1]] - 2, 2 * shape[dims[-1]] - 1):
            yield sample("irfft", x, x, dims=dims, size=size)


ORDER_SAMPLES: tuple[Sample, ...] = (*gathers(), *orders(), *searches(), *specials(), *sums(), *matrices(), *transforms())
