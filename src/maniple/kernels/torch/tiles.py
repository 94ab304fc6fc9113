"""Elementwise ops on large tensors, run a tile at a time so that what passes between them stays in a core's cache.

A group is a run of elementwise ops whose results have one shape. It becomes a loop over slices of its operands along their first dims:
memory is read once for each operand and written once for each result that others need, however many ops there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from maniple.ir.program import Op, Value
from maniple.kernels.torch.elementwise import ELEMENTWISE

TILE_ELEMENTS: Final = 1 << 16
"""Elements of a tile: some tensors of so many fit in 512 KiB of cache, and each call on one takes ten times what it costs to make."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Elementwise ops with results of one shape, in order."""

    ops: tuple[Op, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all results."""
        return self.ops[0].results[0].type.shape

    @property
    def dim(self) -> int:
        """The dim that is cut: the first one with more than one index."""
        return next(d for d, n in enumerate(self.shape) if n > 1)

    @property
    def rows(self) -> int:
        """Indices of that dim in a tile."""
        n = self.shape[self.dim]
        return max(1, TILE_ELEMENTS * n // self.ops[0].results[0].type.num_elements)

    @property
    def operands(self) -> tuple[Value, ...]:
        """What the group takes from outside and cuts into tiles."""
        made = {value for op in self.ops for value in op.results}
        return tuple(dict.fromkeys(value for op in self.ops for value in op.operands if value.type.rank and value not in made))


def grouped(ops: Sequence[Op]) -> Iterator[Op | Group]:
    """Yield `ops` with runs of elementwise ops on large tensors as groups; ops of rank 0 between them come first."""
    run: list[Op] = []
    for op in ops:
        if run and _joins(op, run):
            run.append(op)
        elif run and all(not value.type.rank for value in (*op.operands, *op.results)):
            yield op
        else:
            yield from _closed(run)
            run = [op] if _is_large(op) else []
            if not run:
                yield op
    yield from _closed(run)


def _is_large(op: Op) -> bool:
    """Return whether `op` is elementwise, and large enough for a group."""
    kind = op.results[0].type
    return op.name in ELEMENTWISE and kind.num_elements > TILE_ELEMENTS and all(v.type.shape in ((), kind.shape) for v in op.operands)


def _joins(op: Op, run: Sequence[Op]) -> bool:
    return _is_large(op) and op.results[0].type.shape == run[0].results[0].type.shape


def _closed(run: Sequence[Op]) -> Iterator[Op | Group]:
    if len(run) > 1:
        yield Group(tuple(run))
    else:
        yield from run
