"""What bodies are said to allocate, against what PyTorch's allocator sees when they run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from allocations import Allocations
from evaluate import arguments, make_op, program_of
from samples import SAMPLES, Sample
from samples_nn import NN_SAMPLES

from maniple.ir import parse_program
from maniple.ir.program import Program
from maniple.kernels.torch import body_memory, compile_program
from maniple.ops.localize import LocalProgram, Offset
from maniple.taskgraph.storage import BodyMemory

SCALARS = 64
"""Python numbers among the operands of an op are tensors of a few bytes."""


def measured(program: Program, values: Sequence[torch.Tensor | int], allocations: Allocations) -> tuple[int, int]:
    """Return the most bytes that a body has allocated, and the bytes of its results."""
    body = compile_program(program)
    body(*values)  # what is made once and kept, such as oneDNN's primitives
    base = allocations.live_bytes
    allocations.reset()
    results = body(*values)
    peak, kept = allocations.peak_bytes - base, allocations.live_bytes - base
    del results
    return peak, kept


def estimated(program: Program, values: Sequence[torch.Tensor | int]) -> BodyMemory:
    return body_memory(LocalProgram(program, (Offset(1, ()),) * sum(isinstance(value, int) for value in values)))


@pytest.mark.parametrize("sample", [*SAMPLES, *NN_SAMPLES], ids=str)
def test_every_op(sample: Sample, allocations: Allocations) -> None:
    program, values = program_of(make_op(sample)), arguments(sample, sample.draw())
    peak, kept = measured(program, values, allocations)
    memory = estimated(program, values)
    assert peak <= memory.peak_bytes
    assert kept <= sum(memory.new_bytes)
    if sample.name != "keep_at_zero":  # which allocates on some devices only
        assert kept == sum(memory.new_bytes)


CHAIN = """
program {
  in %x: f32[64,1024]{_,_} parameter "x"
  in %w: f32[1024,512]{_,_} parameter "w"
  %a: f32[64,512]{_,_} = dot_general(%x, %w) {lhs_batch=(), lhs_contract=(1,), rhs_batch=(), rhs_contract=(0,)} forward
  %b: f32[64,512]{_,_} = tanh(%a) forward
  %c: f32[512,64]{_,_} = transpose(%b) {perm=(1, 0)} forward
  %d: f32[32,64]{_,_} = slice(%c) {dim=0, limit=32, start=0, stride=1} forward
  %e: f32[64,1024]{_,_} = reshape(%x) forward
  %f: f32[64]{_} = reduce_sum(%b) {dims=(1,)} forward
  out %d "d"
  out %e "e"
  out %f "f"
  out %c "c"
}
"""


def test_results_are_views_of_what_they_are_views_of() -> None:
    kib = 1024
    memory = body_memory(parse_program(CHAIN))
    assert memory.places == (frozenset({~0}), frozenset({0}), frozenset({~2}), frozenset({~0}))
    assert memory.new_bytes == (128 * kib, 0, 256, 0)  # d lies in all of b
    assert memory.peak_bytes - SCALARS == 256 * kib  # a and b at one time; f comes when a is gone


def test_a_chain_of_ops(allocations: Allocations) -> None:
    program = parse_program(CHAIN)
    values = [torch.rand(64, 1024), torch.rand(1024, 512)]
    memory = estimated(program, values)
    assert measured(program, values, allocations) == (memory.peak_bytes - SCALARS, sum(memory.new_bytes))


def test_no_memory_and_little_time_for_any_size() -> None:
    text = CHAIN.replace("1024", str(1 << 20)).replace("512", str(1 << 19)).replace("64", str(1 << 18))
    assert body_memory(parse_program(text)).new_bytes[0] == 4 << 37


CONVOLUTIONS = [
    (8, 16, 32, 32, 3, 1, 1), (8, 3, 16, 64, 7, 2, 1), (4, 64, 64, 16, 3, 1, 1), (16, 32, 33, 8, 3, 2, 1), (8, 16, 32, 32, 1, 2, 1),
    (2, 64, 64, 16, 3, 1, 64), (1, 8, 8, 8, 3, 1, 1), (8, 64, 64, 1, 3, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_convolutions(sizes: tuple[int, ...], dtype: str, allocations: Allocations) -> None:
    n, c, k, pixels, window, stride, groups = sizes
    out = (pixels + 2 * (window // 2) - window) // stride + 1
    x, w, y = f"{dtype}[{n},{c},{pixels},{pixels}]", f"{dtype}[{k},{c // groups},{window},{window}]", f"{dtype}[{n},{k},{out},{out}]"
    pair = "({0}, {0})"
    attrs = f"{{dilation=(1, 1), groups={groups}, padding={pair.format(window // 2)}, stride={pair.format(stride)}}}"
    none = "{_,_,_,_}"
    for op, first, second, result in (
        ("convolution", x, w, y), ("convolution_grad_input", y, w, x), ("convolution_grad_weight", y, x, w),
    ):  # fmt: skip
        text = f"""program {{
  in %a: {first}{none} parameter "a"
  in %b: {second}{none} parameter "b"
  %c: {result}{none} = {op}(%a, %b) {attrs} forward
  out %c "c"
}}"""
        program = parse_program(text)
        kind = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]
        values = [torch.rand(item.value.type.shape).to(kind) for item in program.inputs]
        peak, kept = measured(program, values, allocations)
        memory = estimated(program, values)
        assert peak <= memory.peak_bytes, op
        assert kept == sum(memory.new_bytes), op


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize(("rows", "keys", "width"), [(64, 64, 16), (200, 300, 32), (800, 800, 8), (5, 600, 64)])
def test_attention(rows: int, keys: int, width: int, dtype: str, allocations: Allocations) -> None:
    q, k = f"{dtype}[2,4,{rows},{width}]{{_,_,_,_}}", f"{dtype}[2,4,{keys},{width}]{{_,_,_,_}}"
    lse = f"{'f64' if dtype == 'f64' else 'f32'}[2,4,{rows}]{{_,_,_}}"
    text = f"""program {{
  in %q: {q} parameter "q"
  in %k: {k} parameter "k"
  in %v: {k} parameter "v"
  in %g: {q} parameter "g"
  %o: {q}, %l: {lse} = attention(%q, %k, %v) {{causal=False, scale=0.5}} forward
  %a: {q}, %b: {k}, %c: {k} = attention_grad(%g, %q, %k, %v, %o, %l) {{causal=False, scale=0.5}} forward
  out %a "a"
  out %b "b"
  out %c "c"
}}"""
    program = parse_program(text)
    kind = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]
    values = [torch.rand(item.value.type.shape).to(kind) for item in program.inputs]
    peak, kept = measured(program, values, allocations)
    memory = estimated(program, values)
    assert peak <= memory.peak_bytes
    assert kept == sum(memory.new_bytes)
