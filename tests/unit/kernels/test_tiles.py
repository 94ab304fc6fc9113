"""Groups of elementwise ops, run by tiles: the same numbers as op by op, whatever memory results go to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from maniple.base.types import TensorType
from maniple.ir import parse_program
from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.kernels.torch import compile_program
from maniple.kernels.torch.tiles import TILE_ELEMENTS, Group, grouped
from maniple.ops.localize import Destination

SHAPES = ((TILE_ELEMENTS * 2 + 37,), (3, TILE_ELEMENTS), (1, 70, 2000), (200, 1001))
OPS = ("add", "multiply", "subtract", "negate", "tanh", "maximum")


def random_chain(seed: int, shape: tuple[int, ...]) -> Program:
    """Return a program of elementwise ops, some of rank 0, some of another shape."""
    rng = random.Random(seed)
    kind, other = TensorType("f64", shape), TensorType("f64", (5,))
    values = [Value(f"x{n}", kind) for n in range(3)] + [Value("s", TensorType("f64")), Value("y", other)]
    inputs = tuple(Input(value, "parameter", value.name) for value in values)
    ops: list[Op] = []
    for number in range(rng.randint(3, 20)):
        name = rng.choice(OPS)
        first = rng.choice(values)
        operands = (
            (first,) if name in ("negate", "tanh") else (first, rng.choice([v for v in values if v.type == first.type] + [values[3]]))
        )
        result = Value(f"v{number}", first.type)
        ops.append(Op(name, operands, (result,)))
        values.append(result)
    chosen = rng.sample([op.results[0] for op in ops], min(3, len(ops)))
    return Program(inputs, tuple(ops), tuple(Output(value, value.name) for value in chosen))


def one_by_one(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run each op as a body of its own."""
    known = {item.value: tensor for item, tensor in zip(program.inputs, tensors, strict=True)}
    for op in program.ops:
        single = Program(tuple(Input(v, "argument", v.name) for v in dict.fromkeys(op.operands)), (op,), (Output(op.results[0], "r"),))
        known[op.results[0]] = compile_program(single)(*(known[v] for v in dict.fromkeys(op.operands)))[0]
    return [known[item.value] for item in program.outputs]


def drawn(program: Program, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(item.value.type.shape, dtype=torch.float64, generator=generator) for item in program.inputs]
    # some with strides: a slice of something wider, or a transposed tensor
    if made[1].dim() == 2:
        made[1] = made[1].t().contiguous().t()
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_op_by_op(shape: tuple[int, ...]) -> None:
    num_groups = 0
    for seed in range(15):
        program = random_chain(seed, shape)
        tensors = drawn(program, seed)
        num_groups += sum(isinstance(item, Group) for item in grouped(program.ops))
        want = one_by_one(program, [tensor.clone() for tensor in tensors])
        for got in (compile_program(program)(*tensors), run_with_destinations(program, tensors, seed)):
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)
    assert num_groups >= 10


def run_with_destinations(program: Program, tensors: list[torch.Tensor], seed: int) -> tuple[torch.Tensor, ...]:
    """Let outputs go to new memory, or over inputs of their type."""
    rng = random.Random(seed)
    given, out, free = [], [], [0, 1, 2]
    for number, item in enumerate(program.outputs):
        if item.value.type.rank and item.value.type.shape != (5,) and rng.random() < 0.8:
            over = free.pop(rng.randrange(len(free)))
            fresh = rng.random() < 0.3
            given.append(Destination(number, () if fresh else (over,)))
            out.append(torch.full_like(tensors[over], torch.nan) if fresh else tensors[over])
    got = compile_program(program, given)(*tensors, *out)
    for destination, tensor in zip(given, out, strict=True):
        assert got[destination.output] is tensor
    return got


TRANSPOSED = """
program {
  in %w: f64[512,512] parameter "w"
  %t: f64[512,512] = transpose(%w) {perm=(1, 0)} update
  %a: f64[512,512] = negate(%w) update
  %b: f64[512,512] = add(%a, %a) update
  %c: f64[512,512] = add(%t, %b) update
  out %b "w"
  out %c "c"
}
"""


def test_nothing_reads_what_was_written_over() -> None:
    """`%t` is a view of `%w`, and is read after the group begins: `%b` may go to `%w` only at the end."""
    program = parse_program(TRANSPOSED)
    w = torch.randn(512, 512, dtype=torch.float64)
    before = w.clone()
    new, c = compile_program(program, [Destination(0, (0,))])(w, w)
    assert new is w
    assert torch.equal(w, -2 * before)
    assert torch.equal(c, before.t() - 2 * before)


def test_views_are_told() -> None:
    program = parse_program(TRANSPOSED)
    with_view = replace(program, outputs=(*program.outputs, Output(program.ops[0].results[0], "t")))
    assert compile_program(with_view).views == (frozenset(), frozenset(), frozenset({0}))


CROSS_ENTROPY = """
program {
  in %g: f64[7] argument "g"
  in %labels: i64[7] argument "labels"
  in %y: f64[7,11] argument "y"
  %p: f64[7,11] = pick_grad(%g, %labels) {ignore_index=-100} backward
  %d: f64[7,11] = log_softmax_grad(%p, %y) {dim=1} backward
  out %d "d"
}
"""


def test_gradient_of_cross_entropy() -> None:
    program = parse_program(CROSS_ENTROPY)
    apart = replace(program, outputs=(*program.outputs, Output(program.ops[0].results[0], "p")))  # needed by itself: not fused
    y = torch.log_softmax(torch.randn(7, 11, dtype=torch.float64), 1)
    labels = torch.tensor([3, -100, 0, 10, 10, -100, 5])
    g = torch.randn(7, dtype=torch.float64)
    one, other = compile_program(program), compile_program(apart)
    assert "pick_grad" not in one.source
    assert "pick_grad" in other.source
    torch.testing.assert_close(one(g, labels, y)[0], other(g, labels, y)[0], rtol=1e-14, atol=1e-16)


ADAM = """
program {
  in %p: f64[9,5] parameter "p"
  in %g: f64[9,5] argument "g"
  in %m: f64[9,5] optimizer "m"
  in %v: f64[9,5] optimizer "v"
  in %a: f64[] argument "a"
  in %b: f64[] argument "b"
  in %c: f64[] argument "c"
  in %d: f64[] argument "d"
  in %s: f64[] argument "s"
  in %k: f64[] argument "k"
  %e: f64[] = constant() {value=1e-08} update
  %q: f64[9,5] = multiply(%p, %k) update
  %1: f64[9,5] = subtract(%g, %m) update
  %2: f64[9,5] = multiply(%1, %a) update
  %3: f64[9,5] = add(%m, %2) update
  %4: f64[9,5] = multiply(%v, %b) update
  %5: f64[9,5] = multiply(%g, %g) update
  %6: f64[9,5] = multiply(%5, %c) update
  %7: f64[9,5] = add(%4, %6) update
  %8: f64[9,5] = sqrt(%7) update
  %9: f64[9,5] = divide(%8, %d) update
  %10: f64[9,5] = add(%9, %e) update
  %11: f64[9,5] = divide(%3, %10) update
  %12: f64[9,5] = multiply(%11, %s) update
  %13: f64[9,5] = add(%q, %12) update
  out %13 "p"
  out %3 "m"
  out %7 "v"
}
"""


def adam_inputs(step: int, lr: float, decay: float) -> list[torch.Tensor]:
    p, g, m, v = torch.randn(4, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    beta1, beta2 = 0.9, 0.99
    numbers = (1 - beta1, beta2, 1 - beta2, (1 - beta2**step) ** 0.5, -lr / (1 - beta1**step), 1 - lr * decay)
    return [p, g, m, v.abs(), *(torch.tensor(number, dtype=torch.float64) for number in numbers)]


@pytest.mark.parametrize("step", [1, 2, 17, 3000, 10**6])
@pytest.mark.parametrize(("lr", "decay"), [(1e-3, 0.1), (0.5, 0.0), (0.0, 0.1), (-1e-3, 0.1)])
def test_adam(step: int, lr: float, decay: float) -> None:
    program = parse_program(ADAM)
    if not decay:
        text = ADAM.replace("  %q: f64[9,5] = multiply(%p, %k) update\n", "").replace("add(%q", "add(%p")
        program = parse_program(text)
    inputs = adam_inputs(step, lr, decay)
    want = one_by_one(program, [x.clone() for x in inputs])
    body = compile_program(program)
    assert "adam(" in body.source
    given = [x.clone() for x in inputs]
    for got, expected in zip(body(*given), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
    assert all(torch.equal(x, y) for x, y in zip(given, inputs, strict=True))
    over = compile_program(program, [Destination(0, (0,)), Destination(1, (2,)), Destination(2, (3,))])
    for strided in (False, True):
        given = [x.t().contiguous().t() if strided and x.dim() else x.clone() for x in inputs]
        for got, expected, x in zip(over(*given, given[0], given[2], given[3]), want, (given[0], given[2], given[3]), strict=True):
            assert got is x
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_an_update_that_something_looks_into_stays_apart() -> None:
    program = parse_program(ADAM.replace('  out %7 "v"', '  out %7 "v"\n  out %8 "root"'))
    assert "adam(" not in compile_program(program).source
