"""Integer programs for HiGHS (https://highs.dev): variables and rows collected one by one, then solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import highspy
import numpy as np


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver found.

    Attributes:
        values: of the variables; empty if there is no solution.
        is_proven: whether no better solution exists.
    """

    values: tuple[float, ...]
    is_proven: bool


class _Quiet(highspy.Highs):
    """HiGHS without its banner, which the constructor would print on its way to set up callbacks."""

    def enableCallbacks(self) -> None:  # noqa: N802  # the name is HiGHS's
        self.silent()
        super().enableCallbacks()  # type: ignore[no-untyped-call]  # highspy has no annotations here


class Milp:
    """Minimise the cost of variables in [0, 1] under linear rows.

    Attributes:
        cost: of each variable at 1.
    """

    def __init__(self) -> None:
        """Start without variables."""
        self.cost: list[float] = []
        self._is_binary: list[bool] = []
        self._starts, self._columns, self._factors = [0], list[int](), list[float]()
        self._rows: set[tuple[frozenset[tuple[int, float]], float, float]] = set()
        self._low: list[float] = []
        self._high: list[float] = []

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._low)

    def variable(self, cost: float = 0.0, *, is_binary: bool = False) -> int:
        """Return a new variable in [0, 1]."""
        self.cost.append(cost)
        self._is_binary.append(is_binary)
        return len(self.cost) - 1

    def row(self, terms: Mapping[int, float], low: float = -highspy.kHighsInf, high: float = highspy.kHighsInf) -> None:
        """Demand that the sum of `terms` (variable to factor) lies in [low, high]. What is demanded already counts once."""
        kept = {variable: factor for variable, factor in terms.items() if factor}
        row = (frozenset(kept.items()), low, high)
        if row in self._rows:
            return
        self._rows.add(row)
        self._columns += kept.keys()
        self._factors += kept.values()
        self._starts.append(len(self._columns))
        self._low.append(low)
        self._high.append(high)

    def solve(self, *, limit_s: float) -> Outcome:
        """Return the cheapest solution found within `limit_s` seconds."""
        solver = _Quiet()  # type: ignore[no-untyped-call]  # highspy has no annotations here
        options = {"threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-5, "time_limit": limit_s}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._model())
        solver.run()
        status = solver.getModelStatus()
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Outcome((), status == highspy.HighsModelStatus.kInfeasible)
        return Outcome(tuple(solver.getSolution().col_value), status == highspy.HighsModelStatus.kOptimal)

    def _model(self) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), self.num_rows
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.cost)), np.ones(len(self.cost))
        lp.row_lower_, lp.row_upper_ = np.array(self._low), np.array(self._high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self._factors)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[binary] for binary in self._is_binary]
        return lp
