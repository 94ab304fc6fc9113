"""Segments, memory domains, edges and costs of lowered programs."""

from __future__ import annotations

import pytest

from maniple.base.errors import LoweringError
from maniple.ir import Program, parse_program
from maniple.lower import collective_bytes, lower, program_flops, state_bytes
from maniple.mesh import Mesh
from maniple.taskgraph import Task, TaskGraph

DATA_PARALLEL = """
program {
  in %w1: f32[8,8]{_,_} parameter "w1"
  in %w2: f32[8,8]{_,_} parameter "w2"
  in %x: f32[16,8]{dp,_} batch "batch"
  in %lr: f64[]{} hyperparameter "lr.0"
  %h: f32[16,8]{dp,_} = dot_general(%x, %w1) {lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(1,)} forward "m.py":1
  %y: f32[16,8]{dp,_} = dot_general(%h, %w2) {lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(1,)} forward "m.py":2
  %g2p: f32[8,8]{_,_|dp:sum} = dot_general(%y, %h) {lhs_batch=(), lhs_contract=(0,), rhs_batch=(), rhs_contract=(0,)} backward "m.py":2
  %gh: f32[16,8]{dp,_} = dot_general(%y, %w2) {lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(0,)} backward "m.py":2
  %g1p: f32[8,8]{_,_|dp:sum} = dot_general(%gh, %x) {lhs_batch=(), lhs_contract=(0,), rhs_batch=(), rhs_contract=(0,)} backward "m.py":1
  %rate: f32[]{} = convert(%lr) update "m.py":5
  %g2: f32[8,8]{_,_} = all_reduce(%g2p) {axis='dp'} update "m.py":2
  %s2: f32[8,8]{_,_} = multiply(%g2, %rate) update "m.py":5
  %n2: f32[8,8]{_,_} = subtract(%w2, %s2) update "m.py":5
  %g1: f32[8,8]{_,_} = all_reduce(%g1p) {axis='dp'} update "m.py":1
  %s1: f32[8,8]{_,_} = multiply(%g1, %rate) update "m.py":5
  %n1: f32[8,8]{_,_} = subtract(%w1, %s1) update "m.py":5
  out %n1 "w1"
  out %n2 "w2"
}
"""


def kinds(graph: TaskGraph) -> list[str]:
    """Return each task's phase if it computes, its op if it communicates."""
    return [task.phase if task.kind == "compute" else task.op for task in graph.tasks]


def graph_of(text: str, mesh: str, *shared: str) -> TaskGraph:
    return lower(parse_program(text), Mesh.parse(mesh), shared)


def task_of(graph: TaskGraph, op: str) -> Task:
    return next(task for task in graph.tasks if task.op == op)


def test_updates_of_all_parameters_are_one_segment() -> None:
    graph = graph_of(DATA_PARALLEL, "dp=2")
    assert kinds(graph) == ["forward", "backward", "all_reduce", "all_reduce", "update"]
    assert graph.tasks[-1].accesses[0].buffer == "lr"


def test_updates_that_scale_before_they_reduce_are_two_segments() -> None:
    text = DATA_PARALLEL
    for n in "12":
        text = text.replace(f"%g{n}: f32[8,8]{{_,_}} = all_reduce(%g{n}p) {{axis='dp'}}", f"%g{n}: f32[8,8]{{_,_|dp:sum}} = negate(%g{n}p)")
        text = text.replace(f"%s{n}: f32[8,8]{{_,_}} = multiply(%g{n}, %rate)", f"%s{n}: f32[8,8]{{_,_}} = all_reduce(%g{n}) {{axis='dp'}}")
    for shared in ((), ("dp",)):
        graph = graph_of(text, "dp=2", *shared)
        assert kinds(graph) == ["forward", "backward", "update", "all_reduce", "all_reduce", "update"]


def test_graph_does_not_depend_on_the_sizes_of_axes() -> None:
    small, large = graph_of(DATA_PARALLEL, "dp=2"), graph_of(DATA_PARALLEL, "dp=4096")
    assert small.edges == large.edges
    assert [task.accesses for task in small.tasks] == [task.accesses for task in large.tasks]


def test_gathers_come_right_before_their_use() -> None:
    head = 'program {\n in %x: f32[4,4]{dp,_} batch "batch"\n'
    weights = "".join(f' in %w{i}: f32[4,4]{{dp,_}} parameter "w{i}"\n' for i in range(3))
    gathers = "".join(f" %f{i}: f32[4,4]{{_,_}} = all_gather(%w{i}) {{axis='dp'}} forward\n" for i in range(3))
    attrs = "{lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(0,)}"
    dots = "".join(f" %y{i}: f32[4,4]{{dp,_}} = dot_general(%{'x' if not i else f'y{i - 1}'}, %f{i}) {attrs} forward\n" for i in range(3))
    graph = graph_of(head + weights + gathers + dots + ' out %y2 "result"\n}', "dp=2")
    assert kinds(graph) == ["all_gather", "forward"] * 3
    assert len(graph.segments) == 1
    assert {task.segment for task in graph.tasks if task.kind == "compute"} == {0}
    assert len({task.accesses for task in graph.tasks}) == 6


def test_gathers_of_new_state_do_not_cut_the_update() -> None:
    text = """
program {
  in %w1: f32[4]{_} parameter "w1"
  in %w2: f32[4]{_} parameter "w2"
  %a: f32[4]{dp} = shard_slice(%w1) {axis='dp'} update
  %b: f32[4]{dp} = negate(%a) update
  %n1: f32[4]{_} = all_gather(%b) {axis='dp'} update
  %c: f32[4]{dp} = shard_slice(%w2) {axis='dp'} update
  %d: f32[4]{dp} = negate(%c) update
  %n2: f32[4]{_} = all_gather(%d) {axis='dp'} update
  out %n1 "w1"
  out %n2 "w2"
}
"""
    assert kinds(graph_of(text, "dp=2")) == ["update", "all_gather", "all_gather"]
    shared = graph_of(text, "dp=2", "dp")
    assert kinds(shared) == ["update"]
    assert [buffer for buffer, _ in shared.outputs] == ["w1", "w2"]  # written where the inputs lie


def test_constants_are_repeated_not_stored() -> None:
    text = """
program {
  in %x: f32[4]{dp} batch "batch"
  %c: f32[]{} = constant() {value=2.0} forward
  %d: f32[]{} = negate(%c) forward
  %i: f32[4]{dp} = iota() {dim=0} forward
  %y: f32[4]{dp} = multiply(%x, %d) forward
  %z: f32[4]{dp} = multiply(%y, %d) backward
  %k: f32[4]{dp} = add(%z, %i) backward
  out %k "result"
}
"""
    graph = graph_of(text, "dp=2")
    assert [buffer.name for buffer in graph.buffers] == ["x", "y", "k"]
    assert [[op.name for op in segment.ops] for segment in graph.segments] == [
        ["constant", "negate", "multiply"], ["constant", "negate", "multiply", "iota", "add"],
    ]  # fmt: skip


def test_shared_all_reduce_is_divided_among_the_points() -> None:
    graph = graph_of(DATA_PARALLEL, "dp=2", "dp")
    reduce = task_of(graph, "all_reduce")
    assert [str(access.part.sharding) for access in reduce.accesses] == ["{dp,_}", "{dp,_}"]
    assert reduce.once == ()
    update = graph.tasks[-1]
    assert update.once == ("dp",)
    assert {str(access.part.sharding) for access in update.accesses if access.privilege == "read"} == {"{}", "{_,_}"}
    assert ("dp",) in {edge.axes for edge in graph.edges if edge.after == update.name}


def test_shared_gather_is_another_part_of_the_buffer() -> None:
    text = """
program {
  in %x: f32[4,4]{tp,_} batch "batch"
  %a: f32[4,4]{tp,_} = negate(%x) forward
  %b: f32[4,4]{_,_} = all_gather(%a) {axis='tp'} forward
  %c: f32[4,4]{_,_} = negate(%b) forward
  %d: f32[4,4]{_,tp} = shard_slice(%c) {axis='tp'} forward
  out %d "result"
}
"""
    graph = graph_of(text, "dp=2 tp=2", "tp")
    assert kinds(graph) == ["forward", "forward"]
    assert graph.tasks[1].accesses[0].buffer == "a"
    assert [edge.axes for edge in graph.edges] == [("tp",)]
    assert kinds(graph_of(text, "dp=2 tp=2", "dp")) == ["forward", "all_gather", "forward"]


def test_costs() -> None:
    program, mesh = parse_program(DATA_PARALLEL), Mesh.parse("dp=2")
    graph = lower(program, mesh)
    forward = graph.tasks[0]
    assert forward.flops == 2 * (2 * 8 * 8 * 8)
    assert forward.num_bytes == 4 * (2 * 64 + 3 * 64)
    assert task_of(graph, "all_reduce").num_bytes == 4 * 64
    assert sum(task.flops for task in graph.tasks) == program_flops(program, mesh)
    assert program_flops(program, Mesh()) == 5 * 2 * 16 * 64 + 1 + 4 * 64
    assert state_bytes(program, mesh) == {"buffer": 0, "optimizer": 0, "parameter": 2 * 256}


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("all_reduce", "{_,_|tp:sum}", "{_,_}", 2 * 256 * 3 // 4),
        ("reduce_scatter", "{_,_|tp:sum}", "{_,tp}", 256 * 3 // 4),
        ("all_gather", "{tp,_}", "{_,_}", 256 * 3 // 4),
        ("all_to_all", "{tp,_}", "{_,tp}", 64 * 3 // 4),
    ],
)
def test_collective_bytes(name: str, before: str, after: str, expected: int) -> None:
    text = f"""program {{
  in %x: f32[8,8]{before} argument "x"
  %y: f32[8,8]{after} = {name}(%x) {{axis='tp'}} forward
  out %y "y"
}}"""
    assert collective_bytes(parse_program(text).ops[0], Mesh.parse("dp=2 tp=4")) == expected


def test_state_that_only_leaves_counts() -> None:
    text = """program {
  in %w: f32[8]{dp} parameter "w"
  %m: f32[8]{dp} = negate(%w) update
  out %m "optimizer.momentum.w"
  out %m "result"
}"""
    assert state_bytes(parse_program(text), Mesh.parse("dp=4")) == {"buffer": 0, "optimizer": 8, "parameter": 8}


def test_regions_are_refused_with_the_line() -> None:
    program = parse_program('program {\n in %x: f32[2]{_} argument "x"\n %y: f32[2]{_} = negate(%x) forward "m.py":7\n out %y "y"\n}')
    (op,) = program.ops
    looped = type(op)("call", op.operands, op.results, (), (Program((), (), ()),), op.phase, op.location)
    with pytest.raises(LoweringError, match="regions") as caught:
        lower(Program(program.inputs, (looped,), program.outputs), Mesh.parse("dp=2"))
    assert "m.py:7" in str(caught.value)
