"""Repeated work divided over shared memory: the same values, less work for each device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import evaluate, random_inputs, random_program

from maniple.base.errors import VerifyError
from maniple.engine.reference import ReferenceEngine
from maniple.ir import parse_program, print_program
from maniple.ir.program import Program
from maniple.kernels.torch import compile_program
from maniple.lower import lower, program_flops
from maniple.mesh import Mesh
from maniple.shard import divide as module
from maniple.shard.divide import divide
from maniple.verify.dependences import check_dependences
from maniple.verify.sharded import verify_sharded

UPDATE = """
program {
  in %w: f64[6,4]{_,_} parameter "w"
  in %b: f64[1]{_} parameter "b"
  in %x: f64[6,4]{_,dp} batch "x"
  %g: f64[6,4]{_,_} = all_gather(%x) {axis='dp'} backward
  %d: f64[6,4]{_,_} = multiply(%g, %g) update
  %n: f64[6,4]{_,_} = add(%w, %d) update
  %m: f64[1]{_} = negate(%b) update
  out %n "w"
  out %m "b"
}
"""


def test_an_update_is_divided_along_its_longest_dim() -> None:
    mesh = Mesh.parse("dp=2")
    program = divide(parse_program(UPDATE), mesh, ("dp",))
    layouts = {op.name: str(op.results[0].layout) for op in program.ops if op.phase == "update"}
    assert layouts["multiply"] == layouts["add"] == "{dp,_}"
    assert layouts["negate"] == "{_}"  # nothing to divide
    assert [str(item.value.layout) for item in program.outputs] == ["{_,_}", "{_}"]
    assert program_flops(program, mesh) < program_flops(parse_program(UPDATE), mesh)
    graph = lower(program, mesh, ("dp",))
    assert [task.kind for task in graph.tasks] == ["compute"]  # the gather is no task
    assert graph.outputs[0] == ("w", "w")


def test_memory_that_is_not_shared_leaves_the_program_as_it_is() -> None:
    program = parse_program(UPDATE)
    assert print_program(divide(program, Mesh.parse("dp=2"), ())) == print_program(program)


@pytest.mark.parametrize(("rows", "parts"), [(6, "dp"), (8, "dp.tp")])
def test_a_second_axis_cuts_between_rows_or_nowhere(rows: int, parts: str) -> None:
    """Six rows among four devices are 2, 1, 2 and 1, which no part of the 36 elements of the reshaped tensor is."""
    n, mesh = rows * 6, Mesh.parse("dp=2 tp=2")
    text = f"""
program {{
  in %w: f64[{rows},6]{{_,_}} parameter "w"
  %v: f64[{n}]{{_}} = reshape(%w) update
  %n: f64[{n}]{{_}} = multiply(%v, %v) update
  out %w "w"
  out %n "n"
}}
"""
    program = parse_program(text)
    divided = divide(program, mesh, ("dp", "tp"))
    verify_sharded(divided, mesh)
    assert next(str(op.results[0].layout) for op in divided.ops if op.name == "reshape") == f"{{{parts}}}"
    inputs = random_inputs(program, 0)
    got = ReferenceEngine(compile_program).run(lower(divided, mesh, ("dp", "tp")), inputs)
    torch.testing.assert_close(got["n"], inputs["w"].reshape(-1).square())


def is_legal(program: Program, mesh: Mesh) -> bool:
    """Return whether no output of a random program is a partial result, or state of another layout."""
    try:
        verify_sharded(program, mesh)
    except VerifyError:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**9), st.sampled_from(("dp=2", "dp=3 tp=2", "dp=2 tp=2 cp=2")), st.integers(0, 7), st.integers(1, 25), st.booleans()
)
def test_any_program(seed: int, mesh_text: str, number: int, num_ops: int, everywhere: bool) -> None:
    mesh = Mesh.parse(mesh_text)
    program = random_program(seed, mesh, num_ops)
    shared = tuple(axis for i, axis in enumerate(mesh.names) if number >> i & 1)
    with pytest.MonkeyPatch.context() as patch:
        if everywhere:
            patch.setattr(module, "MIN_FLOPS", 0)
        divided = divide(program, mesh, shared)
    if is_legal(program, mesh):
        verify_sharded(divided, mesh)
    assert [(item.name, item.value.layout) for item in divided.outputs] == [(item.name, item.value.layout) for item in program.outputs]
    graph = lower(divided, mesh, shared)
    check_dependences(graph)
    inputs = random_inputs(program, seed)
    got, want = ReferenceEngine(compile_program).run(graph, inputs), evaluate(program, inputs)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-9)
