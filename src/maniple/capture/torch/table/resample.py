"""Values at other places than the elements': interpolation, and padding that repeats what is there.

Along a dim, each result is a weighted sum of a few elements (taps). Its gradient adds the weighted gradients up where these stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Emitter, Operand
from maniple.capture.torch.table.create import index_along
from maniple.capture.torch.table.indexing import put, take
from maniple.capture.torch.table.pooling import along
from maniple.ir.program import Value
from maniple.ops.precision import accumulation_dtype

Taps = list[tuple[Value, Value | None]]
"""For each tap: where it stands for each result of a dim, and its weight there (None: 1)."""


def _taken(e: Emitter, x: Value, dim: int, taps: Taps) -> Value:
    """Return the weighted sums of elements along `dim`."""
    terms = []
    for index, weight in taps:
        y = take(e, x, index, [dim])
        terms.append(y if weight is None else e("multiply", y, e.b.broadcast(weight, y.type.shape, (dim,))))
    return _sum(e, terms)


def _spread(e: Emitter, g: Value, dim: int, n: int, taps: Taps) -> Value:
    """Return the gradient of that: `dim` has `n` elements again."""
    result = e.full(0, g.type.with_shape((*g.type.shape[:dim], n, *g.type.shape[dim + 1 :])))
    for index, weight in taps:
        part = g if weight is None else e("multiply", g, e.b.broadcast(weight, g.type.shape, (dim,)))
        result = put(e, result, index, part, [dim], "add")
    return result


def _sum(e: Emitter, terms: Sequence[Value]) -> Value:
    first, *rest = terms
    for term in rest:
        first = e("add", first, term)
    return first


def _bounded(e: Emitter, index: Value, n: int) -> Value:
    return e.elementwise("minimum", e.elementwise("maximum", index, 0), n - 1)


def _numbers(e: Emitter, m: int, dtype: str) -> Value:
    return e.cast(index_along(e, (m,), 0), dtype)


def _ratio(n: int, m: int, scale: float | None) -> float:
    """Return how many elements a result stands for."""
    return 1 / scale if scale else n / m


def _nearest(shift: float) -> Callable[..., Taps]:
    def taps(e: Emitter, n: int, m: int, _align: bool, scale: float | None, _dtype: str) -> Taps:
        """Return the element at floor((i + shift) ratio), found in float32 as ATen finds it."""
        at = _numbers(e, m, "f32")
        at = e.elementwise("multiply", e.elementwise("add", at, shift) if shift else at, _ratio(n, m, scale))
        return [(_bounded(e, e.cast(e("floor", at), "i64"), n), None)]

    return taps


def _places(e: Emitter, n: int, m: int, align: bool, scale: float | None, dtype: str) -> Value:
    """Return where results stand among the elements."""
    at = _numbers(e, m, dtype)
    if align:
        return e.elementwise("multiply", at, (n - 1) / (m - 1) if m > 1 else 0.0)
    return e.elementwise("subtract", e.elementwise("multiply", e.elementwise("add", at, 0.5), _ratio(n, m, scale)), 0.5)


def _linear(e: Emitter, n: int, m: int, align: bool, scale: float | None, dtype: str) -> Taps:
    place = e.elementwise("maximum", _places(e, n, m, align, scale, dtype), 0)
    low = e.cast(e("floor", place), "i64")
    low = _bounded(e, low, n)
    part = e("subtract", place, e.cast(low, dtype))
    part = e.elementwise("minimum", part, 1)
    high = _bounded(e, e.elementwise("add", low, 1), n)
    return [(low, e.elementwise("subtract", 1, part)), (high, part)]


def _polynomial(e: Emitter, x: Value, *factors: float) -> Value:
    """Return a polynomial, highest factor first."""
    result: Operand = factors[0]
    for factor in factors[1:]:
        result = e.elementwise("add", e.elementwise("multiply", result, x), factor)
    assert isinstance(result, Value), "a polynomial of a tensor"
    return result


def _cubic_weight(e: Emitter, distance: Value, a: float) -> Value:
    """Return Keys' kernel (IEEE Trans. ASSP 29, 1981, equation 4) at distances from 0 on."""
    near = _polynomial(e, distance, a + 2, -(a + 3), 0.0, 1.0)
    far = _polynomial(e, distance, a, -5 * a, 8 * a, -4 * a)
    outer = e.select(e.elementwise("compare_lt", distance, 2), far, 0.0, distance.type.dtype)
    return e.select(e.elementwise("compare_le", distance, 1), near, outer, distance.type.dtype)


def _cubic(e: Emitter, n: int, m: int, align: bool, scale: float | None, dtype: str) -> Taps:
    place = _places(e, n, m, align, scale, dtype)
    low = e("floor", place)
    part = e("subtract", place, low)
    first = e.cast(low, "i64")
    taps: Taps = []
    for step in (-1, 0, 1, 2):
        distance = e("abs", e.elementwise("subtract", part, step))
        taps.append((_bounded(e, e.elementwise("add", first, step), n), _cubic_weight(e, distance, -0.75)))
    return taps


def _resized(e: Emitter, x: Value, sizes: Sequence[int], taps: Callable[..., Taps], align: bool, scales: Sequence[float | None]) -> Value:
    dtype = accumulation_dtype(x.type.dtype)
    wide, lead = e.cast(x, dtype), x.type.rank - len(sizes)
    for d, (m, scale) in enumerate(zip(sizes, scales, strict=True), start=lead):
        n = x.type.shape[d]
        if n != m or scale not in (None, 1.0):
            wide = _taken(e, wide, d, taps(e, n, m, align, scale, dtype))
    return e.cast(wide, x.type.dtype)


def _resized_backward(
    e: Emitter, g: Value, shape: Sequence[int], taps: Callable[..., Taps], align: bool, scales: Sequence[float | None]
) -> Value:
    dtype = accumulation_dtype(g.type.dtype)
    wide, lead = e.cast(g, dtype), g.type.rank - len(scales)
    for d, scale in enumerate(scales, start=lead):
        n, m = shape[d], g.type.shape[d]
        if n != m or scale not in (None, 1.0):
            wide = _spread(e, wide, d, n, taps(e, n, m, align, scale, dtype))
    return e.cast(wide, g.type.dtype)


def _rows(name: str, space: int, taps: Callable[..., Taps], *, has_align: bool) -> dict[str, Callable[..., Value]]:
    def forward(e: Emitter, x: Value, sizes: Sequence[int], *rest: Any, **named: Any) -> Value:  # align_corners, scales
        align, scales = _options(rest, named, space, has_align=has_align)
        return _resized(e, x, sizes, taps, align, scales)

    def backward(e: Emitter, g: Value, _sizes: Sequence[int], shape: Sequence[int], *rest: Any, **named: Any) -> Value:
        align, scales = _options(rest, named, space, has_align=has_align)
        return _resized_backward(e, g, shape, taps, align, scales)

    return {f"aten.{name}.default": forward, f"aten.{name}_backward.default": backward}


def _options(rest: Sequence[Any], named: dict[str, Any], space: int, *, has_align: bool) -> tuple[bool, list[float | None]]:
    """Return whether corners align, and the scale of each dim."""
    given = [*rest, *named.values()]
    align = bool(given.pop(0)) if has_align else False
    return align, [*given, *[None] * (space - len(given))]


def _anti_aliased(e: Emitter, n: int, m: int, align: bool, scale: float | None, dtype: str, *, cubic: bool) -> Value:
    """Return the matrix `[m, n]` of a filter as wide as a result: triangle or Keys' kernel, its rows summing to 1."""
    ratio = ((n - 1) / (m - 1) if m > 1 else 0.0) if align else _ratio(n, m, scale)
    width = max(ratio, 1.0)
    support = (2.0 if cubic else 1.0) * width
    center = e.elementwise("multiply", e.elementwise("add", _numbers(e, m, dtype), 0.5), ratio)
    low = e("floor", e.elementwise("maximum", e.elementwise("add", center, 0.5 - support), 0.0))
    high = e("floor", e.elementwise("minimum", e.elementwise("add", center, 0.5 + support), float(n)))
    center, low, high = (e.b.broadcast(value, (m, n), (0,)) for value in (center, low, high))
    column = e.cast(index_along(e, (m, n), 1), dtype)
    distance = e("abs", e.elementwise("multiply", e.elementwise("add", e("subtract", column, center), 0.5), 1 / width))
    weight = _cubic_weight(e, distance, -0.5) if cubic else e.elementwise("maximum", e.elementwise("subtract", 1, distance), 0)
    inside = e("and", e("compare_ge", column, low), e("compare_lt", column, high))
    weight = e.select(inside, weight, 0.0, dtype)
    return e.elementwise("divide", weight, e.sum(weight, (1,), keep=True))


def _filtered_rows(name: str, *, cubic: bool) -> dict[str, Callable[..., Value]]:
    def forward(e: Emitter, x: Value, sizes: Sequence[int], align: bool, high: float | None = None, wide: float | None = None) -> Value:
        y, dtype = x, accumulation_dtype(x.type.dtype)
        y = e.cast(y, dtype)
        for d, m, scale in zip((2, 3), sizes, (high, wide), strict=True):
            y = along(e, y, d, _anti_aliased(e, x.type.shape[d], m, align, scale, dtype, cubic=cubic))
        return e.cast(y, x.type.dtype)

    def backward(
        e: Emitter, g: Value, sizes: Sequence[int], shape: Sequence[int], align: bool, high: float | None = None, wide: float | None = None
    ) -> Value:
        dtype = accumulation_dtype(g.type.dtype)
        y = e.cast(g, dtype)
        for d, m, scale in zip((2, 3), sizes, (high, wide), strict=True):
            y = along(e, y, d, _anti_aliased(e, shape[d], m, align, scale, dtype, cubic=cubic), back=True)
        return e.cast(y, g.type.dtype)

    return {f"aten.{name}.default": forward, f"aten.{name}_backward.default": backward}


def _mirrored(e: Emitter, n: int, low: int, high: int) -> Value:
    """Return for each place of a padded dim the element that stands there, mirrored at the first and the last one."""
    at = e.elementwise("subtract", index_along(e, (n + low + high,), 0), low)
    return e.elementwise("subtract", n - 1, e("abs", e.elementwise("subtract", n - 1, e("abs", at))))


def _repeated(e: Emitter, n: int, low: int, high: int) -> Value:
    """Return for each place of a padded dim the nearest element."""
    return _bounded(e, e.elementwise("subtract", index_along(e, (n + low + high,), 0), low), n)


def _pad_rows(name: str, index: Callable[..., Value]) -> dict[str, Callable[..., Value]]:
    def forward(e: Emitter, x: Value, pads: Sequence[int]) -> Value:
        for at in range(0, len(pads), 2):
            d = x.type.rank - 1 - at // 2
            if pads[at] or pads[at + 1]:
                x = take(e, x, index(e, x.type.shape[d], pads[at], pads[at + 1]), [d])
        return x

    def backward(e: Emitter, g: Value, x: Value, pads: Sequence[int]) -> Value:
        for at in range(0, len(pads), 2):
            d = x.type.rank - 1 - at // 2
            if pads[at] or pads[at + 1]:
                n = x.type.shape[d]
                g = _spread(e, g, d, n, [(index(e, n, pads[at], pads[at + 1]), None)])
        return g

    spaces = (1, 2, 3)
    forwards = {f"aten.{name}{space}d.default": forward for space in spaces}
    return forwards | {f"aten.{name}{space}d_backward.default": backward for space in spaces}


RESAMPLE: Final[dict[str, Callable[..., Any]]] = {
    **{key: row for d in (1, 2, 3) for key, row in _rows(f"upsample_nearest{d}d", d, _nearest(0.0), has_align=False).items()},
    **{key: row for d in (1, 2, 3) for key, row in _rows(f"_upsample_nearest_exact{d}d", d, _nearest(0.5), has_align=False).items()},
    **_rows("upsample_linear1d", 1, _linear, has_align=True),
    **_rows("upsample_bilinear2d", 2, _linear, has_align=True),
    **_rows("upsample_trilinear3d", 3, _linear, has_align=True),
    **_rows("upsample_bicubic2d", 2, _cubic, has_align=True),
    **_filtered_rows("_upsample_bilinear2d_aa", cubic=False),
    **_filtered_rows("_upsample_bicubic2d_aa", cubic=True),
    **_pad_rows("reflection_pad", _mirrored),
    **_pad_rows("replication_pad", _repeated),
}
