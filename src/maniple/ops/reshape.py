"""Reshape: the factors that two shapes of one size have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.opdef import Attrs, OpDef


def infer_reshape(operands: Sequence[TensorType], _attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return `like`, which must have the operand's dtype and number of elements.

    Raises:
        ValueError: if it does not.
    """
    if len(operands) != 1 or like is None:
        raise ValueError("expected one operand and a result type")
    if like.dtype != operands[0].dtype or like.num_elements != operands[0].num_elements:
        raise ValueError(f"cannot become {like}")
    return (like,)


class _Side:
    """One of the two shapes while factors are peeled off its ends.

    Attributes:
        left: what is left of each dim.
        major: factors peeled off the major side of each dim, in order.
        minor: factors peeled off the minor side of each dim, the most minor one first.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.left = list(shape)
        self.major: list[list[str]] = [[] for _ in shape]
        self.minor: list[list[str]] = [[] for _ in shape]

    def end(self, *, from_minor: bool) -> int | None:
        """Return the first dim, from that side, of which something is left."""
        rest = [dim for dim, n in enumerate(self.left) if n != 1]
        if not rest:
            return None
        return rest[-1] if from_minor else rest[0]

    def peel(self, dim: int, size: int, name: str, *, from_minor: bool) -> None:
        self.left[dim] //= size
        (self.minor if from_minor else self.major)[dim].append(name)

    def dims(self, middle: Sequence[str]) -> tuple[Dim, ...]:
        """Return the factors of each dim; `middle` names what is left of each, empty where nothing is."""
        sides = zip(self.major, middle, self.minor, strict=True)
        return tuple((*major, *([name] if name else []), *reversed(minor)) for major, name, minor in sides)


def refine(source: Sequence[int], target: Sequence[int]) -> FactorRule:
    """Return the common refinement of two shapes with equally many elements.

    From the major side the greatest common divisor of the two outermost dims is peeled off both as a factor, as long as it is not 1; then
    the same from the minor side. What is left between does not line up: one whole factor for each dim. A dim of size 1 has no factors.

    >>> refine((8, 6), (2, 4, 2, 3)).operands
    ((('f0', 'f1'), ('f2', 'f3')),)
    >>> refine((2, 3), (3, 2)).whole == {"x0", "x1", "y0", "y1"}
    True
    """
    one, other = _Side(source), _Side(target)
    sizes: dict[str, int] = {}
    for from_minor in (False, True):
        while True:
            a, b = one.end(from_minor=from_minor), other.end(from_minor=from_minor)
            if a is None or b is None:
                break
            common = math.gcd(one.left[a], other.left[b])
            if common in (0, 1):
                break
            name = f"f{len(sizes)}"
            sizes[name] = common
            one.peel(a, common, name, from_minor=from_minor)
            other.peel(b, common, name, from_minor=from_minor)
    middles = []
    for letter, side in (("x", one), ("y", other)):
        names = [f"{letter}{dim}" if n != 1 else "" for dim, n in enumerate(side.left)]
        sizes.update({name: n for name, n in zip(names, side.left, strict=True) if name})
        middles.append(names)
    whole = frozenset(name for names in middles for name in names if name)
    return FactorRule((one.dims(middles[0]),), (other.dims(middles[1]),), sizes, whole)


def reshape_factors(op: Op) -> FactorRule:
    """Return the common refinement of the two shapes; shapes with empty dims have it for their equal leading dims only."""
    source, target = op.operands[0].type, op.results[0].type
    if source.num_elements:
        return refine(source.shape, target.shape)
    equal = 0
    while equal < min(source.rank, target.rank) and source.shape[equal] == target.shape[equal]:
        equal += 1
    sizes = {f"f{dim}": source.shape[dim] for dim in range(equal)}
    shared: tuple[Dim, ...] = tuple((name,) for name in sizes)
    sides, whole = [], []
    for letter, shape in (("x", source.shape), ("y", target.shape)):
        names = {f"{letter}{dim}": shape[dim] for dim in range(equal, len(shape))}
        sizes.update(names)
        whole += list(names)
        sides.append((*shared, *((name,) for name in names)))
    return FactorRule((sides[0],), (sides[1],), sizes, frozenset(whole))


RESHAPE: tuple[OpDef, ...] = (OpDef("reshape", infer_reshape, reshape_factors, linear_in({0}), lambda _op: 0, moves_data=True),)
"""The one op that changes how elements are grouped into dims."""
