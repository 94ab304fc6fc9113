"""The text form of task graphs, and regions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import ParseError
from maniple.taskgraph import parse_taskgraph, print_taskgraph
from maniple.taskgraph.regions import common_elements, length, normal, pieces

TEXT = """
taskgraph {
  mesh dp=2 tp=4
  shared tp
  buffer w~1: f32[8,4]{tp,_}
  buffer y: f32[8,4]{_,_|dp:sum}
  in w~1 "fc.weight \\"quoted\\""
  segment 0
  program {
    in %a0: f32[8,4]{_,_} argument "a0"
    %0: f32[8,4]{_,_} = loop(%a0) forward "train.py":12 @fc [
      program {
        in %x: f32[8,4] argument "x"
        out %x "x"
      }
    ]
    out %0 "0"
  }
  task loop.0 compute loop segment=0 once=dp,tp flops=64 bytes=128 forward "train.py":12 @fc
    read w~1 {_,_}
    write y {_,_|dp:sum}
  task all_reduce.1 collective all_reduce flops=0 bytes=12 update
    read y {_,tp} peers=dp
    read_write y {_,tp}
  edge loop.0 -> all_reduce.1 dp,tp
  edge all_reduce.1 -> loop.0
  out y "result"
}
"""


def test_round_trip() -> None:
    graph = parse_taskgraph(TEXT)
    assert print_taskgraph(graph) == TEXT.strip()
    assert graph.tasks[0].location is not None
    assert graph.tasks[1].accesses[0].part.peers == ("dp",)


def test_empty_mesh_and_no_shared_axes() -> None:
    text = "taskgraph {\n  mesh\n  shared\n}"
    assert print_taskgraph(parse_taskgraph(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("taskgraph {", "tasks {", "starts with"),
        ("\n}", "", "ends with"),
        ("segment=0", "segment=3", "segment 3"),
        ("read w~1", "read v", "'v'"),
        ("read w~1", "peek w~1", "peek"),
        ("-> all_reduce.1", "-> nobody", "nobody"),
        ("task all_reduce.1 collective", "task all_reduce.1 dance", "dance"),
        ("bytes=12 update", "bytes=12 later", "later"),
        ("buffer y:", "buffer w~1:", "'y'"),
        ('"train.py":12 @fc\n    read', '"train.py" @fc\n    read', "location"),
        ("task all_reduce.1", "task loop.0", "all_reduce.1"),
        ("mesh dp=2 tp=4", "mesh dp=2 dp=4", "twice.* in line: mesh dp=2 dp=4"),
        ("shared tp", "shared cp", "'cp'"),
        ("peers=dp", "peers=cp", "'cp'"),
        ("read w~1 {_,_}", "read w~1 {_}", "does not fit buffer 'w~1'"),
        ("%x: f32[8,4] argument", "%x: f31[8,4] argument", "in line: in %x: f31"),
    ],
)
def test_what_does_not_parse_is_named(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(ParseError, match=said):
        parse_taskgraph(TEXT.strip().replace(old, new) if old != "\n}" else TEXT.strip().removesuffix("\n}"))


RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5)


@given(RANGES, RANGES)
def test_pieces_are_the_common_indices(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = normal(first), normal(second)
    indices_a, indices_b = ([i for lo, hi in ranges for i in range(lo, hi)] for ranges in (a, b))
    assert set(indices_a) == {i for lo, hi in first for i in range(lo, hi)}
    assert length(a) == len(indices_a)
    got = [(at_a + i, at_b + i) for at_a, at_b, n in pieces(a, b) for i in range(n)]
    assert got == [(indices_a.index(i), indices_b.index(i)) for i in indices_a if i in indices_b]
    assert common_elements((a, a), (b, a)) == len(got) * len(indices_a)
