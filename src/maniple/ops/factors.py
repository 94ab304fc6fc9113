"""Factor rules: which dims of an op's operands and results move together.

A rule is written like an einsum, dims separated by spaces: `m k, k n -> m n`. A dim may be made of several factors, major to
minor: `(b s) h`. Splitting a factor over devices splits every dim that it stands in; a result in which it does not stand is then
pending, to be combined as `reduce` says. A factor in `whole` cannot be split by the op's kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maniple.base.types import TensorType
from maniple.mesh.sharding import Pending

Dim = tuple[str, ...]
"""Factors of one tensor dim, major to minor."""


@dataclass(frozen=True, slots=True)
class FactorRule:
    """The factors of one op.

    Attributes:
        operands: for each operand, for each dim, its factors.
        results: the same for each result.
        sizes: number of elements of each factor.
        whole: factors that the op's kernel cannot split.
        reduce: how a result that lacks the factor is combined; `sum` where nothing is said.
    """

    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    reduce: Mapping[str, Pending] = field(default_factory=dict)

    @property
    def factors(self) -> tuple[str, ...]:
        """All factors in order of appearance, operands first."""
        sides = (*self.operands, *self.results)
        return tuple(dict.fromkeys(factor for dims in sides for dim in dims for factor in dim))

    def outer_inner(self, dim: Dim, factor: str) -> tuple[int, int]:
        """Return the products of the sizes of the factors before and after `factor` in `dim`."""
        if len(dim) == 1 and dim[0] == factor:
            return 1, 1
        at = dim.index(factor)
        return (
            math.prod(self.sizes[f] for f in dim[:at]),
            math.prod(self.sizes[f] for f in dim[at + 1 :]),
        )


def rule(
    text: str,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    *,
    sizes: Mapping[str, int] | None = None,
    whole: str = "",
    reduce: Mapping[str, Pending] | None = None,
) -> FactorRule:
    """Return the rule that `text` spells for values of these types.

    Args:
        text: e.g. `m k, k n -> m n`; a rank-0 value is an empty side; `(b s)` is one dim of two factors, `1` a dim of none.
        operands: types, to find the factors' sizes.
        results: types, likewise.
        sizes: sizes of factors that never are a dim of their own.
        whole: factors that cannot be split, separated by spaces.
        reduce: how results that lack a factor are combined, `sum` by default.

    >>> t = TensorType("f32", (2, 3))
    >>> rule("m k, n k -> m n", [t, t], [t.with_shape((2, 2))]).operands
    ((('m',), ('k',)), (('n',), ('k',)))
    """
    left, _, right = text.partition("->")
    found = dict(sizes or {})
    sides = []
    for side, types in ((left, operands), (right, results)):
        words = [_read_dims(word) for word in side.split(",")] if types else []
        assert len(words) == len(types), f"rule {text!r} does not fit {len(types)} values"
        for dims, kind in zip(words, types, strict=True):
            assert len(dims) == kind.rank, f"rule {text!r} does not fit {kind}"
            for dim, size in zip(dims, kind.shape, strict=True):
                if len(dim) == 1:
                    assert found.setdefault(dim[0], size) == size, f"rule {text!r}: factor {dim[0]} has two sizes"
        sides.append(tuple(words))
    return FactorRule(sides[0], sides[1], found, frozenset(whole.split()), dict(reduce or {}))


def _read_dims(text: str) -> tuple[Dim, ...]:
    dims: list[Dim] = []
    for match in re.finditer(r"\(([^)]*)\)|(\S+)", text):
        if match[1] is not None:
            dims.append(tuple(match[1].split()))
        else:
            dims.append(() if match[2] == "1" else (match[2],))
    return tuple(dims)
