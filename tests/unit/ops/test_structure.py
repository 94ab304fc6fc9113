"""What the rows of structure, reshape, reduce and random accept, and which factors they name."""

from __future__ import annotations

import pytest

from maniple.base.errors import VerifyError
from maniple.base.types import TensorType
from maniple.ir.program import Attr, Op
from maniple.ops import CATALOG, Builder, FactorRule, definition

Types = list[str]


def make(name: str, operands: Types, like: str | None = None, **attrs: Attr) -> Op:
    builder = Builder(CATALOG)
    values = [builder.fresh(TensorType.parse(text)) for text in operands]
    builder.emit(name, values, TensorType.parse(like) if like else None, **attrs)
    return builder.ops[0]


def rule(name: str, operands: Types, like: str | None = None, **attrs: Attr) -> FactorRule:
    op = make(name, operands, like, **attrs)
    return definition(name).factors(op)


DOT: dict[str, Attr] = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}


@pytest.mark.parametrize(
    ("name", "operands", "like", "attrs", "reason"),
    [
        ("constant", [], "f32[2]", {"value": 1.0}, "rank 0"),
        ("constant", [], "f32[]", {"value": "1"}, "must be a number"),
        ("constant", [], "i64[]", {"value": 1.5}, "no value of type i64"),
        ("constant", [], "i64[]", {"value": float("inf")}, "no value of type i64"),
        ("iota", [], "i64[2]", {"dim": 1}, "no dim 1"),
        ("iota", [], "i64[2]", {"dim": True}, "must be an integer"),
        ("broadcast_in_dim", ["f32[1]"], "f32[2]", {"dims": (0,)}, "sizes differ"),
        ("broadcast_in_dim", ["f32[2,2]"], "f32[2,2]", {"dims": (0, 0)}, "do not place"),
        ("broadcast_in_dim", ["f32[2]"], "f64[2]", {"dims": (0,)}, "dtype"),
        ("reshape", ["f32[2,3]"], "f32[5]", {}, "cannot become"),
        ("reshape", ["f32[2,3]"], "f64[6]", {}, "cannot become"),
        ("transpose", ["f32[2,3]"], None, {"perm": (0, 0)}, "permutation"),
        ("transpose", ["f32[2,3]"], None, {"perm": [1, 0]}, "tuple of integers"),
        ("slice", ["f32[4]"], None, {"dim": 0, "start": 2, "limit": 5, "stride": 1}, "no range"),
        ("slice", ["f32[4]"], None, {"dim": 0, "start": 0, "limit": 4, "stride": 0}, "no range"),
        ("pad", ["f32[4]"], None, {"dim": 0, "low": -3, "high": -2, "value": 0.0}, "cannot crop"),
        ("concatenate", ["f32[4]", "f32[4,1]"], None, {"dim": 0}, "agree"),
        ("concatenate", ["f32[4,2]", "f32[4]"], None, {"dim": 1}, "agree"),
        ("concatenate", ["f32[4]", "f64[4]"], None, {"dim": 0}, "agree"),
        ("concatenate", [], None, {"dim": 0}, "expected operands"),
        ("local_slice", ["f32[4]", "i64[]"], "f32[5]", {"dim": 0, "blocks": 1}, "not made of"),
        ("local_slice", ["f32[4]", "i64[]"], "f32[3]", {"dim": 0, "blocks": 2}, "not made of"),
        ("keep_at_zero", ["f32[4]", "f32[]"], None, {}, "index"),
        ("reduce_sum", ["f32[4]"], None, {"dims": (1,)}, "no dims"),
        ("reduce_sum", ["bool[4]"], None, {"dims": (0,)}, "bool"),
        ("cumsum", ["f32[4]"], None, {"dim": -1}, "no dim"),
        ("dot_general", ["f32[2,3]", "f32[4,5]"], None, DOT, "sizes"),
        ("dot_general", ["f32[2,3]", "f64[3,5]"], None, DOT, "dtype"),
        ("dot_general", ["f32[2,3]", "f32[3,5]"], None, {**DOT, "lhs_batch": (1,), "rhs_batch": (1,)}, "different dims"),
        ("rng_uniform", ["i64[]"], "f16[2]", {"id": 0, "global_shape": (2,)}, "f32 or f64"),
        ("rng_uniform", ["i64[]"], "f32[3]", {"id": 0, "global_shape": (2,)}, "larger"),
        ("rng_uniform", ["f32[]"], "f32[2]", {"id": 0, "global_shape": (2,)}, "seed"),
    ],
)  # fmt: skip
def test_refused(name: str, operands: Types, like: str | None, attrs: dict[str, Attr], reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        make(name, operands, like, **attrs)


def test_a_slice_of_one_block_splits_within_the_blocks() -> None:
    found = rule("slice", ["f32[12,5]"], dim=0, start=4, limit=8, stride=1)
    assert found.operands == ((("block", "m"), ("d1",)),)
    assert found.results == ((("m",), ("d1",)),)
    assert (found.sizes, found.whole) == ({"block": 3, "m": 4, "d1": 5}, {"block"})


def test_a_slice_across_blocks_is_whole() -> None:
    for start, limit, stride in ((2, 6, 1), (0, 5, 1), (0, 12, 2), (3, 3, 1)):
        found = rule("slice", ["f32[12,5]"], dim=0, start=start, limit=limit, stride=stride)
        assert set(found.factors) - found.whole == {"d1"}


def test_concatenation_of_equal_sizes_splits_within_the_operands() -> None:
    found = rule("concatenate", ["f32[4,2]", "f32[4,2]", "f32[4,2]"], dim=0)
    assert found.operands == ((("m",), ("d1",)),) * 3
    assert found.results == ((("block", "m"), ("d1",)),)
    assert found.whole == {"block"}


def test_reductions_say_how_they_combine() -> None:
    for kind in ("sum", "max", "min"):
        assert rule(f"reduce_{kind}", ["f32[4,2]"], dims=(1,)).reduce == {"d1": kind}


def test_a_matrix_product() -> None:
    found = rule("dot_general", ["f32[2,3]", "f32[3,5]"], None, **DOT)
    assert found.operands == ((("m0",), ("k0",)), (("k0",), ("n0",)))
    assert found.results == ((("m0",), ("n0",)),)
    op = make("dot_general", ["f32[2,3]", "f32[3,5]"], None, **DOT)
    assert definition("dot_general").flops(op) == 2 * 2 * 3 * 5
    assert definition("dot_general").linear(op) == ({0}, {1})


@pytest.mark.parametrize(("value", "linear"), [(0.0, ({0},)), (1.0, ())])
def test_a_pad_is_linear_only_with_zeros(value: float, linear: tuple[set[int], ...]) -> None:
    op = make("pad", ["f32[4]"], dim=0, low=1, high=1, value=value)
    assert definition("pad").linear(op) == linear


@pytest.mark.parametrize(
    ("source", "target", "operand", "result", "whole"),
    [
        ("f32[8,64]", "f32[8,4,16]", (("f0",), ("f1", "f2")), (("f0",), ("f1",), ("f2",)), set()),
        ("f32[2,5,12]", "f32[10,12]", (("f0",), ("f1",), ("f2",)), (("f0", "f1"), ("f2",)), set()),
        ("f32[4,1,5]", "f32[4,5]", (("f0",), (), ("f1",)), (("f0",), ("f1",)), set()),
        ("f32[6,4]", "f32[4,6]", (("f0", "x0"), ("x1", "f1")), (("f0", "y0"), ("y1", "f1")), {"x0", "x1", "y0", "y1"}),
        ("f32[3,0]", "f32[3,0,7]", (("f0",), ("f1",)), (("f0",), ("f1",), ("y2",)), {"y2"}),
        ("f32[0,3]", "f32[3,0]", (("x0",), ("x1",)), (("y0",), ("y1",)), {"x0", "x1", "y0", "y1"}),
    ],
)  # fmt: skip
def test_reshape(source: str, target: str, operand: object, result: object, whole: set[str]) -> None:
    found = rule("reshape", [source], target)
    assert (found.operands, found.results, found.whole) == ((operand,), (result,), whole)


def test_what_is_made_from_nothing_is_cheap() -> None:
    assert {name for name, row in CATALOG.items() if row.is_cheap} >= {"constant", "iota", "broadcast_in_dim", "rng_uniform"}


def test_offsets() -> None:
    assert definition("iota").offsets(make("iota", [], "i64[2,3]", dim=1)) == ("d1",)
    op = make("rng_uniform", ["i64[]"], "f32[2,3]", id=0, global_shape=(2, 3))
    assert definition("rng_uniform").offsets(op) == ("d0", "d1")
