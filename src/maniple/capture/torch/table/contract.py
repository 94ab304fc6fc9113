"""Products of matrices. Transposes of an operand's last two dims go into the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Number
from maniple.capture.torch.table.elementwise import times
from maniple.ir.program import Value


def _untransposed(e: Emitter, x: Value) -> tuple[Value, bool]:
    """Return the operand of a transpose of the last two dims, and whether there was one."""
    maker, rank = e.producer(x), x.type.rank
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    if maker is not None and maker.name == "transpose" and maker.ints("perm") == swapped:
        return maker.operands[0], True
    return x, False


def product(e: Emitter, x: Value, y: Value) -> Value:
    """Return the matrix product over the last dim of `x` and the last but one of `y`; leading dims are batch dims."""
    rank = x.type.rank
    batch = tuple(range(rank - 2))
    x, x_swapped = _untransposed(e, x)
    y, y_swapped = _untransposed(e, y)
    return e(
        "dot_general", x, y,
        lhs_contract=(rank - 2 if x_swapped else rank - 1,), rhs_contract=(rank - 1 if y_swapped else rank - 2,),
        lhs_batch=batch, rhs_batch=batch,
    )  # fmt: skip


def _added(e: Emitter, bias: Value, x: Value, y: Value, beta: Number = 1, alpha: Number = 1) -> Value:
    result = times(e, product(e, x, y), alpha)
    return e.elementwise("add", result, times(e, bias, beta), dtype=e.out.dtype)


def _mv(e: Emitter, x: Value, y: Value) -> Value:
    return e("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())


def _dot(e: Emitter, x: Value, y: Value) -> Value:
    return e("dot_general", x, y, lhs_contract=(0,), rhs_contract=(0,), lhs_batch=(), rhs_batch=())


CONTRACT: Final[dict[str, Callable[..., Any]]] = {
    "aten.mm.default": product,
    "aten.bmm.default": product,
    "aten.addmm.default": _added,
    "aten.baddbmm.default": _added,
    "aten.mv.default": _mv,
    "aten.dot.default": _dot,
}
