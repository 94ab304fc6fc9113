from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import ParseError
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir import Attr, Input, Op, Output, Program, Value, parse_program, print_program
from maniple.ir.program import sorted_attrs
from maniple.mesh import Sharding

F32 = TensorType("f32", (2, 3))
ATTRS: st.SearchStrategy[Attr] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def program(attrs: dict[str, Attr] | None = None, location: Location | None = None) -> Program:
    w, x = Value("w", F32, Sharding.parse("{tp,_}")), Value("blocks.0/x:1", F32)
    inner = Value("a", F32)
    region = Program((Input(inner, "argument", "a"),), (), (Output(inner, "result"),))
    y, z = Value("1", F32, Sharding.parse("{dp.tp*64,_|cp:sum}")), Value("2", TensorType("bool"))
    ops = (
        Op("add", (w, x), (y,), sorted_attrs(attrs or {}), location=location),
        Op("call", (y,), (z,), (("many", (1, 2.5, "s", None, True, ())),), (region, region), "backward", location),
        Op("effect", (), (), phase="update"),
    )
    inputs = (Input(w, "parameter", 'odd "name" %'), Input(x, "batch", "batch.x"))
    return Program(inputs, ops, (Output(y, "w"), Output(z, "result.0")), (("w", y),))


@pytest.mark.parametrize("location", [None, Location("a b.py", 3), Location('q"\\.py', 0, "blocks.0.attn")])
def test_prints_what_it_parses(location: Location | None) -> None:
    text = print_program(program(location=location))
    parsed = parse_program(text)
    assert print_program(parsed) == text
    assert [op.location for op in parsed.ops[:2]] == [location, location]
    assert parsed.inputs[0].name == 'odd "name" %'
    assert parsed.gradients[0][1] is parsed.ops[0].results[0]


@given(ATTRS)
def test_attributes_round_trip(value: Attr) -> None:
    assert parse_program(print_program(program({"value": value}))).ops[0].attr("value") == value


def test_numbers_that_python_cannot_spell() -> None:
    parsed = parse_program(print_program(program({"a": -math.inf, "b": (math.inf, math.nan)}))).ops[0]
    assert parsed.attr("a") == -math.inf
    b = parsed.attr("b")
    assert isinstance(b, tuple)
    assert b[0] == math.inf
    assert isinstance(b[1], float)
    assert math.isnan(b[1])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("program {", "programme {", "starts with"),
        ("add(%w", "add(%v", "used before"),
        ("%2: bool[]", "%1: bool[]", "defined twice"),
        ("parameter", "weight", "kind of input"),
        ("many=(1,", "many=(open(),", "attributes"),
        ("f32[2,3]{tp,_}", "f33[2,3]{tp,_}", "tensor type"),
        (" update", " sideways", "cannot read the line"),
        ("%2: bool[]", "%2: bool[] and more", "cannot read the results"),
        ("{tp,_}", "{tp,tp}", "twice.* in line: in %w"),
        ("f32[2,3]{tp,_}", "f33[2,3]{tp,_}", "tensor type .* in line: in %w"),
    ],
)
def test_text_that_does_not_parse(old: str, new: str, says: str) -> None:
    text = print_program(program())
    assert old in text
    with pytest.raises(ParseError, match=says):
        parse_program(text.replace(old, new, 1))


def test_text_that_stops_early() -> None:
    with pytest.raises(ParseError, match="ends with"):
        parse_program(print_program(program()).rstrip("} \n"))


def test_producers_and_uses() -> None:
    built = program()
    y = built.ops[0].results[0]
    assert built.producers()[y] is built.ops[0]
    assert built.uses()[y] == [built.ops[1]]
    assert built.input_named("batch.x").kind == "batch"
    with pytest.raises(KeyError):
        built.input_named("none")
