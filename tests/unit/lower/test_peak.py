"""The bound on memory, on graphs small enough to count by hand."""

from __future__ import annotations

import pytest

from maniple.ir import parse_program
from maniple.lower import lower
from maniple.lower.closure import Closures
from maniple.lower.peak import Peak, find_peak
from maniple.mesh import Mesh, Sharding
from maniple.ops.localize import Destination
from maniple.taskgraph import Task
from maniple.taskgraph.storage import BodyMemory, in_pieces, is_inside

CHAIN = """
program {
  in %x: f32[8,256]{dp,_} batch "x"
  %a: f32[8,256]{dp,_} = tanh(%x) forward "train.py":1
  %b: f32[8,256]{dp,_} = negate(%a) backward "train.py":2
  %c: f32[8,256]{dp,_} = add(%a, %b) update "train.py":3
  %d: f32[256]{_|dp:sum} = reduce_sum(%c) {dims=(0,)} update "train.py":4
  %e: f32[256]{_} = all_reduce(%d) {axis='dp'} update "train.py":5
  out %e "result"
}
"""
KIB = 1024


def body_of(task: Task, destinations: tuple[Destination, ...]) -> BodyMemory:
    """Say that a body has its results inside, and 1 KiB more while it makes them."""
    made = {"tanh": 4 * KIB, "negate": 4 * KIB, "reduce_sum": KIB, "add": KIB}[task.op]
    assert not destinations
    return BodyMemory(made + KIB, (frozenset({~0}),), (made,))


def chain(mesh: str, *shared: str, num_processors: int | None = None) -> Peak:
    return find_peak(lower(parse_program(CHAIN), Mesh.parse(mesh), shared), body_of, num_processors)


def sizes(peak: Peak) -> list[tuple[str, int, int]]:
    return [(row.task.op if row.task else "", row.held_bytes // KIB, row.body_bytes // KIB) for row in peak.tasks]


def test_one_device() -> None:
    peak = chain("dp=1")
    # a, b, then c inside of the last body, of which d is left: the result, which the collective passes on as it is
    assert sizes(peak) == [("tanh", 0, 5), ("negate", 4, 5), ("add", 8, 2), ("all_reduce", 1, 0), ("", 1, 0)]
    assert (peak.node_bytes, peak.device_bytes, peak.kept_bytes) == (10 * KIB, 10 * KIB, 0)
    assert peak.at is not None
    assert peak.at.op == "add"
    assert [(item.buffers, item.num_bytes) for item in peak.live] == [(("a",), 4 * KIB), (("b",), 4 * KIB), ((), 2 * KIB)]


@pytest.mark.parametrize(("num_processors", "total"), [(None, 20), (2, 20), (1, 20 - 2)])
def test_two_devices_of_one_node(num_processors: int | None, total: int) -> None:
    peak = chain("dp=2", "dp", num_processors=num_processors)
    # e, put together by halves and returned, is kept between steps: 1 KiB. One processor: the other device has a and b, and nothing inside
    assert peak.kept_bytes == KIB
    assert peak.node_bytes == (1 + total) * KIB
    assert sizes(peak)[2] == ("add", 17, 2 if num_processors == 1 else 4)


def test_two_devices_with_memory_of_their_own() -> None:
    peak = chain("dp=2")
    assert peak.node_bytes == peak.device_bytes == 10 * KIB


def test_does_not_grow_with_private_axes() -> None:
    assert chain("dp=2").node_bytes == chain("dp=4096").node_bytes


def test_a_device_ahead_of_another_counts() -> None:
    """A partial result is free once both devices have combined their halves, which only what comes after both can know."""
    text = """
program {
  in %x: f32[256]{_} parameter "x"
  %a: f32[256]{_|dp:sum} = to_pending(%x) {axis='dp'} forward
  %b: f32[256]{_|dp:sum} = add(%a, %a) forward
  %c: f32[256]{dp} = reduce_scatter(%b) {axis='dp'} forward
  %d: f32[256]{dp} = tanh(%c) backward
  %e: f32[]{|dp:sum} = reduce_sum(%d) {dims=(0,)} backward
  %f: f32[]{} = all_reduce(%e) {axis='dp'} backward
  %g: f32[]{} = negate(%f) update
  out %g "result"
}
"""

    def small(task: Task, _destinations: tuple[Destination, ...]) -> BodyMemory:
        made = {"add": KIB, "to_pending": KIB}.get(task.op, 4)
        return BodyMemory(made, (frozenset({~0}),), (made,))

    graph = lower(parse_program(text), Mesh.parse("dp=2"), ("dp",))
    rows = {row.task.op if row.task else "": row for row in find_peak(graph, small).tasks}
    assert rows["reduce_scatter"].held_bytes == 2 * KIB  # both partial results
    assert rows["tanh"].held_bytes >= 2 * KIB  # still: the other device may not have combined its half
    assert rows["negate"].held_bytes < KIB  # after the second collective, which waits for both


def test_state_is_the_callers() -> None:
    text = """
program {
  in %w: f32[256]{_} parameter "w"
  %v: f32[256]{_} = negate(%w) update
  out %v "w"
}
"""
    found = []

    def in_place(_task: Task, destinations: tuple[Destination, ...]) -> BodyMemory:
        found.extend(destinations)
        return BodyMemory(16, (frozenset({1}),), (0,))

    graph = lower(parse_program(text), Mesh.parse("dp=1"), ("dp",))
    assert find_peak(graph, in_place).node_bytes == 16
    assert found == [Destination(0, (0,))]


def test_closures() -> None:
    closures = Closures((5, -3, 4, -9), ((0, 1), (1, 2), (2, 3)))
    assert closures.heaviest() == (6, frozenset({0, 1, 2}))
    assert closures.heaviest(outside=(2, 3)) == (5, frozenset({0}))
    assert closures.heaviest(inside=(0, 1), outside=(2, 3)) == (2, frozenset({0, 1}))


def test_what_lies_in_pieces() -> None:
    mesh = Mesh.parse("dp=2 tp=1")
    inside = {
        ("{dp,_}", "{dp,_}"): True,
        ("{dp,_}", "{_,_}"): True,
        ("{_,_}", "{dp,_}"): False,
        ("{_,dp/3}", "{_,_}"): False,
        ("{_,dp/3}", "{_,dp/3}"): True,
        ("{_,tp/3}", "{_,_}"): True,  # an axis of one index splits nothing
        ("{_,_}", "{tp,_}"): True,
    }
    for (part, whole), expected in inside.items():
        assert is_inside(Sharding.parse(part), Sharding.parse(whole), mesh) == expected
    assert in_pieces(lower(parse_program(CHAIN), Mesh.parse("dp=2"), ("dp",))) == {"a", "b", "d"}
