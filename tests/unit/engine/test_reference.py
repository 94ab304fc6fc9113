"""The reference engine: bodies, failures, and who owns what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from maniple.base.errors import EngineError
from maniple.engine.reference import ReferenceEngine
from maniple.ir import parse_program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import Mesh
from maniple.ops.localize import LocalProgram
from maniple.taskgraph import Edge, TaskGraph

TEXT = """
program {
  in %w: f64[5]{dp} parameter "w"
  in %u: f64[5]{_} parameter "u"
  %a: f64[5]{dp} = negate(%w) forward "train.py":4 @net.fc
  %b: f64[5]{_} = all_gather(%a) {axis='dp'} forward
  %c: f64[5]{_} = multiply(%b, %u) backward "train.py":5
  out %c "w"
  out %u "u"
}
"""


def graph_of(mesh: str, *shared: str) -> TaskGraph:
    return lower(parse_program(TEXT), Mesh.parse(mesh), shared)


def inputs() -> dict[str, torch.Tensor]:
    return {"w": torch.arange(5.0, dtype=torch.float64), "u": torch.full((5,), 2.0, dtype=torch.float64)}


@pytest.mark.parametrize("shared", [(), ("dp",)])
def test_one_body_per_shape(shared: tuple[str, ...]) -> None:
    engine, graph = ReferenceEngine(compile_program), graph_of("dp=4", *shared)
    for _ in range(2):
        outputs = engine.run(graph, inputs())
        assert outputs["w"].tolist() == [0.0, -2.0, -4.0, -6.0, -8.0]
        # shards of 2, 2, 1 and 0 elements, and the whole
        assert engine.num_bodies == 3 + 1


def test_outputs_share_no_memory_with_inputs() -> None:
    given = inputs()
    outputs = ReferenceEngine(compile_program).run(graph_of("dp=2"), given)
    outputs["u"].zero_()
    assert given["u"].tolist() == [2.0] * 5


def test_state_is_read_as_views() -> None:
    seen: list[int] = []

    def spy(local: LocalProgram) -> Callable[..., tuple[torch.Tensor, ...]]:
        body = compile_program(local)

        def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.extend(x.untyped_storage().data_ptr() for x in operands)
            return body(*operands)

        return run

    given = inputs()
    ReferenceEngine(spy).run(graph_of("dp=2"), given)
    # two points read w; two read u, and their own copy of what was gathered
    assert seen.count(given["w"].untyped_storage().data_ptr()) == 2
    assert seen.count(given["u"].untyped_storage().data_ptr()) == 2


def test_a_failing_body_names_task_and_line_and_changes_nothing() -> None:
    def fails(local: LocalProgram) -> Callable[..., tuple[torch.Tensor, ...]]:
        def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if local.program.ops[0].name == "multiply":
                raise ZeroDivisionError("on purpose")
            return compile_program(local)(*operands)

        return run

    given = inputs()
    with pytest.raises(EngineError, match="multiply") as caught:
        ReferenceEngine(fails).run(graph_of("dp=2"), given)
    assert "train.py:5" in str(caught.value)
    assert "on purpose" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert all(torch.equal(given[name], tensor) for name, tensor in inputs().items())


def test_a_body_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(EngineError, match=r"shape \[1\]"):
        ReferenceEngine(lambda _: lambda *_: (torch.zeros(1, dtype=torch.float64),)).run(graph_of("dp=2"), inputs())


def test_inputs_are_checked() -> None:
    engine, graph = ReferenceEngine(compile_program), graph_of("dp=2")
    with pytest.raises(EngineError, match="'u' is missing"):
        engine.run(graph, {"w": torch.zeros(5)})
    with pytest.raises(EngineError, match=r"shape \[4\]; expected \[5\]"):
        engine.run(graph, {"w": torch.zeros(5), "u": torch.zeros(4)})


def test_a_cycle_is_an_error_not_a_hang() -> None:
    graph = graph_of("dp=2")
    cyclic = replace(graph, edges=(*graph.edges, Edge(graph.tasks[-1].name, graph.tasks[0].name)))
    with pytest.raises(EngineError, match="cycle"):
        ReferenceEngine(compile_program).run(cyclic, inputs())


def test_a_missing_edge_is_noticed_when_the_order_shows_it() -> None:
    graph = graph_of("dp=2")
    reverse = replace(graph, tasks=graph.tasks[::-1], edges=())
    with pytest.raises(EngineError, match="before it is written"):
        ReferenceEngine(compile_program).run(reverse, inputs())
