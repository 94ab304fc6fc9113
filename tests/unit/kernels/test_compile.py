"""Compiling a program to Python: names, constants, lifetimes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from maniple.base.errors import LoweringError
from maniple.base.types import TensorType
from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.kernels.torch import TORCH_DTYPES, compile_program
from maniple.kernels.torch.emit import literal
from maniple.ops import CATALOG, Builder

BINARY = ("add", "subtract", "multiply", "divide", "power", "remainder", "maximum", "minimum", "compare_lt", "compare_eq")


def program(inputs: list[Value], builder: Builder, *outputs: Value) -> Program:
    arguments = tuple(Input(value, "argument", value.name) for value in inputs)
    return Program(arguments, tuple(builder.ops), tuple(Output(value, value.name) for value in outputs))


def constants(dtype: str) -> list[float]:
    return [-2, 3] if dtype.startswith("i") else [-0.1, 2.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [case for case in itertools.product(BINARY, ("f64", "f32", "i64", "i32")) if case not in (("power", "i64"), ("power", "i32"))],
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_inlined_constant_computes_as_a_tensor_does(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    kind = TensorType(dtype, shape)
    x = torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(TORCH_DTYPES[dtype])
    for number, is_left in itertools.product(constants(dtype), (True, False)):
        results = []
        for inline in (True, False):
            builder = Builder(CATALOG)
            value, scalar = builder.fresh(kind), builder.fresh(TensorType(dtype))
            other = builder.constant(number, dtype) if inline else scalar
            result = builder(name, *((other, value) if is_left else (value, other)))
            body = compile_program(program([value, scalar], builder, result))
            assert "torch.full" not in body.source or (name, is_left) in (("remainder", True), ("divide", True))
            (output,) = body(x, torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
            assert output.dtype == TORCH_DTYPES[result.type.dtype]
            assert tuple(output.shape) == shape
            results.append(output)
        torch.testing.assert_close(results[0], results[1], equal_nan=True)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i32"])
def test_constants_alone_keep_their_dtype(name: str, dtype: str) -> None:
    builder = Builder(CATALOG)
    result = builder(name, builder.constant(3, dtype), builder.constant(2, dtype))
    (output,) = compile_program(program([], builder, result))()
    assert output.dtype == TORCH_DTYPES[result.type.dtype]
    assert output.shape == ()


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "bool"])
def test_select_between_constants(dtype: str) -> None:
    builder = Builder(CATALOG)
    predicate, branch = builder.fresh(TensorType("bool", (2,))), builder.fresh(TensorType(dtype, (2,)))
    one, two = builder.constant(1, dtype), builder.constant(0, dtype)
    always = builder.constant(value=True, dtype="bool")
    cases = [(predicate, one, two), (predicate, two, branch), (predicate, branch, one), (always, branch, one)]
    outputs = [builder("select", *case) for case in cases]
    p, x = torch.tensor([True, False]), torch.tensor([1, 0]).to(TORCH_DTYPES[dtype])
    results = compile_program(program([predicate, branch], builder, *outputs))(p, x)
    assert [result.dtype for result in results] == [TORCH_DTYPES[dtype]] * 4
    assert [result.tolist() for result in results] == [[1, 0], [0, 0], [1, 1], [1, 0]]


def test_a_negative_base_is_taken_as_a_whole() -> None:
    builder = Builder(CATALOG)
    x = builder.fresh(TensorType("f64", (2,)))
    result = builder("power", builder.constant(-2.0, "f64"), x)
    (output,) = compile_program(program([x], builder, result))(torch.tensor([2.0, 3.0], dtype=torch.float64))
    assert output.tolist() == [4.0, -8.0]


def test_a_constant_may_be_an_output_and_an_operand_of_any_op() -> None:
    builder = Builder(CATALOG)
    constant = builder.constant(1.5, "f32")
    wide = builder.broadcast(constant, (2, 3), ())
    one, other = compile_program(program([], builder, constant, wide))()
    assert torch.equal(one, torch.tensor(1.5))
    assert torch.equal(other, torch.full((2, 3), 1.5))


def test_names_become_identifiers_and_stay_different() -> None:
    kind = TensorType("f64", (2,))
    names = ["a.b", "a_b", "a-b", "class", "import os; os.abort()", "é", "1"]
    values = [Value(name, kind) for name in names]
    builder = Builder(CATALOG, prefix="t")
    total = values[0]
    for value in values[1:]:
        total = builder("add", total, value)
    tensors = [torch.full((2,), 10.0**n, dtype=torch.float64) for n in range(len(names))]
    (output,) = compile_program(program(values, builder, total))(*tensors)
    assert output.tolist() == [1111111.0] * 2


def test_values_are_dropped_after_their_last_use() -> None:
    builder = Builder(CATALOG, prefix="t")
    x = builder.fresh(TensorType("f64", (2,)))
    a = builder("negate", x)
    b = builder("add", a, x)
    unused = builder("exponential", b)
    body = compile_program(program([x], builder, b))
    name = {value: f"v{number}_{value.name}" for number, value in enumerate([x, a, b, unused])}
    assert body.source.splitlines() == [
        f"def body({name[x]}):",
        f"    {name[a]} = torch.neg({name[x]})",
        f"    {name[b]} = {name[a]} + {name[x]}",
        f"    del {name[a]}, {name[x]}",
        f"    {name[unused]} = torch.exp({name[b]})",
        f"    del {name[unused]}",
        f"    return ({name[b]},)",
    ]


def test_an_input_may_be_an_output_and_a_program_may_be_empty() -> None:
    x = Value("x", TensorType("f64", (2,)))
    tensor = torch.ones(2, dtype=torch.float64)
    assert compile_program(Program((Input(x, "argument", "x"),), (), (Output(x, "x"), Output(x, "y"))))(tensor) == (tensor, tensor)
    assert compile_program(Program((), (), ()))() == ()


def test_no_gradients_are_recorded() -> None:
    builder = Builder(CATALOG)
    x = builder.fresh(TensorType("f32", (2,)))
    body = compile_program(program([x], builder, builder("tanh", x)))
    assert not body(torch.ones(2, requires_grad=True))[0].requires_grad


def test_an_op_without_kernel_is_refused_by_name() -> None:
    x, y = Value("x", TensorType("f64")), Value("y", TensorType("f64"))
    with pytest.raises(LoweringError, match="all_reduce"):
        compile_program(Program((Input(x, "argument", "x"),), (Op("all_reduce", (x,), (y,), (("axis", "x"),)),), (Output(y, "y"),)))


def test_integers_divide_towards_zero_and_remainders_have_the_dividends_sign() -> None:
    builder = Builder(CATALOG)
    x, y = builder.fresh(TensorType("i64", (2,))), builder.fresh(TensorType("i64", (2,)))
    body = compile_program(program([x, y], builder, builder("divide", x, y), builder("remainder", x, y)))
    quotient, remainder = body(torch.tensor([-7, 7]), torch.tensor([2, -2]))
    assert quotient.tolist() == [-3, -3]
    assert remainder.tolist() == [-1, 1]


@pytest.mark.parametrize("value", [object(), [1], {"a": 1}, (1, [2]), torch.float32])
def test_only_plain_attributes_are_written(value: object) -> None:
    with pytest.raises(TypeError):
        literal(value)  # type: ignore[arg-type]
