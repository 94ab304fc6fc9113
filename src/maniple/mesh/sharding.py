"""How a tensor lies on a mesh: shards per dim, and partial results still to be combined.

An axis splits a dim of n elements, seen as `blocks x m x unit`, along m: the shard with index i holds, of every block, the
units `[i*c, min((i+1)*c, m))` with `c = ceil(m / k)`. `blocks=1, unit=1` is the plain split. `unit=64` keeps the 64 elements of an
attention head together however unevenly the heads divide; `blocks=3` splits each of three fused matrices on its own. Several
axes on one dim, written major to minor, split in turn: each one splits what the ones before it left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from maniple.base.errors import ParseError
from maniple.base.literals import NUMBER
from maniple.mesh.mesh import Mesh

Pending = Literal["sum", "max", "min"]
"""How partial results are combined."""

Interval = tuple[int, int]
"""Half-open range of indices of one dim."""


def shard_bounds(n: int, ways: int, index: int) -> Interval:
    """Return the range of `n` rows that shard `index` of `ways` holds; later shards may be short or empty.

    >>> [shard_bounds(5, 4, i) for i in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    chunk = -(-n // ways)
    return min(index * chunk, n), min((index + 1) * chunk, n)


@dataclass(frozen=True, slots=True)
class AxisPart:
    """One mesh axis that splits one dim, seen as `blocks x m x unit`, along m."""

    axis: str
    blocks: int = 1
    unit: int = 1

    def __str__(self) -> str:
        """Return the text form: `tp`, `tp/3` for three blocks, `tp*64` for units of 64."""
        return self.axis + (f"/{self.blocks}" if self.blocks != 1 else "") + (f"*{self.unit}" if self.unit != 1 else "")

    @staticmethod
    def parse(text: str) -> AxisPart:
        """Return the part that `text` spells.

        Raises:
            ParseError: if `text` is not of the form `axis/blocks*unit`.
        """
        match = re.fullmatch(rf"(\w+)(?:/({NUMBER}))?(?:\*({NUMBER}))?", text)
        if match is None:
            raise ParseError(f"cannot read axis part {text!r}", hint="write it as tp, tp/3 or tp*64")
        blocks, unit = int(match[2] or 1), int(match[3] or 1)
        if not blocks or not unit:
            raise ParseError(f"axis part {text!r} has no blocks or units", hint="numbers from 1 on: tp/3, tp*64")
        return AxisPart(match[1], blocks, unit)


@dataclass(frozen=True, slots=True)
class Sharding:
    """The layout of one value.

    Attributes:
        dims: for each tensor dim the axis parts that split it, major to minor.
        pending: axes over which the value is still a partial result, with how to combine it; sorted by axis.

    A mesh axis appears at most once. Over an axis that does not appear the value is replicated.
    """

    dims: tuple[tuple[AxisPart, ...], ...] = ()
    pending: tuple[tuple[str, Pending], ...] = ()

    @staticmethod
    def replicated(rank: int) -> Sharding:
        """Return the layout of a value of `rank` dims that every device holds whole."""
        return Sharding(((),) * rank)

    @property
    def axes(self) -> frozenset[str]:
        """The axes over which the value is not replicated."""
        return frozenset(p.axis for parts in self.dims for p in parts) | {axis for axis, _ in self.pending}

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        return not self.axes

    def along(self, axis: str) -> tuple[int, AxisPart] | Pending | None:
        """Return the dim and part that `axis` splits, the kind of pending, or None where replicated."""
        for dim, parts in enumerate(self.dims):
            for part in parts:
                if part.axis == axis:
                    return dim, part
        return dict(self.pending).get(axis)

    def without(self, axis: str) -> Sharding:
        """Return this layout, replicated over `axis`."""
        dims = tuple(tuple(p for p in parts if p.axis != axis) for parts in self.dims)
        return Sharding(dims, tuple(item for item in self.pending if item[0] != axis))

    def split(self, dim: int, part: AxisPart) -> Sharding:
        """Return this layout with `part` added as the most minor one of `dim`."""
        dims = tuple((*parts, part) if d == dim else parts for d, parts in enumerate(self.dims))
        return replace(self, dims=dims)

    def with_pending(self, axis: str, kind: Pending) -> Sharding:
        """Return this layout with `axis` pending."""
        return replace(self, pending=tuple(sorted([*self.pending, (axis, kind)])))

    def local_shape(self, shape: tuple[int, ...], mesh: Mesh, point: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Return the shape that the device at `point` holds; the first device, whose shards are largest, by default."""
        return tuple(sum(hi - lo for lo, hi in intervals(n, parts, mesh, point or {})) for n, parts in zip(shape, self.dims, strict=True))

    def region(self, shape: tuple[int, ...], mesh: Mesh, point: Mapping[str, int]) -> tuple[tuple[Interval, ...], ...]:
        """Return, for each dim, the global ranges of indices that the device at `point` holds, in local order."""
        return tuple(intervals(n, parts, mesh, point) for n, parts in zip(shape, self.dims, strict=True))

    def __str__(self) -> str:
        """Return the text form, e.g. `{dp,_|tp:sum}`: dims, then what is pending."""
        dims = ",".join(".".join(map(str, parts)) or "_" for parts in self.dims)
        return "{" + dims + "".join(f"|{axis}:{kind}" for axis, kind in self.pending) + "}"

    @staticmethod
    def parse(text: str) -> Sharding:
        """Return the layout that `text` spells.

        >>> str(Sharding.parse("{dp.tp*64,_|cp:sum}"))
        '{dp.tp*64,_|cp:sum}'

        Raises:
            ParseError: if `text` is not a layout, or an axis appears twice.
        """
        if not (text.startswith("{") and text.endswith("}")):
            raise ParseError(f"cannot read sharding {text!r}", hint="write it as {dp,_} or {_,tp|dp:sum}")
        dims_text, *pending_texts = text[1:-1].split("|")
        pending: list[tuple[str, Pending]] = []
        for item in pending_texts:
            axis, _, kind = item.partition(":")
            if kind not in ("sum", "max", "min") or not re.fullmatch(r"\w+", axis):
                raise ParseError(f"cannot read pending {item!r} in {text!r}", hint="write it as tp:sum")
            pending.append((axis, kind))  # type: ignore[arg-type]  # narrowed to the literal by the test above
        dims = tuple(
            () if word == "_" else tuple(AxisPart.parse(part) for part in word.split("."))
            for word in (dims_text.split(",") if dims_text else [])
        )
        axes = [part.axis for parts in dims for part in parts] + [axis for axis, _ in pending]
        for axis in axes:
            if axes.count(axis) > 1:
                raise ParseError(f"sharding {text!r} uses axis {axis!r} twice", hint="an axis splits one dim, or is pending once")
        return Sharding(dims, tuple(sorted(pending)))


def intervals(n: int, parts: tuple[AxisPart, ...], mesh: Mesh, point: Mapping[str, int]) -> tuple[Interval, ...]:
    """Return the global index ranges of a dim of `n` that `parts` leave to the device at `point`.

    Parts of one dim must share `blocks` and `unit`; the propagation reshards where they would not.

    >>> intervals(12, (AxisPart("tp", blocks=3),), Mesh((("tp", 2),)), {"tp": 1})
    ((2, 4), (6, 8), (10, 12))
    """
    if not parts:
        return ((0, n),)
    blocks, unit = parts[0].blocks, parts[0].unit
    size = n // (blocks * unit)
    lo, hi = 0, size
    for part in parts:
        a, b = shard_bounds(hi - lo, mesh.size(part.axis), point.get(part.axis, 0))
        lo, hi = lo + a, lo + b
    return tuple((block * size * unit + lo * unit, block * size * unit + hi * unit) for block in range(blocks))
