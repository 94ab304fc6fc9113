"""Windows of a dim: `unfold` and its gradient, by parts of a window that stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from maniple.capture.torch.emit import Emitter
from maniple.capture.torch.table.views import padded, sliced
from maniple.ir.program import Value


def _unfold(e: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    """Return windows of `dim`: window i has elements i * step to i * step + size; the place in the window is the last dim.

    A window is cut into parts of `step` elements. Part j of all windows is one run of the dim, from j * step on.
    """
    if not x.type.rank:
        return sliced(e, e.reshape(x, (1,)), 0, 0, size)
    dim %= x.type.rank
    count, num_parts = e.out.shape[dim], -(-size // step)
    x = padded(e, x, dim, 0, (count + num_parts - 1) * step - x.type.shape[dim])
    parts = []
    for j in range(num_parts):
        part = sliced(e, x, dim, j * step, (j + count) * step)
        parts.append(e.reshape(part, (*x.type.shape[:dim], count, step, *x.type.shape[dim + 1 :])))
    windows = parts[0] if num_parts == 1 else e("concatenate", *parts, dim=dim + 1)
    windows = sliced(e, windows, dim + 1, 0, size)
    rank = windows.type.rank
    return e.transpose(windows, (*range(dim + 1), *range(dim + 2, rank), dim + 1))


def _unfold_grad(e: Emitter, g: Value, shape: Sequence[int], dim: int, size: int, step: int) -> Value:
    """Return the gradient of `_unfold`: each part of the windows put back where it was cut, and summed."""
    if not shape:
        return e.sum(g, (0,))
    dim %= len(shape)
    count, num_parts, rank = g.type.shape[dim], -(-size // step), g.type.rank
    g = e.transpose(g, (*range(dim + 1), rank - 1, *range(dim + 1, rank - 1)))
    g = padded(e, g, dim + 1, 0, num_parts * step - size)
    total: Value | None = None
    for j in range(num_parts):
        part = sliced(e, g, dim + 1, j * step, (j + 1) * step)
        part = e.reshape(part, (*shape[:dim], count * step, *shape[dim + 1 :]))
        part = padded(e, part, dim, j * step, (num_parts - 1 - j) * step)
        total = part if total is None else e("add", total, part)
    assert total is not None, "a window has elements"
    return padded(e, total, dim, 0, shape[dim] - total.type.shape[dim])


WINDOWS: Final[dict[str, Callable[..., Any]]] = {
    "aten.unfold.default": _unfold,
    "aten.unfold_backward.default": _unfold_grad,
}
