"""The text form of task graphs, and its parser.

```
taskgraph {
  mesh dp=2 tp=4
  shared tp
  buffer w: f32[8,4]{tp,_}
  in w "fc.weight"
  segment 0
  program {
    ...
  }
  task dot_general.0 compute dot_general segment=0 once=tp flops=64 bytes=128 forward "train.py":12 @fc
    read w {tp,_}
    read x {_,_} peers=dp
    write y {dp,_}
  edge dot_general.0 -> all_reduce.1 dp,tp
  out y "result"
}
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

from maniple.base.errors import ParseError
from maniple.base.literals import NUMBER, QUOTED, quote, unquote
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Phase, Program
from maniple.ir.text import parse_program, print_program
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Edge, Part, Privilege, Task, TaskGraph, TaskKind

_NAME = r"[\w.:/$~-]+"
_AXES = r"\w+(?:,\w+)*"
_BUFFER = re.compile(rf"buffer ({_NAME}): (\w+\[[\d,]*\])(\{{[^}}]*\}})")
_ENDPOINT = re.compile(rf"(in|out) ({_NAME}) ({QUOTED})")
_TASK = re.compile(
    rf"task ({_NAME}) (\w+) (\w+)(?: segment=({NUMBER}))?(?: once=({_AXES}))?"
    rf" flops=({NUMBER}) bytes=({NUMBER}) (\w+)(?: (\".*))?"
)
_ACCESS = re.compile(rf"(\w+) ({_NAME}) (\{{[^}}]*\}})(?: peers=({_AXES}))?")
_EDGE = re.compile(rf"edge ({_NAME}) -> ({_NAME})(?: ({_AXES}))?")


def print_taskgraph(graph: TaskGraph) -> str:
    """Return the text form of `graph`."""
    lines = ["taskgraph {", f"  mesh {graph.mesh}".rstrip(), f"  shared {','.join(graph.shared)}".rstrip()]
    lines += [f"  buffer {b.name}: {b.type}{b.sharding}" for b in graph.buffers]
    lines += [f"  in {buffer} {quote(name)}" for buffer, name in graph.inputs]
    for number, segment in enumerate(graph.segments):
        lines += [f"  segment {number}", print_program(segment, "  ")]
    for task in graph.tasks:
        lines.append("  " + print_task(task))
        lines += ["    " + print_access(access) for access in task.accesses]
    lines += [f"  edge {e.before} -> {e.after} {','.join(e.axes)}".rstrip() for e in graph.edges]
    lines += [f"  out {buffer} {quote(name)}" for buffer, name in graph.outputs]
    return "\n".join([*lines, "}"])


def print_task(task: Task) -> str:
    """Return the first line of a task's text form: all but its accesses."""
    line = f"task {task.name} {task.kind} {task.op}"
    line += f" segment={task.segment}" if task.segment >= 0 else ""
    line += f" once={','.join(task.once)}" if task.once else ""
    line += f" flops={task.flops} bytes={task.num_bytes} {task.phase}"
    return line + (f" {task.location.text()}" if task.location else "")


def print_access(access: Access) -> str:
    """Return an access as text, e.g. `read w {tp,_} peers=dp`."""
    peers = f" peers={','.join(access.part.peers)}" if access.part.peers else ""
    return f"{access.privilege} {access.buffer} {access.part.sharding}{peers}"


@dataclass(slots=True)
class _Draft:
    """What was read so far."""

    mesh: Mesh = field(default_factory=Mesh)
    shared: tuple[str, ...] = ()
    buffers: list[Buffer] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    segments: list[Program] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)

    def finish(self) -> TaskGraph:
        return TaskGraph(
            self.mesh, self.shared, tuple(self.buffers), tuple(self.tasks), tuple(self.edges),
            tuple(self.segments), tuple(self.inputs), tuple(self.outputs),
        )  # fmt: skip


def parse_taskgraph(text: str) -> TaskGraph:
    """Return the task graph that `text` spells.

    Raises:
        ParseError: naming the line that does not parse, or a name that nothing defines.
    """
    lines = iter([line.strip() for line in text.strip().splitlines() if line.strip()])
    if next(lines, "") != "taskgraph {":
        raise ParseError("a task graph starts with 'taskgraph {'")
    draft = _Draft()
    for line in lines:
        if line == "}":
            graph = draft.finish()
            _check_names(graph)
            _check_axes(graph)
            return graph
        try:
            _parse_line(line, lines, draft)
        except ParseError as error:
            raise error.in_line(line) from error
    raise ParseError("a task graph ends with '}'")


def _parse_line(line: str, lines: Iterator[str], draft: _Draft) -> None:
    word, _, rest = line.partition(" ")
    if word == "mesh":
        draft.mesh = Mesh.parse(rest)
    elif word == "shared":
        draft.shared = _axes(rest)
    elif match := _BUFFER.fullmatch(line):
        draft.buffers.append(Buffer(match[1], TensorType.parse(match[2]), Sharding.parse(match[3])))
    elif match := _ENDPOINT.fullmatch(line):
        (draft.inputs if match[1] == "in" else draft.outputs).append((match[2], unquote(match[3])))
    elif line == f"segment {len(draft.segments)}":
        draft.segments.append(parse_program("\n".join(_program_lines(lines))))
    elif match := _TASK.fullmatch(line):
        draft.tasks.append(_read_task(match, line))
    elif match := _EDGE.fullmatch(line):
        draft.edges.append(Edge(match[1], match[2], _axes(match[3] or "")))
    elif (match := _ACCESS.fullmatch(line)) and match[1] in get_args(Privilege) and draft.tasks:
        privilege: Privilege = match[1]  # type: ignore[assignment]  # narrowed by the test just above
        access = Access(match[2], Part(Sharding.parse(match[3]), _axes(match[4] or "")), privilege)
        draft.tasks[-1] = replace(draft.tasks[-1], accesses=(*draft.tasks[-1].accesses, access))
    else:
        raise ParseError(f"cannot read the line: {line}")


def _axes(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _program_lines(lines: Iterator[str]) -> Iterator[str]:
    depth = 0
    for line in lines:
        yield line
        depth += (line == "program {") - (line == "}")
        if depth <= 0:
            return


def _read_task(match: re.Match[str], line: str) -> Task:
    name, kind, op, segment, once, flops, num_bytes, phase, location = match.groups()
    if kind not in get_args(TaskKind) or phase not in get_args(Phase):
        raise ParseError(f"unknown kind or phase of task in line: {line}")
    where = Location.parse(location or "")
    if location and where is None:
        raise ParseError(f"cannot read the location in line: {line}")
    number = int(segment) if segment else -1
    task_kind: TaskKind = kind  # type: ignore[assignment]  # checked above
    task_phase: Phase = phase  # type: ignore[assignment]  # checked above
    return Task(name, task_kind, op, (), number, _axes(once or ""), int(flops), int(num_bytes), task_phase, where)


def _check_names(graph: TaskGraph) -> None:
    buffers, tasks = {b.name for b in graph.buffers}, {t.name for t in graph.tasks}
    used = [name for name, _ in (*graph.inputs, *graph.outputs)] + [a.buffer for t in graph.tasks for a in t.accesses]
    for name in used:
        if name not in buffers:
            raise ParseError(f"buffer {name!r} is used but not defined")
    for name in (name for edge in graph.edges for name in (edge.before, edge.after)):
        if name not in tasks:
            raise ParseError(f"an edge names task {name!r}, which does not exist")
    if len(buffers) != len(graph.buffers) or len(tasks) != len(graph.tasks):
        raise ParseError("two buffers or two tasks have one name")
    for task in graph.tasks:
        if task.segment >= len(graph.segments):
            raise ParseError(f"task {task.name!r} runs segment {task.segment}, which does not exist")


def _check_axes(graph: TaskGraph) -> None:
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    layouts = [(buffer.name, buffer.sharding) for buffer in graph.buffers]
    layouts += [(access.buffer, access.part.sharding) for task in graph.tasks for access in task.accesses]
    for name, sharding in layouts:
        if len(sharding.dims) != types[name].rank:
            raise ParseError(f"layout {sharding} does not fit buffer {name!r}, which is {types[name]}")
    named = [graph.shared, *(sharding.axes for _, sharding in layouts), *(edge.axes for edge in graph.edges)]
    named += [task.once for task in graph.tasks] + [access.part.peers for task in graph.tasks for access in task.accesses]
    for axis in (axis for axes in named for axis in sorted(axes)):
        if axis not in graph.mesh.names:
            raise ParseError(f"axis {axis!r} is used, but the mesh is {graph.mesh or 'empty'}")
