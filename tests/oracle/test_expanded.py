"""Composites split along a factor that their kernel needs whole: the decomposition, with its collectives, equals the op on one device."""

from __future__ import annotations

import pytest
from evaluate import assert_close, make_op, program_of, whole
from samples import Sample
from samples_nn import NN_SAMPLES

from maniple.engine.reference import ReferenceEngine
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import definition
from maniple.ops.collectives import COMMUNICATING
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts
from maniple.shard.options import Along, Split, split_factor
from maniple.shard.propagate import propagate
from maniple.verify.sharded import verify_sharded


def sharding_of(rank: int, along: Along) -> Sharding:
    sharding = Sharding.replicated(rank)
    return sharding.split(along.dim, AxisPart("x", along.blocks, along.unit)) if isinstance(along, Split) else sharding


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize("sample", [s for s in NN_SAMPLES if definition(s.name).decompose], ids=str)
def test_expanded(sample: Sample, ways: int) -> None:
    op, values, mesh = make_op(sample), sample.draw(), Mesh((("x", ways),))
    program = program_of(op)
    rule = definition(op.name).factors(op)
    inputs = {item.name: value for item, value in zip(program.inputs, values, strict=True)}
    expected = whole(sample, values)
    for factor in rule.factors:
        option = split_factor(op, rule, factor, ways)
        if option is None:
            continue
        assert option.expands == (factor in rule.whole)
        layouts = Layouts(
            inputs={
                item.name: sharding_of(item.value.type.rank, along) for item, along in zip(program.inputs, option.operands, strict=True)
            },
            order=("x",),
            options={"x": {op: option}},
        )
        sharded = propagate(program, mesh, layouts, CostModel())
        assert (op.name in {inner.name for inner in sharded.ops}) != option.expands
        verify_sharded(sharded, mesh)
        outputs = ReferenceEngine(compile_program).run(lower(sharded, mesh), inputs)
        assert_close([outputs[item.name] for item in program.outputs], expected)


def test_batch_statistics_are_all_that_moves() -> None:
    samples = {s.name: s for s in NN_SAMPLES if s.name.startswith("batch_norm") and s.operands[0].type.shape == (4, 5, 3)}
    for name, sample in samples.items():
        op = make_op(sample)
        option = split_factor(op, definition(name).factors(op), "b", 2)
        assert option is not None
        program = program_of(op)
        layouts = Layouts({i.name: sharding_of(i.value.type.rank, a) for i, a in zip(program.inputs, option.operands, strict=True)}, ("x",))
        sharded = propagate(program, Mesh((("x", 2),)), layouts, CostModel())
        moved = [(inner.name, inner.results[0].type.shape) for inner in sharded.ops if inner.name in COMMUNICATING]
        # mean and variance forward, dw and db backward; the large result is gathered because it leaves the program
        assert sorted(moved) == [("all_gather", (4, 5, 3)), ("all_reduce", (5,)), ("all_reduce", (5,))]
    assert len(samples) == 2
