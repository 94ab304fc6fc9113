"""Every row of the op table, tested by its definition.

The shards of an op, evaluated and combined, equal the whole, for every factor that may be split, 2 and 3 ways, with short and empty
shards; an op is linear in what the row says; a decomposition computes the same as the op.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from evaluate import arguments, assert_close, lay, make_op, program_of, run, run_sharded, type_of, whole
from samples import SAMPLES, Sample, f
from samples_nn import NN_SAMPLES
from samples_order import ORDER_SAMPLES

from maniple.base.types import TensorType
from maniple.ir.program import Op, Output, Program, Value, sorted_attrs
from maniple.kernels.torch.compile import VIEWS
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import CATALOG, Builder, FactorRule, definition
from maniple.ops.collectives import COMMUNICATING, LOCAL

ALL_SAMPLES = (*SAMPLES, *NN_SAMPLES, *ORDER_SAMPLES)
SAMPLE_IDS = [str(sample) for sample in ALL_SAMPLES]
every_sample = pytest.mark.parametrize("sample", ALL_SAMPLES, ids=SAMPLE_IDS)


def splittable(rule: FactorRule) -> list[str]:
    return [factor for factor in rule.factors if factor not in rule.whole]


def check(sample: Sample, mesh: Mesh, axes: dict[str, tuple[AxisPart, ...]]) -> None:
    op, values = make_op(sample), sample.draw()
    expected = whole(sample, values)
    laid = lay(op, definition(op.name).factors(op), axes)
    try:
        actual = run_sharded(laid, mesh, arguments(sample, values), expected)
        assert_close(actual, expected)
    except Exception as error:
        error.add_note(f"{laid!r} on {mesh}")
        raise


def test_every_row_has_a_sample() -> None:
    assert {sample.name for sample in ALL_SAMPLES} == set(CATALOG) - COMMUNICATING - LOCAL


@every_sample
def test_rule_fits_types(sample: Sample) -> None:
    op = make_op(sample)
    rule = definition(op.name).factors(op)
    assert rule.whole <= set(rule.factors)
    assert set(rule.reduce) <= set(rule.factors)
    assert set(definition(op.name).offsets(op)) <= set(rule.factors)
    for value, dims in zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True):
        for n, dim in zip(value.type.shape, dims, strict=True):
            size = 1
            for factor in dim:
                size *= rule.sizes[factor]
            assert size == n


@every_sample
def test_types(sample: Sample) -> None:
    op, values = make_op(sample), sample.draw()
    assert [type_of(value) for value in values] == [value.type for value in op.operands]
    assert [type_of(value) for value in whole(sample, values)] == [value.type for value in op.results]


@pytest.mark.parametrize("ways", [2, 3])
@every_sample
def test_each_factor(sample: Sample, ways: int) -> None:
    op = make_op(sample)
    for factor in splittable(definition(op.name).factors(op)):
        check(sample, Mesh((("x", ways),)), {factor: (AxisPart("x"),)})


@every_sample
def test_two_axes_on_one_factor(sample: Sample) -> None:
    op = make_op(sample)
    for factor in splittable(definition(op.name).factors(op)):
        check(sample, Mesh((("x", 2), ("y", 2))), {factor: (AxisPart("x"), AxisPart("y"))})


@every_sample
def test_two_factors(sample: Sample) -> None:
    op = make_op(sample)
    rule = definition(op.name).factors(op)
    dims = [dim for side in (*rule.operands, *rule.results) for dim in side]
    for one, other in itertools.combinations(splittable(rule), 2):
        apart = not any(one in dim and other in dim for dim in dims)
        if apart and rule.reduce.get(one, "sum") == rule.reduce.get(other, "sum"):
            check(sample, Mesh((("x", 2), ("y", 3))), {one: (AxisPart("x"),), other: (AxisPart("y"),)})


@every_sample
def test_blocks(sample: Sample) -> None:
    op = make_op(sample)
    row = definition(op.name)
    rule = row.factors(op)
    dims = [dim for side in (*rule.operands, *rule.results) for dim in side]
    for factor in splittable(rule):
        alone = all(dim == (factor,) for dim in dims if factor in dim)
        if alone and rule.sizes[factor] % 2 == 0 and factor not in row.offsets(op):
            check(sample, Mesh((("x", 2),)), {factor: (AxisPart("x", blocks=2),)})


@every_sample
def test_only_known_ops_return_views(sample: Sample) -> None:
    values = sample.draw()
    operands = arguments(sample, values)
    memory = {x.untyped_storage().data_ptr(): n for n, x in enumerate(operands) if isinstance(x, torch.Tensor) and x.numel()}
    shared = {
        memory[y.untyped_storage().data_ptr()]
        for y in run(program_of(make_op(sample)), operands)
        if y.untyped_storage().data_ptr() in memory
    }
    assert shared <= ({0} if sample.name in VIEWS else set())


def linear_sets(sample: Sample) -> Sequence[frozenset[int]]:
    op = make_op(sample)
    return definition(op.name).linear(op)


@pytest.mark.parametrize("sample", [s for s in ALL_SAMPLES if linear_sets(s)], ids=str)
def test_linear(sample: Sample) -> None:
    one, other = sample.draw(0), sample.draw(1)
    for numbers in linear_sets(sample):
        second = [other[n] if n in numbers else value for n, value in enumerate(one)]
        both = [value + other[n] if n in numbers else value for n, value in enumerate(one)]
        parts = [a + b for a, b in zip(whole(sample, one), whole(sample, second), strict=True)]
        assert_close(whole(sample, both), parts)


@pytest.mark.parametrize("sample", [s for s in ALL_SAMPLES if definition(s.name).moves_data], ids=str)
def test_moves_data(sample: Sample) -> None:
    one, other = sample.draw(0), sample.draw(1)
    (numbers,) = linear_sets(sample)
    second = [other[n] if n in numbers else value for n, value in enumerate(one)]
    for combine in (torch.maximum, torch.minimum):
        both = [combine(value, other[n]) if n in numbers else value for n, value in enumerate(one)]
        parts = [combine(a, b) for a, b in zip(whole(sample, one), whole(sample, second), strict=True)]
        assert_close(whole(sample, both), parts, tolerance=0)


@pytest.mark.parametrize("sample", [s for s in ALL_SAMPLES if definition(s.name).decompose], ids=str)
def test_decomposition(sample: Sample) -> None:
    op, values = make_op(sample), sample.draw()
    builder = Builder(CATALOG, prefix="d")
    decompose = definition(op.name).decompose
    assert decompose is not None
    outputs = tuple(Output(value, value.name) for value in decompose(builder, op))
    program = Program(program_of(op).inputs, tuple(builder.ops), outputs)
    assert op.name not in {inner.name for inner in builder.ops}
    assert_close(run(program, values), whole(sample, values))


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize("part", [AxisPart("x"), AxisPart("x", blocks=2), AxisPart("x", unit=3), AxisPart("x", 2, 2)], ids=str)
def test_shard_slice(part: AxisPart, ways: int) -> None:
    mesh = Mesh((("x", ways),))
    kind = TensorType("f64", (2, 12))
    source, target = Value("s", kind, Sharding.replicated(2)), Value("t", kind, Sharding.replicated(2).split(1, part))
    op = Op("shard_slice", (source,), (target,), sorted_attrs({"axis": "x"}))
    value = torch.arange(24, dtype=torch.float64).reshape(2, 12)
    assert_close(run_sharded(op, mesh, [value], [value]), [value])


@pytest.mark.parametrize("outer", [AxisPart("y"), AxisPart("y", blocks=2)], ids=str)
def test_shard_slice_of_a_shard(outer: AxisPart) -> None:
    mesh = Mesh((("x", 3), ("y", 2)))
    kind = TensorType("f64", (10,))
    source = Value("s", kind, Sharding(((outer,),)))
    target = Value("t", kind, Sharding(((outer, AxisPart("x", outer.blocks)),)))
    op = Op("shard_slice", (source,), (target,), sorted_attrs({"axis": "x"}))
    value = torch.arange(10, dtype=torch.float64)
    assert_close(run_sharded(op, mesh, [value], [value]), [value])


def test_to_pending() -> None:
    mesh = Mesh((("x", 3),))
    kind = TensorType("f64", (5,))
    source = Value("s", kind, Sharding.replicated(1))
    target = Value("t", kind, Sharding.replicated(1).with_pending("x", "sum"))
    op = Op("to_pending", (source,), (target,), sorted_attrs({"axis": "x"}))
    value = torch.arange(5, dtype=torch.float64)
    assert_close(run_sharded(op, mesh, [value], [value]), [value])


def test_check_fails_on_a_wrong_rule() -> None:
    """The check itself: a running sum cannot be split along its dim, nor can a maximum be combined by adding."""
    mesh, split = Mesh((("x", 2),)), {"d0": (AxisPart("x"),)}
    running, largest = Sample("cumsum", (f(5, low=1.0),), {"dim": 0}), Sample("reduce_max", (f(5, low=1.0),), {"dims": (0,)})
    for sample in (running, largest):
        op, values = make_op(sample), sample.draw()
        expected = whole(sample, values)
        rule = replace(definition(op.name).factors(op), whole=frozenset(), reduce={})
        with pytest.raises(AssertionError):
            assert_close(run_sharded(lay(op, rule, split), mesh, values, expected), expected)
