"""Index tasks over buffers: what engines run and the simulator times."""

from maniple.taskgraph.graph import Access, Buffer, Edge, Part, Privilege, Task, TaskGraph

__all__ = ["Access", "Buffer", "Edge", "Part", "Privilege", "Task", "TaskGraph"]
