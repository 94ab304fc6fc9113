"""Bags of embeddings: sums, means or maxima of rows of a table, for groups of ids that begin at given offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from maniple.base.types import TensorType
from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.views import sliced
from maniple.ir.program import Value

_SUM, _MEAN, _MAX = range(3)


def _equal_bags(e: Emitter, offsets: Value, n: int, num_bags: int) -> bool:
    """Return whether offsets are known to cut `n` ids into bags of one size: 0, k, 2k, ..."""
    if not num_bags or n % num_bags:
        return False
    size, maker = n // num_bags, e.producer(offsets)
    if maker is not None and maker.name == "multiply" and size > 1:
        first, second = (e.producer(value) for value in maker.operands)
        scale = second.attr("value") if second is not None and second.name == "constant" else None
        return first is not None and first.name == "iota" and scale == size
    return maker is not None and maker.name == "iota" and size == 1


def _bags(e: Emitter, offsets: Value, n: int, num_bags: int) -> Value:
    """Return the bag of each of `n` ids."""
    place = index_along(e, (n,), 0)
    starts = e.cast(sliced(e, offsets, 0, 0, num_bags), "i64")
    return e.elementwise("subtract", e("searchsorted", starts, place, right=True), 1)


def _bag(
    e: Emitter, table: Value, ids: Value, offsets: Value, scale: bool = False, mode: int = _SUM, sparse: bool = False,
    weights: Value | None = None, include_last: bool = False, padding: int = -1,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Return the bags' rows `[bags, d]`; the bag of each id; the number of ids in each bag; and, for maxima, whose id each is."""
    if sparse or scale:
        raise NotImplementedError("sparse gradients, or gradients scaled by frequency")
    out, n = e.out, ids.type.shape[0]
    kind = [e.out_at(at) for at in range(4)]
    num_bags = out.shape[0]
    bag = _bags(e, offsets, n, num_bags)
    kept = e.elementwise("compare_ne", ids, padding)
    rows = e("gather", table, ids, batch=0)
    if weights is not None:
        rows = e("multiply", rows, e.b.broadcast(weights, rows.type.shape, (0,)))
    is_even = _equal_bags(e, offsets, n, num_bags)
    if mode == _MAX:
        return _greatest(e, rows, ids, kept, bag, kind)
    if padding >= 0:
        rows = e.select(e.b.broadcast(kept, rows.type.shape, (0,)), rows, 0, rows.type.dtype)
    if is_even:
        y = e.sum(e.reshape(rows, (num_bags, n // num_bags, rows.type.shape[1])), (1,))
        count = e.sum(e.reshape(e.cast(kept, "i64"), (num_bags, n // num_bags)), (1,))
    else:
        y = e("scatter_sum", rows, bag, like=out, batch=0)
        count = e("scatter_sum", e.cast(kept, "i64"), bag, like=TensorType("i64", (num_bags,)), batch=0)
    if mode == _MEAN:
        safe = e.cast(e.elementwise("maximum", count, 1), out.dtype)
        y = e("divide", y, e.b.broadcast(safe, out.shape, (0,)))
    return y, _shaped(e, bag, kind[1]), _shaped(e, count, kind[2]), e.full(0, kind[3])


def _shaped(e: Emitter, x: Value, kind: TensorType) -> Value:
    """Return a by-product in the type that ATen gives it; nothing where that is empty."""
    return e.cast(x, kind.dtype) if x.type.shape == kind.shape else e.full(0, kind)


def _greatest(e: Emitter, rows: Value, ids: Value, kept: Value, bag: Value, kind: list[TensorType]) -> tuple[Value, ...]:
    shape, dtype = kind[0].shape, rows.type.dtype
    num_bags = shape[0]
    count = e("scatter_sum", e.cast(kept, "i64"), bag, like=TensorType("i64", (num_bags,)), batch=0)
    low = e.full(float("-inf"), kind[0])
    shown = e.select(e.b.broadcast(kept, rows.type.shape, (0,)), rows, float("-inf"), dtype)
    best = e("scatter", low, shown, bag, batch=0, kind="max")
    hits = e("compare_eq", shown, e("gather", best, bag, batch=0))
    numbers = e.b.broadcast(e.cast(ids, "i64"), rows.type.shape, (0,))
    last = e("scatter", e.full(-1, TensorType("i64", shape)), e.select(hits, numbers, -1, "i64"), bag, batch=0, kind="max")
    filled = e.b.broadcast(e.elementwise("compare_gt", count, 0), shape, (0,))
    where = e.select(filled, last, 0, "i64")
    return e.select(filled, best, 0, dtype), _shaped(e, bag, kind[1]), _shaped(e, count, kind[2]), _shaped(e, where, kind[3])


def _bag_backward(
    e: Emitter, g: Value, ids: Value, bag: Value, count: Value, greatest: Value, _num: int, scale: bool, mode: int,
    weights: Value | None, padding: int = -1,
) -> Value:  # fmt: skip
    if scale:
        raise NotImplementedError("gradients scaled by frequency")
    if mode == _MAX:
        filled = e.b.broadcast(e.elementwise("compare_gt", count, 0), g.type.shape, (0,))
        columns = e.transpose(e.select(filled, g, 0, g.type.dtype), (1, 0))
        like = g.type.with_shape((e.out.shape[1], e.out.shape[0]))
        return e.transpose(e("scatter_sum", columns, e.transpose(greatest, (1, 0)), like=like, batch=1), (1, 0))
    if mode == _MEAN:
        safe = e.cast(e.elementwise("maximum", count, 1), g.type.dtype)
        g = e("divide", g, e.b.broadcast(safe, g.type.shape, (0,)))
    rows = e("gather", g, bag, batch=0)
    if weights is not None:
        rows = e("multiply", rows, e.b.broadcast(weights, rows.type.shape, (0,)))
    return e("embedding_grad", rows, ids, like=e.out, padding_idx=padding)


def _weights_backward(e: Emitter, g: Value, table: Value, ids: Value, _offsets: Value, bag: Value, _mode: int, padding: int = -1) -> Value:
    product = e("multiply", e("gather", g, bag, batch=0), e("gather", table, ids, batch=0))
    total = e.sum(product, (1,))
    return e.select(e.elementwise("compare_ne", ids, padding), total, 0, total.type.dtype)


def _bag_full_backward(
    e: Emitter, g: Value, ids: Value, _offsets: Value, bag: Value, count: Value, greatest: Value, num: int, scale: bool, mode: int,
    sparse: bool, weights: Value | None, padding: int = -1,
) -> Value:  # fmt: skip
    if sparse:
        raise NotImplementedError("sparse gradients")
    return _bag_backward(e, g, ids, bag, count, greatest, num, scale, mode, weights, padding)


BAGS: Final[dict[str, Callable[..., Any]]] = {
    "aten._embedding_bag.default": _bag,
    "aten._embedding_bag_forward_only.default": _bag,
    "aten._embedding_bag_backward.default": _bag_full_backward,
    "aten._embedding_bag_dense_backward.default": _bag_backward,
    "aten._embedding_bag_per_sample_weights_backward.default": _weights_backward,
}
