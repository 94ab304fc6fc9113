"""Index tasks over buffers: what engines run and the simulator times."""

from maniple.taskgraph.graph import Access, Buffer, Edge, Part, Privilege, Task, TaskGraph
from maniple.taskgraph.text import parse_taskgraph, print_taskgraph

__all__ = [
    "Access", "Buffer", "Edge", "Part", "Privilege", "Task", "TaskGraph", "parse_taskgraph", "print_taskgraph",
]  # fmt: skip
