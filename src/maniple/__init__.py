"""Take a training step as it is, shard it by a strategy, run it as tasks, get the numbers of one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniple.base.errors import ManipleError
from maniple.mesh import Strategy

if TYPE_CHECKING:
    from maniple.api.step import Step, parallelize

__all__ = ["ManipleError", "Step", "Strategy", "parallelize"]


def __getattr__(name: str) -> Any:
    """Import what needs the solver and numpy when it is first asked for: `import maniple` stays quick."""
    if name not in {"Step", "parallelize"}:
        raise AttributeError(f"module 'maniple' has no attribute {name!r}")
    from maniple.api import step

    return getattr(step, name)
