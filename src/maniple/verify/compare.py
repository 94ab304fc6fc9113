"""Compares the tensors of two runs, with a tolerance that comes from how sensitive the computation is.

The measure of a tensor is the norm of the difference over the larger of its norm and 1e-3 of the norm of all tensors of its kind. The
tolerance is 1e-9 in float64, or 30 times the same measure between two one-device runs whose parameters differ by one unit in the last
place if that is larger, but never above 1e-6. Integers must agree exactly. In lower precisions, of which nothing is proved, a tensor may
be twice as far away as the nudged run is, up to `NOISE_CAP`: some (a bias before a softmax, under Adam) are nothing but rounding errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

BASE: Final = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Tolerance of a well-conditioned computation, by the precision it was done in."""

CAP: Final = {"float64": 1e-6, "float32": 1e-2, "float16": 1e-1, "bfloat16": 2e-1}
"""What no sensitivity excuses."""

NOISE_CAP: Final = 0.9
"""In lower precisions: below 1, the measure of a tensor that is twice what it should be, or zero."""

SENSITIVITY_FACTOR: Final = 30
KIND_SHARE: Final = 1e-3

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a run.

    Attributes:
        kind: `loss`, `parameter`, `buffer` or `optimizer`.
        precision: dtype that it was computed in, e.g. `float64`.
        data: its values, as float64 or as integers.
    """

    kind: str
    precision: str
    data: Array


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one tensor is from the expected one, and how far it may be."""

    name: str
    kind: str
    measure: float
    sensitivity: float
    tolerance: float

    @property
    def equal(self) -> bool:
        """Whether the tensor is right; a NaN never is."""
        return self.measure <= self.tolerance


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tensors of two runs."""

    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether every tensor is right."""
        return all(item.equal for item in self.differences)

    @property
    def worst(self) -> Difference:
        """The tensor that is furthest beyond its tolerance."""

        def excess(item: Difference) -> float:
            if np.isnan(item.measure):
                return np.inf
            return item.measure / item.tolerance if item.tolerance else item.measure * np.inf if item.measure else 0.0

        return max(self.differences, key=excess)


def compare(expected: Mapping[str, Tensor], got: Mapping[str, Tensor], nudged: Mapping[str, Tensor]) -> Comparison:
    """Return the differences between two runs.

    Args:
        expected: tensors of the one-device run by name.
        got: tensors of the run to check; must have the same names and shapes.
        nudged: tensors of a one-device run whose parameters began one unit in the last place away.
    """
    scales = _kind_norms(expected.values())
    differences = []
    for name, want in expected.items():
        if name not in got or got[name].data.shape != want.data.shape:
            differences.append(Difference(name, want.kind, np.inf, 0.0, 0.0))
            continue
        scale = scales[want.kind]
        measure = _measure(want, got[name], scale)
        sensitivity = _measure(want, nudged[name], scale) if name in nudged else 0.0
        differences.append(Difference(name, want.kind, measure, sensitivity, _tolerance(want, sensitivity)))
    differences += [Difference(name, item.kind, np.inf, 0.0, 0.0) for name, item in got.items() if name not in expected]
    return Comparison(tuple(differences))


def has_nan(tensor: Tensor) -> bool:
    """Return whether an element is not a number."""
    return tensor.data.dtype.kind == "f" and bool(np.isnan(tensor.data).any())


def _kind_norms(tensors: Iterable[Tensor]) -> dict[str, float]:
    squares: dict[str, float] = {}
    for item in tensors:
        if item.data.dtype.kind == "f":
            squares[item.kind] = squares.get(item.kind, 0.0) + float(np.square(item.data).sum())
        else:
            squares.setdefault(item.kind, 0.0)
    return {kind: float(np.sqrt(total)) for kind, total in squares.items()}


def _measure(want: Tensor, got: Tensor, kind_norm: float) -> float:
    if want.data.dtype.kind != "f" or got.data.dtype.kind != "f":
        return 0.0 if np.array_equal(want.data, got.data) else np.inf
    same = (want.data == got.data) | (np.isnan(want.data) & np.isnan(got.data))
    with np.errstate(invalid="ignore"):
        distance = float(np.linalg.norm(np.where(same, 0.0, want.data - got.data)))
    scale = max(float(np.linalg.norm(want.data)), KIND_SHARE * kind_norm)
    return distance / scale if scale and np.isfinite(scale) else distance


def _tolerance(want: Tensor, sensitivity: float) -> float:
    if want.data.dtype.kind != "f":
        return 0.0
    base, cap = BASE.get(want.precision, BASE["float64"]), CAP.get(want.precision, CAP["float64"])
    tolerance = min(max(base, SENSITIVITY_FACTOR * sensitivity), cap)
    if want.precision == "float64" or not np.isfinite(sensitivity):
        return tolerance
    return max(tolerance, min(2 * sensitivity, NOISE_CAP))
