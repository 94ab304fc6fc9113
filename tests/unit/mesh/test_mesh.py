from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import ParseError
from maniple.mesh import AxisPart, Mesh, Sharding, shard_bounds
from maniple.mesh.sharding import intervals

MESH = Mesh.parse("dp=2 tp=3")
PARTS = st.builds(AxisPart, st.sampled_from(["dp", "tp"]), st.integers(1, 4), st.integers(1, 64))


@given(st.integers(0, 100), st.integers(1, 12))
def test_shards_cover_all_rows_in_order(n: int, ways: int) -> None:
    bounds = [shard_bounds(n, ways, index) for index in range(ways)]
    assert [i for lo, hi in bounds for i in range(lo, hi)] == list(range(n))
    assert max(hi - lo for lo, hi in bounds) == math.ceil(n / ways) == bounds[0][1] - bounds[0][0]


@given(st.integers(1, 5), st.integers(0, 12), st.integers(1, 4))
def test_nested_parts_cover_every_index_once(blocks: int, size: int, unit: int) -> None:
    n = blocks * size * unit
    parts = (AxisPart("dp", blocks, unit), AxisPart("tp", blocks, unit))
    held = [i for point in MESH.points() for lo, hi in intervals(n, parts, MESH, point) for i in range(lo, hi)]
    assert sorted(held) == list(range(n))


@given(st.integers(1, 9), st.integers(1, 9))
def test_local_shape_is_that_of_the_region(rows: int, cols: int) -> None:
    layout = Sharding.replicated(2).split(0, AxisPart("dp")).split(1, AxisPart("tp"))
    for point in MESH.points():
        region = layout.region((rows, cols), MESH, point)
        assert layout.local_shape((rows, cols), MESH, point) == tuple(sum(hi - lo for lo, hi in dim) for dim in region)


@st.composite
def split_dims(draw: st.DrawFn) -> list[list[AxisPart]]:
    """Draw dims that each axis splits at most once."""
    dims: list[list[AxisPart]] = [[] for _ in range(draw(st.integers(0, 3)))]
    for part in draw(st.lists(PARTS, max_size=2, unique_by=lambda part: part.axis)) if dims else []:
        dims[draw(st.integers(0, len(dims) - 1))].append(part)
    return dims


@given(
    split_dims(),
    st.dictionaries(st.sampled_from(["cp", "ep"]), st.sampled_from(["sum", "max", "min"])),
)
def test_sharding_round_trip(dims: list[list[AxisPart]], pending: dict[str, str]) -> None:
    layout = Sharding(tuple(map(tuple, dims)), tuple(sorted(pending.items())))  # type: ignore[arg-type]
    assert Sharding.parse(str(layout)) == layout


@pytest.mark.parametrize(
    "text", ["dp", "{dp", "{d p}", "{_|dp}", "{_|dp:mean}", "{_|:sum}", "{,}", "{tp,tp}", "{tp.tp}", "{tp|tp:sum}", "{|tp:sum|tp:max}"]
)
def test_sharding_that_does_not_parse(text: str) -> None:
    with pytest.raises(ParseError):
        Sharding.parse(text)


def test_axes_and_replication() -> None:
    layout = Sharding.parse("{dp,_|tp:sum}")
    assert layout.axes == {"dp", "tp"}
    assert layout.along("dp") == (0, AxisPart("dp"))
    assert layout.along("tp") == "sum"
    assert layout.along("cp") is None
    assert layout.without("dp").without("tp") == Sharding.replicated(2)
    assert Sharding.replicated(2).is_replicated


def test_mesh_numbers_its_devices_in_order() -> None:
    assert [MESH.device(point) for point in MESH.points()] == list(range(MESH.num_devices))
    assert str(MESH) == "dp=2 tp=3"
    assert [p["tp"] for p in MESH.group({"dp": 1, "tp": 2}, ("tp",))] == [0, 1, 2]
    assert {p["dp"] for p in MESH.group({"dp": 1, "tp": 2}, ("tp",))} == {1}


@pytest.mark.parametrize("text", ["dp", "dp=", "dp=0", "dp=x", "=2", "dp=2 dp=3"])
def test_mesh_that_does_not_parse(text: str) -> None:
    with pytest.raises(ParseError):
        Mesh.parse(text)
