"""Complex tensors inside of a step, as pairs of real ones: Fourier transforms and the arithmetic around them.

No program holds a complex tensor: what comes in and what leaves is real.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Complex, Emitter, Number, Operand
from maniple.capture.torch.table.contract import CONTRACT
from maniple.capture.torch.table.create import CREATE
from maniple.capture.torch.table.elementwise import ELEMENTWISE
from maniple.capture.torch.table.indexing import INDEXING
from maniple.capture.torch.table.reduce import REDUCE
from maniple.capture.torch.table.scatter import SCATTER
from maniple.capture.torch.table.views import VIEWS
from maniple.ir.program import Value

Row = Callable[..., Any]
Parts = Complex | Operand | complex


def _split(e: Emitter, x: Parts) -> tuple[Operand, Operand]:
    """Return real and imaginary part, 0 of what is real."""
    if isinstance(x, complex):
        return x.real, x.imag
    return (x.real, x.imaginary) if isinstance(x, Complex) else (x, 0.0)


def _pair(e: Emitter, x: Operand, y: Operand) -> Complex:
    """Return a complex tensor of the current op's shape and dtype."""
    real, imaginary = (e.expand(e.value(value, e.out.dtype), e.out.shape) for value in (x, y))
    return Complex(real, imaginary)


def _is_zero(x: Operand) -> bool:
    return isinstance(x, int | float) and x == 0


def _times(e: Emitter, x: Operand, y: Operand) -> Operand:
    return 0.0 if _is_zero(x) or _is_zero(y) else e.elementwise("multiply", x, y, dtype=e.out.dtype)


def _sum(e: Emitter, x: Operand, y: Operand, name: str = "add") -> Operand:
    if _is_zero(y):
        return x
    return e.elementwise(name, x, y, dtype=e.out.dtype)


def _multiply(e: Emitter, x: Parts, y: Parts) -> Complex:
    (a, b), (c, d) = _split(e, x), _split(e, y)
    return _pair(e, _sum(e, _times(e, a, c), _times(e, b, d), "subtract"), _sum(e, _times(e, a, d), _times(e, b, c)))


def _divide(e: Emitter, x: Parts, y: Parts) -> Complex:
    a, b = _split(e, x)
    if not isinstance(y, Complex | complex):
        return _pair(e, e.elementwise("divide", a, y, dtype=e.out.dtype), e.elementwise("divide", b, y, dtype=e.out.dtype))
    if isinstance(y, complex):
        return _multiply(e, x, 1 / y)
    size = e("add", e("multiply", y.real, y.real), e("multiply", y.imaginary, y.imaginary))
    top = _multiply(e, x, Complex(y.real, e("negate", y.imaginary)))
    return _pair(e, e.elementwise("divide", top.real, size), e.elementwise("divide", top.imaginary, size))


def _add(name: str) -> Row:
    def row(e: Emitter, x: Parts, y: Parts, *, alpha: Number = 1) -> Complex:
        (a, b), (c, d) = _split(e, x), _split(e, y)
        if alpha != 1:
            c, d = _times(e, c, alpha), _times(e, d, alpha)
        return _pair(e, _sum(e, a, c, name), _sum(e, b, d, name))

    return row


def _view_as_real(e: Emitter, x: Complex) -> Value:
    parts = [e.reshape(value, (*value.type.shape, 1)) for value in (x.real, x.imaginary)]
    return e("concatenate", *parts, dim=x.real.type.rank)


def _view_as_complex(e: Emitter, x: Value) -> Complex:
    dim = x.type.rank - 1
    parts = [e("slice", x, dim=dim, start=at, limit=at + 1, stride=1) for at in (0, 1)]
    return Complex(*(e.reshape(value, e.out.shape) for value in parts))


def _conjugate(e: Emitter, x: Parts) -> Parts:
    return Complex(x.real, e("negate", x.imaginary)) if isinstance(x, Complex) else x


def _abs(e: Emitter, x: Complex) -> Value:
    return e("sqrt", e("add", e("multiply", x.real, x.real), e("multiply", x.imaginary, x.imaginary)))


def _angle(e: Emitter, x: Complex) -> Value:
    return e("atan2", x.imaginary, x.real)


def _sign(e: Emitter, x: Complex) -> Complex:
    size = _abs(e, x)
    safe = e.select(e.elementwise("compare_eq", size, 0), 1, size, size.type.dtype)
    return Complex(e("divide", x.real, safe), e("divide", x.imaginary, safe))


def _polar(e: Emitter, size: Value, angle: Value) -> Complex:
    return _pair(e, e.elementwise("multiply", size, e("cosine", angle)), e.elementwise("multiply", size, e("sine", angle)))


def _exponential(e: Emitter, x: Complex) -> Complex:
    return _polar(e, e("exponential", x.real), x.imaginary)


def _part(name: str) -> Row:
    def row(e: Emitter, x: Parts) -> Value:
        if not isinstance(x, Complex):
            return e.value(_split(e, x)[0 if name == "real" else 1], e.out.dtype)
        found: Value = getattr(x, name)
        return found

    return row


def _make(e: Emitter, x: Value, y: Value) -> Complex:
    return _pair(e, x, y)


def _convert(e: Emitter, x: Parts, **_options: Any) -> Parts:  # dtype, layout, device
    if isinstance(x, Complex):
        return Complex(e.cast(x.real, e.out.dtype), e.cast(x.imaginary, e.out.dtype))
    return _pair(e, *_split(e, x))


def _product(row: Row) -> Row:
    """Return a row for a product of matrices, by the products of the parts."""

    def complex_row(e: Emitter, x: Parts, y: Parts) -> Complex:
        (a, b), (c, d) = ([_split(e, value)[at] for at in (0, 1)] for value in (x, y))

        def product(left: Operand, right: Operand) -> Operand:
            return 0.0 if _is_zero(left) or _is_zero(right) else row(e, left, right)

        return _pair(e, _sum(e, product(a, c), product(b, d), "subtract"), _sum(e, product(a, d), product(b, c)))

    return complex_row


def _by_parts(row: Row) -> Row:
    """Return a row for an op that is linear over the real numbers: it is done to each part."""

    def complex_row(e: Emitter, *args: Any, **options: Any) -> Any:
        done = []
        for at in (0, 1):
            real = [_chosen(e, value, at) for value in args]
            done.append(row(e, *real, **{name: _chosen(e, value, at) for name, value in options.items()}))
        one, other = done
        if isinstance(one, tuple):
            return tuple(Complex(a, b) for a, b in zip(one, other, strict=True))
        return Complex(one, other)

    return complex_row


def _chosen(e: Emitter, value: Any, at: int) -> Any:
    """Return one part of complex values in an argument."""
    if isinstance(value, Complex):
        return (value.real, value.imaginary)[at]
    if isinstance(value, list | tuple):
        return type(value)(_chosen(e, item, at) for item in value)
    return value


_NORMS: Final = (lambda _n: 1.0, lambda n: 1 / math.sqrt(n), lambda n: 1 / n)
"""What a transform of n elements is multiplied by: nothing, 1 over the root of n, 1 over n."""


def _scaled(e: Emitter, x: Value, shape: Sequence[int], dims: Sequence[int], norm: int) -> Value:
    factor = _NORMS[norm](math.prod(shape[d] for d in dims))
    return x if factor == 1 else e.elementwise("multiply", x, factor)


def _fft(e: Emitter, x: Complex, dims: Sequence[int], norm: int, forward: bool) -> Complex:
    found = tuple(d % x.real.type.rank for d in dims)
    if not found:
        return x
    parts = e.emit("fft", (x.real, x.imaginary), dims=found, forward=forward)
    return Complex(*(_scaled(e, part, x.real.type.shape, found, norm) for part in parts))


def _rfft(e: Emitter, x: Value, dims: Sequence[int], norm: int, one_sided: bool) -> Complex:
    found = tuple(d % x.type.rank for d in dims)
    if not one_sided:
        return _fft(e, Complex(x, e.full(0, x.type)), found, norm, True)
    parts = e.emit("rfft", (x,), dims=found)
    return Complex(*(_scaled(e, part, x.type.shape, found, norm) for part in parts))


def _irfft(e: Emitter, x: Complex, dims: Sequence[int], norm: int, size: int) -> Value:
    found = tuple(d % x.real.type.rank for d in dims)
    y = e("irfft", x.real, x.imaginary, dims=found, size=size)
    return _scaled(e, y, y.type.shape, found, norm)


def _zeros(e: Emitter, *_args: object, **_options: object) -> Complex:
    return _pair(e, 0.0, 0.0)


def _ones(e: Emitter, *_args: object, **_options: object) -> Complex:
    return _pair(e, 1.0, 0.0)


_BY_PARTS: Final = (
    VIEWS, {key: INDEXING[key] for key in ("aten.index.Tensor", "aten.index_select.default", "aten.flip.default", "aten.index_put.default",
            "aten._unsafe_index.Tensor", "aten._unsafe_index_put.default", "aten.index_add.default")},
    {key: REDUCE[key] for key in ("aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim")},
    {key: SCATTER[key] for key in ("aten.gather.default", "aten.scatter_add.default")},
    {f"aten.{name}.default": ELEMENTWISE[f"aten.{name}.default"] for name in ("alias", "detach", "clone", "neg", "positive", "copy")},
    {f"aten.{name}": CREATE[f"aten.{name}"] for name in ("tril.default", "triu.default")},
    {f"aten.where.{form}": ELEMENTWISE[f"aten.where.{form}"] for form in ("self",)},
)  # fmt: skip

COMPLEX: Final[Mapping[str, Row]] = {
    **{key: _by_parts(row) for family in _BY_PARTS for key, row in family.items()},
    **{f"aten.{name}.default": _product(CONTRACT[f"aten.{name}.default"]) for name in ("mm", "bmm", "mv", "dot")},
    **{f"aten.mul.{form}": _multiply for form in ("Tensor", "Scalar")},
    **{f"aten.div.{form}": _divide for form in ("Tensor", "Scalar")},
    **{f"aten.add.{form}": _add("add") for form in ("Tensor", "Scalar")},
    **{f"aten.sub.{form}": _add("subtract") for form in ("Tensor", "Scalar")},
    **{f"aten.{name}.default": _conjugate for name in ("conj", "_conj", "conj_physical", "_conj_physical", "_conj_copy")},
    **{f"aten.{name}.default": _convert for name in ("_to_copy", "resolve_conj", "resolve_neg")},
    **{f"aten.{name}.default": _zeros for name in ("zeros", "zeros_like", "new_zeros", "_efficientzerotensor", "empty_like")},
    **{f"aten.{name}.default": _ones for name in ("ones", "ones_like")},
    "aten.view_as_real.default": _view_as_real,
    "aten.view_as_real_copy.default": _view_as_real,
    "aten.view_as_complex.default": _view_as_complex,
    "aten.view_as_complex_copy.default": _view_as_complex,
    "aten.real.default": _part("real"),
    "aten.imag.default": _part("imaginary"),
    "aten.complex.default": _make,
    "aten.polar.default": _polar,
    "aten.exp.default": _exponential,
    "aten.abs.default": _abs,
    "aten.angle.default": _angle,
    "aten.sgn.default": _sign,
    "aten._fft_c2c.default": _fft,
    "aten._fft_r2c.default": _rfft,
    "aten._fft_c2r.default": _irfft,
}


def is_complex(value: object) -> bool:
    """Return whether a complex tensor is among an argument."""
    if isinstance(value, list | tuple):
        return any(is_complex(item) for item in value)
    return isinstance(value, Complex)
