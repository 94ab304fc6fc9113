"""The dependence checker on task graphs written by hand."""

from __future__ import annotations

import time

import pytest

from maniple.base.errors import VerifyError
from maniple.mesh import Mesh
from maniple.taskgraph import parse_taskgraph
from maniple.verify.dependences import capped, check_dependences

SPLIT = """
taskgraph {
  mesh dp=2 tp=2
  shared tp
  buffer x: f32[8]{tp}
  buffer y: f32[8]{tp}
  buffer s: f32[8]{_}
  in x "x"
  task first.0 compute negate segment=0 flops=0 bytes=0 forward "train.py":1
    read x {tp}
    write y {tp}
  task second.1 compute negate segment=0 once=tp flops=0 bytes=0 forward "train.py":2
    read y {_}
    write s {_}
  task third.2 compute negate segment=0 flops=0 bytes=0 forward "train.py":3
    read s {tp}
    write y {tp}
  edge first.0 -> second.1 tp
  edge second.1 -> third.2 tp
  segment 0
  program {
  }
  out y "y"
}
"""


def check(text: str) -> None:
    check_dependences(parse_taskgraph(text))


def test_a_right_graph_passes() -> None:
    check(SPLIT)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("edge first.0 -> second.1 tp", "", r"second.1 .* after task first.0 .* buffer y"),
        ("edge first.0 -> second.1 tp", "edge first.0 -> second.1", r"second.1 .* after task first.0 .* buffer y"),
        ("edge first.0 -> second.1 tp", "edge first.0 -> second.1 dp", r"second.1 .* after task first.0 .* buffer y"),
        ("edge second.1 -> third.2 tp", "edge second.1 -> third.2", r"third.2 .* after task"),
        ("edge second.1 -> third.2 tp", "edge first.0 -> third.2 tp", r"third.2 .* after task second.1 .* buffer (s|y)"),
        (" once=tp", "", r"second.1 .* after task second.1 .* buffer s"),
        ("write s {_}", "write s {dp}", r"no task wrote"),
        ("read x {tp}\n    write y {tp}", "read x {tp}\n    write y {dp}", "buffer y"),
        ("edge second.1 -> third.2 tp", "edge second.1 -> third.2 tp\n  edge third.2 -> first.0", "cycle"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, said: str) -> None:
    assert old in SPLIT
    with pytest.raises(VerifyError, match=said):
        check(SPLIT.replace(old, new))


def test_the_users_line_is_told() -> None:
    with pytest.raises(VerifyError) as caught:
        check(SPLIT.replace("edge first.0 -> second.1 tp", ""))
    assert "train.py:2" in str(caught.value)
    assert "train.py:1" in str(caught.value)


def test_write_after_read_needs_order() -> None:
    """Task third writes what second reads: with an edge from first only it may come too early."""
    text = SPLIT.replace("read s {tp}", "read x {tp}").replace("edge second.1 -> third.2 tp", "edge first.0 -> third.2 tp")
    with pytest.raises(VerifyError, match=r"third.2 .* after task second.1 .* buffer y"):
        check(text)


PENDING = """
taskgraph {
  mesh dp=2
  shared
  buffer x: f32[8]{dp}
  buffer p: f32[]{|dp:sum}
  buffer s: f32[]{}
  in x "x"
  task sum.0 compute reduce_sum segment=0 flops=0 bytes=0 forward "train.py":1
    read x {dp}
    write p {|dp:sum}
  task all_reduce.1 collective all_reduce flops=0 bytes=0 forward "train.py":1
    read p {} peers=dp
    write s {}
  edge sum.0 -> all_reduce.1 dp
  segment 0
  program {
  }
  out s "s"
}
"""


def test_partial_results_of_peers() -> None:
    check(PENDING)
    with pytest.raises(VerifyError, match=r"all_reduce.1 at {'dp': 0} after task sum.0 at {'dp': 1}"):
        check(PENDING.replace("all_reduce.1 dp", "all_reduce.1"))


def test_a_gather_without_peers_reads_what_is_not_there() -> None:
    gathered = PENDING.replace("{|dp:sum}", "{dp}").replace("f32[]", "f32[8]").replace("{}", "{_}")
    check(gathered)
    with pytest.raises(VerifyError, match="no task wrote"):
        check(gathered.replace(" peers=dp", ""))


def test_reading_what_nobody_writes() -> None:
    with pytest.raises(VerifyError, match="no task wrote before"):
        check(PENDING.replace('in x "x"', ""))


def test_large_meshes_are_capped() -> None:
    assert str(capped(Mesh.parse("dp=1024 tp=8"))) == "dp=3 tp=3"
    assert str(capped(Mesh.parse("dp=1024 tp=8 cp=4"))) == "dp=2 tp=2 cp=2"
    assert str(capped(Mesh.parse("dp=4 tp=3"))) == "dp=4 tp=3"
    big = SPLIT.replace("dp=2 tp=2", "dp=1024 tp=8")
    check(big)
    with pytest.raises(VerifyError, match=r"second.1 .* after task first.0"):
        check(big.replace("edge first.0 -> second.1 tp", ""))


def test_two_thousand_tasks_take_seconds() -> None:
    lines = ["taskgraph {", "mesh dp=2 tp=2", "shared tp", "segment 0", "program {", "}", "buffer b0: f32[8,8]{dp,tp}", 'in b0 "x"']
    for i in range(2000):
        lines.append(f"buffer b{i + 1}: f32[8,8]{{dp,tp}}")
        lines.append(f"task t{i} compute negate segment=0 flops=0 bytes=0 forward")
        lines += [f"read b{j} {{dp,_}}" for j in range(max(0, i - 3), i + 1)]
        lines.append(f"write b{i + 1} {{dp,tp}}")
        lines += [f"edge t{i - 1} -> t{i} tp"] if i else []
    graph = parse_taskgraph("\n".join([*lines, "}"]))
    start_s = time.perf_counter()
    check_dependences(graph)
    assert time.perf_counter() - start_s < 20
