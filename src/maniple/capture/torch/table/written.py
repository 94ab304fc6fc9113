"""Decompositions that PyTorch does not have: ops written with others, as functions of tensors.

Each has the arguments of its op. The gradient of an op that PyTorch decomposes is the derivative of that decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    factor: Tensor = aten.linalg_cholesky_ex.default(x, upper=upper)[0]
    return factor


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Return the solution of `factor factor^T x = b`, or of `factor^T factor x = b` for an upper one."""
    lower = factor.mT if upper else factor
    y = aten.linalg_solve_triangular.default(lower, b, upper=False)
    solution: Tensor = aten.linalg_solve_triangular.default(lower.mT, y, upper=True)
    return solution


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape)
    return _cholesky_solve(eye, factor.triu() if upper else factor.tril(), upper)


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix, is_upper = (a.mT, not upper) if transpose else (a, upper)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    solution = aten.linalg_solve_triangular.default(matrix, b, upper=is_upper, unitriangular=unitriangular)
    return solution, a.expand(*batch, *a.shape[-2:]).clone()


def _pinv(x: Tensor, *, atol: Tensor | float | None = None, rtol: Tensor | float | None = None, hermitian: bool = False) -> Tensor:
    """Return the pseudoinverse by the singular values above the tolerances."""
    if hermitian:
        values, vectors = aten._linalg_eigh.default(x, "L", True)
        tolerance = _tolerance(x, values.abs().amax(-1, keepdim=True) if values.shape[-1] else values, atol, rtol)
        inverse = torch.where(values.abs() > tolerance, 1 / values, 0.0)
        symmetric: Tensor = (vectors * inverse.unsqueeze(-2)) @ vectors.mT
        return symmetric
    u, s, v = aten._linalg_svd.default(x, False, True)
    tolerance = _tolerance(x, s[..., :1], atol, rtol)
    inverse = torch.where(s > tolerance, 1 / s, 0.0)
    result: Tensor = (v.mT * inverse.unsqueeze(-2)) @ u.mT
    return result


def _tolerance(x: Tensor, greatest: Tensor, atol: Tensor | float | None, rtol: Tensor | float | None) -> Tensor:
    """Return the number up to which singular values count as 0."""
    if rtol is None:
        rtol = 0.0 if atol is not None else torch.finfo(x.dtype).eps * max(x.shape[-2:])
    absolute, relative = (
        value.unsqueeze(-1) if isinstance(value, Tensor) else torch.full((1,), float(value or 0), dtype=x.dtype) for value in (atol, rtol)
    )
    return torch.maximum(absolute, relative * greatest)


def _distances(x: Tensor, y: Tensor, p: float, _mode: int | None = None) -> Tensor:
    """Return the p-norms of differences of rows."""
    away = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (away != 0).to(x.dtype).sum(-1)
    if math.isinf(p):
        return away.amax(-1) if away.shape[-1] else away.sum(-1)
    return away.sum(-1) if p == 1 else away.pow(p).sum(-1).pow(1 / p)


def _distances_backward(g: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    """Return the gradient of the first operand's rows; 0 where a distance is 0."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    away, sign, d = difference.abs(), difference.sign(), distance.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x)
    slope: Tensor
    if p == 1:
        slope = sign
    elif math.isinf(p):
        slope = sign * (away == d)
    else:
        slope = torch.where(d == 0, 0.0, sign * away.pow(p - 1) / d.pow(p - 1))
        if p < 1:
            slope = torch.where(away == 0, 0.0, slope)
    grad = (g.unsqueeze(-1) * slope).sum(-2)
    return grad if grad.numel() and y.numel() else torch.zeros_like(x)


def _derivative(forward: Any, wanted: int) -> Callable[..., Any]:
    """Return the gradient of a forward op's decomposition with respect to its first operands, as (grad, operands...) -> gradients."""

    def backward(g: Tensor, *args: Any) -> Any:
        *rest, mask = args
        function = decomposition_table[forward]
        pull: Any = torch.func.vjp(lambda *first: function(*first, *rest[wanted:]), *rest[:wanted])[1]
        return tuple(grad if want else None for grad, want in zip(pull(g), mask, strict=True))

    return backward


def _trilinear(
    one: Tensor, two: Tensor, three: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], _unroll: int = 1,
) -> Tensor:  # fmt: skip
    for x, dims in ((0, expand1), (1, expand2), (2, expand3)):
        found = (one, two, three)[x]
        for dim in dims:
            found = found.unsqueeze(dim)
        one, two, three = (found if at == x else item for at, item in enumerate((one, two, three)))
    product = one * two * three
    return product.sum(tuple(sumdim)) if sumdim else product


def _multi_margin_backward(
    g: Tensor, x: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    function = decomposition_table[aten.multi_margin_loss.default]
    pull: Any = torch.func.vjp(lambda values: function(values, target, p, margin, weight, reduction), x)[1]
    result: Tensor = pull(g)[0]
    return result


def _multilabel_margin_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int, _is_target: Tensor) -> Tensor:
    function = decomposition_table[aten.multilabel_margin_loss_forward.default]
    pull: Any = torch.func.vjp(lambda values: function(values, target, reduction)[0], x)[1]
    result: Tensor = pull(g)[0]
    return result


def _normal(mean: Tensor | float, std: Tensor | float, *_rest: Any, **_options: Any) -> Tensor:
    shape = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor)))
    like = mean if isinstance(mean, Tensor) else std
    assert isinstance(like, Tensor), "one of them is a tensor"
    return torch.randn(shape, dtype=like.dtype) * std + mean


def _embedding_renorm(table: Tensor, ids: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Return the table with the rows that are used shrunk to a norm (`nn.Embedding(max_norm=...)`)."""
    uses = aten.index_add.default(table.new_zeros(len(table)), 0, ids.flatten(), table.new_ones(ids.numel()))
    norms = aten.linalg_vector_norm.default(table, norm_type, [1])
    scale = torch.where((uses > 0) & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
    return table * scale.unsqueeze(1)


WRITTEN: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.cholesky.default: _cholesky,
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: _cholesky_inverse,
    aten.triangular_solve.default: _triangular_solve,
    aten.linalg_pinv.atol_rtol_tensor: _pinv,
    aten.linalg_pinv.atol_rtol_float: _pinv,
    aten._cdist_forward.default: _distances,
    aten._cdist_backward.default: _distances_backward,
    aten.grid_sampler_2d_backward.default: _derivative(aten.grid_sampler_2d.default, 2),
    aten._trilinear.default: _trilinear,
    aten.embedding_renorm.default: _embedding_renorm,
    aten.multi_margin_loss_backward.default: _multi_margin_backward,
    aten.multilabel_margin_loss_backward.default: _multilabel_margin_backward,
    aten.normal.Tensor_float: _normal,
    aten.normal.float_Tensor: _normal,
    aten.normal.Tensor_Tensor: _normal,
}
"""By op; what PyTorch decomposes is not here."""
