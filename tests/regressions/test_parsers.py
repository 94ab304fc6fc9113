"""Text forms: whatever stands in them is read or refused by a ParseError (StrategyError for strategies), and names may be odd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import maniple
from maniple.base.errors import ParseError, StrategyError
from maniple.base.location import Location
from maniple.ir.text import parse_program, print_program
from maniple.mesh import Mesh, Sharding, Strategy
from maniple.taskgraph.text import parse_taskgraph, print_taskgraph

DIGITS = "9" * 5000
OP = "program {{\n  %1: f32[2] = constant() {{value={}}} forward\n}}"
TOML = 'zero = 3\n[axes]\ndp = 2\n[[pins]]\ntensor = "batch.x"\nsharding = "{dp,_}"\n'


@pytest.mark.parametrize(
    "text",
    [
        "program {\n" + "a() forward [\nprogram {\n" * 3000,
        OP.format("(" * 100_000),
        OP.format("-" * 100_000 + "1"),
        OP.format("1) + dict(y=2"),
        OP.format("1)(z=2"),
        OP.format("1, **{'a': 2}"),
        OP.format("open('/dev/null')"),
        OP.format(DIGITS),
        OP.format("\0"),
        f'program {{\n  in %1: f32[{DIGITS}] batch "x"\n}}',
        'program {\n  in %1: f32[2] batch "x" "y"\n}',
        'program {\n  in %1: f32[2] batch "\\x"\n}',
        'program {\n  in %1: f32[2]{dp,_} batch "x"\n}',
        'program {\n  in %1: f32[2]{dp/0} batch "x"\n}',
    ],
)
def test_programs_that_do_not_parse(text: str) -> None:
    with pytest.raises(ParseError):
        parse_program(text)


@pytest.mark.parametrize("parse", [Mesh.parse, Sharding.parse])
@pytest.mark.parametrize("text", [f"dp={DIGITS}", "dp=0", f"{{dp/{DIGITS}}}", "{dp/0}", "{dp*0}"])
def test_layouts_that_do_not_parse(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize("text", [f"dp={DIGITS}", f"pin:a={{dp/{DIGITS}}}", "\0.toml", "x" * 5000 + ".toml"])
def test_strategies_that_do_not_load(text: str) -> None:
    with pytest.raises(StrategyError):
        Strategy.load(text)


@pytest.mark.parametrize("text", ["a=" + "[" * 100_000, f"zero={DIGITS}", 'axes = "dp"', "axes = {dp = 2.5}", "zero = true"])
def test_toml_that_does_not_load(text: str) -> None:
    with pytest.raises(StrategyError):
        Strategy.from_toml(text)


class Odd(nn.Module):
    """Names with blanks, quotes and line ends."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a b": nn.Linear(6, 4), 'q"u\n': nn.Linear(4, 6), "ü=}{": nn.Linear(6, 6)})
        self.register_parameter('w\n"x', nn.Parameter(torch.randn(6)))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = part(x).tanh()
        return x * getattr(self, 'w\n"x')


def odd_step(model: nn.Module, optimizer: Optimizer, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(batch['x "1"\n']).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def odd_plan() -> tuple[str, str]:
    model = Odd()
    step = maniple.parallelize(odd_step, model, SGD(model.parameters(), lr=0.1), strategy="dp=2 tp=2")
    plan = step.compile({'x "1"\n': torch.randn(4, 6)}).plan
    return print_program(plan.sharded.program), print_taskgraph(plan.graph)


def test_odd_names_round_trip() -> None:
    program, graph = odd_plan()
    assert print_program(parse_program(program)) == program
    assert print_taskgraph(parse_taskgraph(graph)) == graph


@given(st.text(), st.integers(0, 10**9), st.text())
@example("a@b.py", 1, "")
@example('a "b"\n.py', 1, "x y")
@example("\\", 1, '"')
def test_locations_round_trip(file: str, line: int, scope: str) -> None:
    where = Location(file, line, scope)
    assert Location.parse(where.text()) == where
    assert len(where.text().splitlines()) == 1
    text = f"program {{\n  a() forward {where.text()} [\n  ]\n}}"
    assert parse_program(text).ops[0].location == where


TOKENS = ['"', "\\", "{", "}", "(", ")", "[", "]", "%", "=", ",", ":", "@", "\n", "\0", "\u2028", DIGITS, "-1", "1e400", "@nan", "**{}",
          "program {", "segment 0", "{tp/0}", "|tp:sum", "mesh dp=0", "\ud800", " "]  # fmt: skip


@pytest.fixture(scope="module")
def texts() -> tuple[str, str]:
    return odd_plan()


@settings(max_examples=60)
@given(st.data())
def test_broken_texts_are_refused(texts: tuple[str, str], data: st.DataObject) -> None:
    which = data.draw(st.integers(0, 2))
    parse: Callable[[str], object] = (parse_program, parse_taskgraph, Strategy.from_toml)[which]
    text = (*texts, TOML)[which]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(TOKENS)) + text[at + data.draw(st.integers(0, 12)) :]
    with contextlib.suppress(ParseError, StrategyError):
        parse(text)
