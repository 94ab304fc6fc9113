from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import ManipleError, ParseError
from maniple.base.location import Location
from maniple.base.types import DTYPE_BYTES, TensorType

FILES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
SCOPES = st.from_regex(r"[a-z0-9_.]{0,20}", fullmatch=True)


@given(FILES, st.integers(0, 10**6), SCOPES)
def test_location_round_trip(file: str, line: int, scope: str) -> None:
    location = Location(file, line, scope)
    assert Location.parse(location.text()) == location


def test_location_that_is_none() -> None:
    assert Location.parse("a.py:3") is None


@given(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 99), max_size=4))
def test_type_round_trip(dtype: str, shape: list[int]) -> None:
    kind = TensorType(dtype, tuple(shape))
    assert TensorType.parse(str(kind)) == kind
    assert kind.num_bytes == kind.num_elements * DTYPE_BYTES[dtype]


@pytest.mark.parametrize("text", ["f32", "f31[2]", "f32[2", "f32[-1]", "f32[2,,3]", ""])
def test_type_that_does_not_parse(text: str) -> None:
    with pytest.raises(ParseError):
        TensorType.parse(text)


@pytest.mark.parametrize(("dtype", "is_float"), [("f64", True), ("bf16", True), ("i64", False), ("bool", False)])
def test_is_float(dtype: str, is_float: bool) -> None:
    assert TensorType(dtype).is_float is is_float


def test_error_says_what_where_and_what_to_try() -> None:
    error = ManipleError("it broke", where=Location("a.py", 3, "blocks.0"), hint="mend it")
    assert str(error) == "it broke\n  at a.py:3 (blocks.0)\n  try: mend it"
    assert (error.what, error.hint) == ("it broke", "mend it")
