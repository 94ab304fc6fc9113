"""Ops that make tensors from nothing or move elements about: constants, broadcasts, slices and their like."""

from __future__ import annotations

from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import elementwise_factors, linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.opdef import Attrs, Linear, OpDef


def int_attr(attrs: Attrs, name: str) -> int:
    """Return attribute `name`, which must be an integer.

    Raises:
        ValueError: if it is missing or no integer.
    """
    value = attrs.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"attribute {name} must be an integer, got {value!r}")  # noqa: TRY004  # what infer raises
    return value


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """Return attribute `name`, which must be a tuple of integers.

    Raises:
        ValueError: if it is missing or no tuple of integers.
    """
    value = attrs.get(name)
    if not isinstance(value, tuple) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        raise ValueError(f"attribute {name} must be a tuple of integers, got {value!r}")
    return tuple(int(item) for item in value if isinstance(item, int))


def number_attr(attrs: Attrs, name: str) -> float:
    """Return attribute `name`, which must be a number and no bool.

    Raises:
        ValueError: if it is missing or none.
    """
    value = attrs.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"attribute {name} must be a number, got {value!r}")  # noqa: TRY004  # what infer raises
    return value


def flag_attr(attrs: Attrs, name: str) -> bool:
    """Return attribute `name`, which must be True or False.

    Raises:
        ValueError: if it is missing or neither.
    """
    value = attrs.get(name)
    if not isinstance(value, bool):
        raise ValueError(f"attribute {name} must be True or False, got {value!r}")  # noqa: TRY004  # what infer raises
    return value


def dim_attr(attrs: Attrs, rank: int) -> int:
    """Return attribute `dim`, which must be in [0, rank).

    Raises:
        ValueError: if it is not.
    """
    dim = int_attr(attrs, "dim")
    if not 0 <= dim < rank:
        raise ValueError(f"there is no dim {dim} in a tensor of {rank} dims")
    return dim


def _one(operands: Sequence[TensorType]) -> TensorType:
    if len(operands) != 1:
        raise ValueError(f"expected one operand, got {len(operands)}")
    return operands[0]


def _resized(kind: TensorType, dim: int, size: int) -> TensorType:
    return kind.with_shape((*kind.shape[:dim], size, *kind.shape[dim + 1 :]))


def _free(op: Op, dim: int, source: Dim, target: Dim, sizes: dict[str, int], whole: Sequence[str]) -> FactorRule:
    """Return a rule in which `dim` has other factors in the operands than in the result, and every other dim is free."""
    shape = op.results[0].type.shape
    sides = [tuple(middle if d == dim else (f"d{d}",) for d in range(len(shape))) for middle in (source, target)]
    free = {f"d{d}": n for d, n in enumerate(shape) if d != dim}
    return FactorRule((sides[0],) * len(op.operands), (sides[1],), {**free, **sizes}, frozenset(whole))


def infer_constant(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, of rank 0.

    Raises:
        ValueError: if it has dims, or `value` is no number that the dtype holds.
    """
    if operands or like is None or like.rank:
        raise ValueError("expected no operands and a result type of rank 0")
    value = attrs.get("value")
    if not isinstance(value, bool | int | float):
        raise ValueError(f"attribute value must be a number, got {value!r}")  # noqa: TRY004  # what infer raises
    if not like.is_float and value != value // 1:
        raise ValueError(f"{value!r} is no value of type {like.dtype}")
    return (like,)


def infer_iota(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`; a local form has the offset as operand.

    Raises:
        ValueError: if there is no such dim.
    """
    if like is None or len(operands) > 1:
        raise ValueError("expected a result type and at most an offset")
    dim_attr(attrs, like.rank)
    return (like,)


def _iota_factors(op: Op) -> FactorRule:
    rule = elementwise_factors(op)
    return FactorRule((), rule.results, rule.sizes)


def infer_broadcast(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, in which the operand's dims stand at `dims` with the same sizes.

    Raises:
        ValueError: if they do not.
    """
    source, dims = _one(operands), ints_attr(attrs, "dims")
    if like is None or like.dtype != source.dtype:
        raise ValueError("expected a result type of the operand's dtype")
    if len(dims) != source.rank or len(set(dims)) != len(dims) or not all(0 <= d < like.rank for d in dims):
        raise ValueError(f"dims {dims} do not place {source.rank} dims in {like.rank}")
    if any(like.shape[d] != n for d, n in zip(dims, source.shape, strict=True)):
        raise ValueError(f"sizes differ from those of {like} at dims {dims}; reshape dims of size 1 away first")
    return (like,)


def _broadcast_factors(op: Op) -> FactorRule:
    rule = elementwise_factors(op)
    return FactorRule((tuple((f"d{dim}",) for dim in op.ints("dims")),), rule.results, rule.sizes)


def infer_transpose(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type with dims in the order `perm`.

    Raises:
        ValueError: if `perm` is no permutation.
    """
    source, perm = _one(operands), ints_attr(attrs, "perm")
    if sorted(perm) != list(range(source.rank)):
        raise ValueError(f"{perm} is no permutation of {source.rank} dims")
    return (source.with_shape(tuple(source.shape[d] for d in perm)),)


def _transpose_factors(op: Op) -> FactorRule:
    shape = op.operands[0].type.shape
    dims: tuple[Dim, ...] = tuple((f"d{d}",) for d in range(len(shape)))
    result = tuple(dims[d] for d in op.ints("perm"))
    return FactorRule((dims,), (result,), {f"d{d}": n for d, n in enumerate(shape)})


def infer_slice(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type with `dim` cut to every `stride`-th index of [start, limit).

    Raises:
        ValueError: if the range is not inside of the dim.
    """
    source = _one(operands)
    dim = dim_attr(attrs, source.rank)
    start, limit, stride = (int_attr(attrs, name) for name in ("start", "limit", "stride"))
    if not (0 <= start <= limit <= source.shape[dim] and stride > 0):
        raise ValueError(f"[{start}:{limit}:{stride}] is no range of a dim of {source.shape[dim]}")
    return (_resized(source, dim, -(-(limit - start) // stride)),)


def _slice_is_block(op: Op) -> bool:
    """Return whether the slice takes one of several equal blocks of the dim."""
    dim = op.integer("dim")
    n, length = op.operands[0].type.shape[dim], op.results[0].type.shape[dim]
    return op.integer("stride") == 1 and length > 0 and n % length == 0 and op.integer("start") % length == 0


def _slice_factors(op: Op) -> FactorRule:
    dim = op.integer("dim")
    n, length = op.operands[0].type.shape[dim], op.results[0].type.shape[dim]
    if not _slice_is_block(op):
        return _free(op, dim, ("whole",), ("part",), {"whole": n, "part": length}, ("whole", "part"))
    if n == length:
        return _free(op, dim, ("m",), ("m",), {"m": n}, ())
    return _free(op, dim, ("block", "m"), ("m",), {"block": n // length, "m": length}, ("block",))


def _localize_slice(op: Op, _operands: Sequence[TensorType], results: Sequence[TensorType]) -> Attrs:
    attrs = dict(op.attrs)
    if _slice_is_block(op):
        dim = op.integer("dim")
        length, local = op.results[0].type.shape[dim], results[0].shape[dim]
        start = op.integer("start") // length * local
        attrs.update(start=start, limit=start + local)
    return attrs


def infer_pad(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type with `low` and `high` more elements in `dim`, fewer where negative.

    Raises:
        ValueError: if nothing would be left to crop.
    """
    source = _one(operands)
    dim = dim_attr(attrs, source.rank)
    size = source.shape[dim] + int_attr(attrs, "low") + int_attr(attrs, "high")
    if size < 0 or not isinstance(attrs.get("value"), bool | int | float):
        raise ValueError(f"cannot crop a dim of {source.shape[dim]} to {size}, or attribute value is no number")
    return (_resized(source, dim, size),)


def _pad_factors(op: Op) -> FactorRule:
    dim = op.integer("dim")
    n, m = op.operands[0].type.shape[dim], op.results[0].type.shape[dim]
    return _free(op, dim, ("inner",), ("outer",), {"inner": n, "outer": m}, ("inner", "outer"))


def _pad_linear(op: Op) -> Linear:
    return (frozenset({0}),) if op.attr("value") == 0 else ()


def infer_concatenate(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type whose `dim` holds the operands one after another.

    Raises:
        ValueError: if the operands differ in anything but `dim`.
    """
    if not operands:
        raise ValueError("expected operands")
    dim = dim_attr(attrs, operands[0].rank)
    if any(kind.rank != operands[0].rank for kind in operands) or len({_resized(kind, dim, 0) for kind in operands}) != 1:
        raise ValueError(f"operands must agree in everything but dim {dim}")
    return (_resized(operands[0], dim, sum(kind.shape[dim] for kind in operands)),)


def _concatenate_factors(op: Op) -> FactorRule:
    dim = op.integer("dim")
    sizes = [value.type.shape[dim] for value in op.operands]
    if len(sizes) == 1:
        return _free(op, dim, ("m",), ("m",), {"m": sizes[0]}, ())
    if len(set(sizes)) == 1:
        return _free(op, dim, ("m",), ("block", "m"), {"m": sizes[0], "block": len(sizes)}, ("block",))
    rule = _free(op, dim, (), ("all",), {"all": sum(sizes)}, ())
    names = [f"part{number}" for number in range(len(sizes))]
    operands = tuple((*dims[:dim], (name,), *dims[dim + 1 :]) for name, dims in zip(names, rule.operands, strict=True))
    all_sizes = {**rule.sizes, **dict(zip(names, sizes, strict=True))}
    return FactorRule(operands, rule.results, all_sizes, frozenset({*names, "all"}))


def infer_local_slice(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, a piece of `dim` seen as `[blocks, rest]`; the second operand says where it begins in rest.

    Raises:
        ValueError: if it is larger than the operand, or `blocks` divides neither.
    """
    if len(operands) != 2 or operands[1] != TensorType("i64") or like is None:
        raise ValueError("expected an operand, an i64 offset and a result type")
    dim, blocks = dim_attr(attrs, operands[0].rank), int_attr(attrs, "blocks")
    n, m = operands[0].shape[dim], like.shape[dim]
    if _resized(operands[0], dim, m) != like or blocks < 1 or n % blocks or m % blocks or m > n:
        raise ValueError(f"{like} is not made of pieces of {blocks} blocks of {operands[0]}")
    return (like,)


def _local_slice_factors(op: Op) -> FactorRule:
    dim = op.integer("dim")
    n, m = op.operands[0].type.shape[dim], op.results[0].type.shape[dim]
    rule = _free(op, dim, ("all",), ("piece",), {"all": n, "piece": m}, ("all", "piece"))
    return FactorRule((rule.operands[0], ()), rule.results, rule.sizes, rule.whole)


def infer_keep_at_zero(operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the first operand's type; the second is an i64 of rank 0.

    Raises:
        ValueError: if it is not.
    """
    if len(operands) != 2 or operands[1] != TensorType("i64"):
        raise ValueError("expected an operand and an i64 index")
    return (operands[0],)


def _no_flops(_op: Op) -> int:
    return 0


def _iota_offsets(op: Op) -> tuple[str, ...]:
    return (f"d{op.integer('dim')}",)


def _concatenate_linear(op: Op) -> Linear:
    return (frozenset(range(len(op.operands))),)


_FIRST = linear_in({0})

STRUCTURE: tuple[OpDef, ...] = (
    OpDef("constant", infer_constant, _iota_factors, flops=_no_flops, is_cheap=True),
    OpDef("iota", infer_iota, _iota_factors, flops=_no_flops, offsets=_iota_offsets, is_cheap=True),
    OpDef("broadcast_in_dim", infer_broadcast, _broadcast_factors, _FIRST, _no_flops, moves_data=True, is_cheap=True),
    OpDef("transpose", infer_transpose, _transpose_factors, _FIRST, _no_flops, moves_data=True),
    OpDef("slice", infer_slice, _slice_factors, _FIRST, _no_flops, localize=_localize_slice, moves_data=True),
    OpDef("pad", infer_pad, _pad_factors, _pad_linear, _no_flops),
    OpDef("concatenate", infer_concatenate, _concatenate_factors, _concatenate_linear, _no_flops, moves_data=True),
    OpDef("local_slice", infer_local_slice, _local_slice_factors, _FIRST, _no_flops, moves_data=True),
    OpDef("keep_at_zero", infer_keep_at_zero, elementwise_factors, _FIRST, _no_flops),
)
"""Ops that compute nothing. `local_slice` and `keep_at_zero` stand in local programs only, for `shard_slice` and `to_pending`."""
