"""Take a training step as it is, shard it by a strategy, run it as tasks, get the numbers of one device."""

from maniple.api.step import Step, parallelize
from maniple.base.errors import ManipleError
from maniple.mesh import Strategy

__all__ = ["ManipleError", "Step", "Strategy", "parallelize"]
