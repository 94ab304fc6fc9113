"""From a sharded program to index tasks over buffers."""

from maniple.lower.cost import collective_bytes, program_flops, state_bytes
from maniple.lower.tasks import lower

__all__ = ["collective_bytes", "lower", "program_flops", "state_bytes"]
