from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.base.errors import StrategyError
from maniple.base.types import TensorType
from maniple.mesh import Mesh, Pin, Placement, Sharding, Strategy

NAMES = st.from_regex(r"[a-z0-9_.*?=\[\]\"\\é]{1,12}", fullmatch=True)
LAYOUTS = st.sampled_from(["{}", "{_}", "{tp,_}", "{dp.tp,_}", "{_,tp/3}", "{_,tp*64}", "{dp,tp}"]).map(Sharding.parse)
PENDING = st.sampled_from(["{_|tp:sum}", "{dp|tp:max}"]).map(Sharding.parse)


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    order = draw(st.permutations(["dp", "tp"]))
    mesh = Mesh(tuple((name, draw(st.integers(1, 2048))) for name in order))
    sp = draw(st.booleans())
    placements = draw(st.lists(st.builds(Placement, NAMES, LAYOUTS), max_size=3))
    pins = draw(st.lists(st.builds(Pin, NAMES, LAYOUTS | PENDING), max_size=3))
    return Strategy(mesh, draw(st.integers(0, 3)), tuple(placements), tuple(pins), sp)


@given(strategies())
def test_round_trips(strategy: Strategy) -> None:
    assert Strategy.parse(str(strategy)) == strategy
    assert Strategy.from_toml(strategy.to_toml()) == strategy


@pytest.mark.parametrize("text", ["", "dp=2", "tp=2 dp=4", "dp=2 tp=2 zero=3 sp", "tp=2 sp", "dp=2 place:*.w={dp,_} pin:batch.x={dp}"])
def test_prints_what_it_read(text: str) -> None:
    assert str(Strategy.parse(text)) == text


def test_order_of_axes_is_that_of_the_text() -> None:
    assert Strategy.parse("tp=2 zero=1 dp=3").mesh.names == ("tp", "dp")


def test_sizes() -> None:
    strategy = Strategy.parse("dp=3")
    assert (strategy.size("dp"), strategy.size("tp"), strategy.num_devices) == (3, 1, 3)
    assert Strategy.parse("").num_devices == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pp=2", "unknown axis 'pp'"),
        ("dpp=2", "did you mean dp=N"),
        ("zer=3", "did you mean zero=N"),
        ("fsdp=2", "dp=N zero=3"),
        ("dp=0", "size 0"),
        ("dp=-1", "size -1"),
        ("dp=two", "cannot read 'dp=two'"),
        ("dp", "cannot read 'dp'"),
        ("dp=2,tp=2", "cannot read"),
        ("dp=2 dp=2", "twice"),
        ("dp=2 zero=4", "zero=4"),
        ("dp=2 zero=-1", "zero=-1"),
        ("zero=1 zero=2", "zero twice"),
        ("zero=3", "zero=3 divides state over dp"),
        ("tp=2 zero=1", "zero=1 divides state over dp"),
        ("sp", "sp divides activations over tp"),
        ("dp=2 sp", "sp divides activations over tp"),
        ("tp=2 sp sp", "sp twice"),
        ("tp=2 sp=2", "sp, a word without a number"),
        ("dp=2 place:w={tp,_}", "uses axis 'tp'"),
        ("dp=2 place:w={dp,dp}", "twice"),
        ("dp=2 place:w={_|dp:sum}", "cannot be pending"),
        ("dp=2 pin:w={_|dp:mean}", "mean"),
        ("dp=2 tp=2 pin:w={dp/2.tp/3}", "same blocks"),
        ("dp=2 pin:w={dp/0}", "from 1"),
    ],
)
def test_text_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(StrategyError) as caught:
        Strategy.parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("axes = 3", "axes is not a table"),
        ("dp = 2", "unknown key 'dp'"),
        ("[axis]\ndp = 2", "did you mean 'axes'"),
        ("[axes]\ndp = true", "size True"),
        ("[axes]\ndp = 2.0", "size 2.0"),
        ('[axes]\ndp = "2"', "size '2'"),
        ("zero = true", "zero=True"),
        ("zero = 1.0", "zero=1.0"),
        ("zero = [1]", "zero=[1]"),
        ("sp = 1\n[axes]\ntp = 2", "sp=1"),
        ("placements = 1", "not a list of tables"),
        ('[[placements]]\npattern = "w"', "lacks"),
        ('[[pins]]\npattern = "w"\nsharding = "{_}"', "unknown key 'pattern'"),
        ('[[pins]]\ntensor = "w"\nsharding = "dp"', "cannot read sharding"),
        ('[[pins]]\ntensor = "a b"\nsharding = "{_}"', "not a name"),
        ("[axes", "not TOML"),
    ],
)
def test_toml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(StrategyError) as caught:
        Strategy.from_toml(text)
    assert says in str(caught.value)


def test_load(tmp_path: Path) -> None:
    strategy = Strategy.parse("dp=2 tp=2 zero=1 place:*.w={tp,_}")
    path = tmp_path / "strategy.toml"
    path.write_text(strategy.to_toml())
    assert Strategy.load(str(path)) == strategy
    assert Strategy.load("dp=2") == Strategy.parse("dp=2")
    with pytest.raises(StrategyError, match="cannot read strategy file"):
        Strategy.load(str(tmp_path / "none.toml"))


TENSORS = {"blocks.0.w": TensorType("f32", (4, 4)), "blocks.1.w": TensorType("f32", (4, 4)), "b": TensorType("f32", (4,))}


def test_first_matching_placement_counts() -> None:
    strategy = Strategy.parse("tp=2 place:blocks.0.*={tp,_} place:*.w={_,tp}")
    assert strategy.placed(TENSORS) == {"blocks.0.w": Sharding.parse("{tp,_}"), "blocks.1.w": Sharding.parse("{_,tp}")}


def test_pattern_that_matches_nothing() -> None:
    with pytest.raises(StrategyError, match=r"placement 'blocks.0.v' matches nothing[^!]*blocks\.0\.w"):
        Strategy.parse("tp=2 place:blocks.0.v={tp,_}").placed(TENSORS)
    with pytest.raises(StrategyError, match="pin 'x' matches nothing"):
        Strategy.parse("tp=2 pin:x={tp,_}").pinned(TENSORS)


def test_layout_of_another_rank() -> None:
    with pytest.raises(StrategyError, match="has 2 dims, b is f32"):
        Strategy.parse("tp=2 pin:b={tp,_}").pinned(TENSORS)
