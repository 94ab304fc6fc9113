"""A mesh: named axes over devices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from maniple.base.errors import ParseError
from maniple.base.literals import NUMBER


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices arranged along named axes, the first axis varying slowest.

    >>> Mesh.parse("dp=2 tp=4").num_devices
    8
    """

    axes: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Axis names, major to minor."""
        return tuple(name for name, _ in self.axes)

    @property
    def num_devices(self) -> int:
        """Product of the axis sizes."""
        return math.prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Return the number of devices along `axis`.

        Raises:
            KeyError: if the mesh has no such axis.
        """
        return dict(self.axes)[axis]

    def points(self) -> Iterator[Point]:
        """Yield the coordinates of every device, in device order."""
        for index in itertools.product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, index, strict=True))

    def device(self, point: Point) -> int:
        """Return the number of the device at `point`."""
        number = 0
        for name, size in self.axes:
            number = number * size + point[name]
        return number

    def group(self, point: Point, axes: tuple[str, ...]) -> Iterator[Point]:
        """Yield the points that agree with `point` on every axis but `axes`, in device order."""
        for index in itertools.product(*(range(self.size(axis)) for axis in axes)):
            yield {**point, **dict(zip(axes, index, strict=True))}

    def __str__(self) -> str:
        """Return the text form, e.g. `dp=2 tp=4`."""
        return " ".join(f"{name}={size}" for name, size in self.axes)

    @staticmethod
    def parse(text: str) -> Mesh:
        """Return the mesh that `text` spells.

        Raises:
            ParseError: if `text` is not a list of `name=size`, each name once.
        """
        axes: list[tuple[str, int]] = []
        for word in text.split():
            match = re.fullmatch(rf"([A-Za-z_]\w*)=({NUMBER})", word)
            if match is None or not int(match[2]):
                raise ParseError(f"cannot read mesh axis {word!r}", hint="write it as dp=2")
            if match[1] in dict(axes):
                raise ParseError(f"the mesh {text!r} has axis {match[1]} twice", hint="write each axis once")
            axes.append((match[1], int(match[2])))
        return Mesh(tuple(axes))


Point = dict[str, int]
"""Coordinates of a device: axis name to index."""
