"""The program verifier, on every row of the op table and on programs with planted faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evaluate import make_op, program_of
from samples import SAMPLES, Sample
from samples_nn import NN_SAMPLES

from maniple.base.errors import VerifyError
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.ops.check import check_program

ALL_SAMPLES = (*SAMPLES, *NN_SAMPLES)
WITH_ATTRS = {sample.name: sample for sample in ALL_SAMPLES if sample.attrs}
F32, HERE = TensorType("f32", (2, 3)), Location("train.py", 7)


@pytest.mark.parametrize("sample", ALL_SAMPLES, ids=str)
def test_samples_are_well_formed(sample: Sample) -> None:
    op = make_op(sample)
    check_program(program_of(op))


@pytest.mark.parametrize("sample", WITH_ATTRS.values(), ids=list(WITH_ATTRS))
def test_missing_and_odd_attributes_are_named(sample: Sample) -> None:
    op = replace(make_op(sample), location=HERE)
    for name in sample.attrs:
        if name == "eps" and sample.name.endswith("_grad"):  # not asked for: rstd has it
            continue
        for attrs in ([item for item in op.attrs if item[0] != name], [(key, "odd" if key == name else value) for key, value in op.attrs]):
            faulty = replace(op, attrs=tuple(attrs))
            with pytest.raises(VerifyError, match=f"attribute {name}|no dim|attribute value") as caught:
                check_program(program_of(faulty))
            assert caught.value.where == HERE


@pytest.mark.parametrize("sample", ALL_SAMPLES, ids=str)
def test_other_result_types_are_refused(sample: Sample) -> None:
    op = make_op(sample)
    longer = (*op.results[:-1], Value(op.results[-1].name, TensorType(op.results[-1].type.dtype, (*op.results[-1].type.shape, 7))))
    candidates = [(*op.results, Value("more", F32)), ()]
    if sample.like is None:
        candidates.append(longer)
    for results in candidates:
        faulty = replace(op, results=results)
        with pytest.raises(VerifyError):
            check_program(program_of(faulty))


def good() -> Program:
    x, y, z = (Value(name, F32) for name in "xyz")
    ops = (Op("add", (x, x), (y,), location=HERE), Op("negate", (y,), (z,), location=HERE))
    return Program((Input(x, "batch", "batch"),), ops, (Output(z, "result"),), (("w", y),))


def test_good_program() -> None:
    check_program(good())


def test_order_and_definitions() -> None:
    program = good()
    x, y = program.inputs[0].value, program.ops[0].results[0]
    stranger = Value("x", F32)
    faults = {
        "%y is not defined before its use": replace(program, ops=program.ops[::-1]),
        "%x is not defined": replace(program, ops=(replace(program.ops[0], operands=(stranger, x)), program.ops[1])),
        "%y is defined a second time": replace(program, ops=(program.ops[0], *program.ops)),
        "%x is defined a second time by negate|%x is defined": replace(program, ops=(replace(program.ops[0], results=(stranger,)),)),
        "'result' is %y, which nothing defines": replace(program, ops=(), gradients=(), outputs=(Output(y, "result"),)),
        "'w' is %x, which": replace(program, gradients=(("w", stranger),)),
        "two inputs are called 'batch'": replace(program, inputs=(*program.inputs, Input(Value("b", F32), "batch", "batch"))),
        "two outputs are called 'result'": replace(program, outputs=program.outputs * 2),
        "there is no op 'sum'": replace(program, ops=(replace(program.ops[0], name="sum"), program.ops[1])),
    }
    for says, faulty in faults.items():
        with pytest.raises(VerifyError, match=says):
            check_program(faulty)


def test_regions_are_checked() -> None:
    program = good()
    inner = replace(program, outputs=(Output(Value("q", F32), "q"),))
    with pytest.raises(VerifyError, match="'q' is %q"):
        check_program(replace(program, ops=(program.ops[0], replace(program.ops[1], regions=(inner,)))))
