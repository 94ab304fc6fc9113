"""The heaviest set of tasks that may be done at one time: a maximum closure, as a linear program for HiGHS (https://highs.dev).

A set may be done if it holds everything that its tasks wait for. The program's vertices are such sets (Picard 1976, "Maximal closure of a
graph and applications to combinatorial problems"), so that nothing has to be made whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import highspy
import numpy as np

_TIGHT = 1e-9


class _Quiet(highspy.Highs):
    """HiGHS without its banner, which the constructor would print on its way to set up callbacks."""

    def enableCallbacks(self) -> None:  # noqa: N802  # the name is HiGHS's
        self.silent()
        super().enableCallbacks()  # type: ignore[no-untyped-call]  # highspy has no annotations here


class Closures:
    """Closures of one graph under one weighting; each question starts from the answer to the last one."""

    def __init__(self, weights: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        """Prepare.

        Args:
            weights: of each task; may be negative.
            edges: (task, a task that waits for it).
        """
        self._weights, self._num = weights, len(weights)
        scale = max((abs(weight) for weight in weights), default=0) or 1
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self._num, len(edges)
        lp.col_cost_ = np.array([-weight / scale for weight in weights], dtype=float)
        lp.col_lower_, lp.col_upper_ = np.zeros(self._num), np.ones(self._num)
        lp.row_lower_, lp.row_upper_ = np.zeros(len(edges)), np.full(len(edges), highspy.kHighsInf)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.arange(0, 2 * len(edges) + 1, 2, dtype=np.int32)
        lp.a_matrix_.index_ = np.array([task for edge in edges for task in edge], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([1.0, -1.0] * len(edges))
        self._solver = _Quiet()  # type: ignore[no-untyped-call]  # highspy has no annotations here
        for name, value in {"threads": 1, "random_seed": 0, "dual_feasibility_tolerance": _TIGHT}.items():
            self._solver.setOptionValue(name, value)
        self._solver.passModel(lp)

    def heaviest(self, inside: Iterable[int] = (), outside: Iterable[int] = ()) -> tuple[int, frozenset[int]]:
        """Return the largest weight of a closure with all of `inside` and none of `outside`, and the closure."""
        low, high = np.zeros(self._num), np.ones(self._num)
        low[list(inside)] = 1.0
        high[list(outside)] = 0.0
        self._solver.changeColsBounds(self._num, np.arange(self._num, dtype=np.int32), low, high)
        self._solver.run()
        values = self._solver.getSolution().col_value
        found = frozenset(number for number in range(self._num) if values[number] > 0.5)
        return sum(self._weights[number] for number in found), found
