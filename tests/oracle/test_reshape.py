"""The factor rule of reshape, for any two shapes of one size."""

from __future__ import annotations

import math

import torch
from evaluate import assert_close, lay, make_op, run_sharded
from hypothesis import given
from hypothesis import strategies as st
from samples import Sample, f, t

from maniple.mesh import AxisPart, Mesh
from maniple.ops.reshape import refine, reshape_factors

Shape = tuple[int, ...]


@st.composite
def grouped(draw: st.DrawFn, primes: list[int]) -> Shape:
    """Draw a shape of the product of `primes`, with some dims of size 1."""
    dims = [1]
    for prime in primes:
        if draw(st.booleans()):
            dims.append(1)
        dims[-1] *= prime
    return tuple(dims if draw(st.booleans()) else [n for n in dims if n != 1])


@st.composite
def two_shapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    primes = draw(st.lists(st.sampled_from([2, 3, 5]), max_size=4))
    other = primes if draw(st.booleans()) else draw(st.permutations(primes))
    return draw(grouped(primes)), draw(grouped(other))


@given(two_shapes(), st.sampled_from([2, 3]))
def test_shards_of_each_factor_combine_to_the_whole(shapes: tuple[Shape, Shape], ways: int) -> None:
    source, target = shapes
    value = torch.arange(math.prod(source), dtype=torch.float64).reshape(source)
    op = make_op(Sample("reshape", (f(*source),), {}, t(*target)))
    rule = reshape_factors(op)
    for factor in set(rule.factors) - rule.whole:
        laid = lay(op, rule, {factor: (AxisPart("x"),)})
        result = value.reshape(target)
        assert_close(run_sharded(laid, Mesh((("x", ways),)), [value], [result]), [result], tolerance=0)


@given(two_shapes())
def test_dims_are_products_of_their_factors(shapes: tuple[Shape, Shape]) -> None:
    rule = refine(*shapes)
    for shape, (dims,) in zip(shapes, (rule.operands, rule.results), strict=True):
        assert [math.prod(rule.sizes[name] for name in dim) for dim in dims] == list(shape)
        assert 1 not in [rule.sizes[name] for dim in dims for name in dim]


@given(two_shapes())
def test_free_factors_stand_in_one_order_on_both_sides(shapes: tuple[Shape, Shape]) -> None:
    rule = refine(*shapes)
    one, other = ([name for dim in dims for name in dim if name not in rule.whole] for (dims,) in (rule.operands, rule.results))
    assert one == other


@given(st.lists(st.integers(1, 7), max_size=4))
def test_splitting_and_merging_dims_leaves_nothing_whole(dims: list[int]) -> None:
    merged = (math.prod(dims[:2]), *dims[2:])
    assert not refine(dims, merged).whole
    assert not refine(merged, dims).whole
