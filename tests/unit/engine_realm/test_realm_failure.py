"""Bodies that raise, Ctrl-C, and inputs that do not fit: the step ends with the reason, and the next one works."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from graphs import Delays, Failing, Wrapped, fresh, mesh_texts, random_graph, same, small_graph, small_inputs

from maniple.base.errors import EngineError
from maniple.engine.protocol import Interrupted
from maniple.engine.realm import RealmEngine
from maniple.engine.reference import ReferenceEngine
from maniple.kernels.torch import compile_program
from maniple.ops.localize import Destination, LocalProgram
from maniple.taskgraph import Edge


@pytest.mark.parametrize("num_processors", [1, 2])
@pytest.mark.parametrize(("seed", "mesh_text"), list(enumerate(mesh_texts(4))))
def test_a_body_that_raises_at_every_position_in_turn(seed: int, mesh_text: str, num_processors: int) -> None:
    graph, inputs = random_graph(seed, mesh_text)
    bodies = Failing()
    engine = RealmEngine(bodies.compile, num_processors)
    want = engine.run(graph, fresh(inputs))
    assert same(want, ReferenceEngine(compile_program).run(graph, inputs))
    number = bodies.calls
    assert number > 3
    for at in range(number):
        bodies.calls, bodies.at = 0, at
        given = fresh(inputs)
        with pytest.raises(EngineError, match="on purpose") as caught:
            engine.run(graph, given)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert "train.py:" in str(caught.value)
        if num_processors == 1:  # others may begin before they know
            assert bodies.calls == at + 1, "a body began after the failure was known"
        assert engine.state_changed or same(given, inputs)
        bodies.at = -1
        assert same(engine.run(graph, fresh(inputs)), want)


def test_the_message_is_that_of_the_reference_engine() -> None:
    graph, messages = small_graph("dp=2", "dp"), []
    for make in (RealmEngine, ReferenceEngine):
        with pytest.raises(EngineError) as caught:
            make(Failing(at=0).compile).run(graph, small_inputs())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "train.py:4" in messages[0]


def test_an_exception_that_is_no_error_passes_as_it_is() -> None:
    engine = RealmEngine(Failing(at=0, error=SystemExit(3)).compile, 2)
    with pytest.raises(SystemExit) as caught:
        engine.run(small_graph("dp=2", "dp"), small_inputs())
    assert caught.value.code == 3


def test_a_body_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(EngineError, match=r"shape \[1\].*expected \[5\]"):
        RealmEngine(lambda *_: lambda *_: (torch.zeros(1, dtype=torch.float64),), 2).run(small_graph("dp=2", "dp"), small_inputs())


def test_a_body_that_makes_too_much_is_refused() -> None:
    with pytest.raises(EngineError, match="made 2 tensors; expected 1"):
        RealmEngine(lambda *_: lambda *operands: (operands[0], operands[0]), 2).run(small_graph("dp=2", "dp"), small_inputs())


def test_inputs_are_checked() -> None:
    engine, graph = RealmEngine(compile_program, 2), small_graph("dp=2", "dp")
    with pytest.raises(EngineError, match="'u' is missing"):
        engine.run(graph, {"w": torch.zeros(5)})
    with pytest.raises(EngineError, match=r"shape \[4\]; expected \[5\]"):
        engine.run(graph, {"w": torch.zeros(5), "u": torch.zeros(4)})


def test_a_cycle_is_an_error_not_a_hang() -> None:
    graph = small_graph("dp=2", "dp")
    cyclic = replace(graph, edges=(*graph.edges, Edge(graph.tasks[-1].name, graph.tasks[0].name)))
    with pytest.raises(EngineError, match="cycle"):
        RealmEngine(compile_program, 2).run(cyclic, small_inputs())


def test_a_missing_edge_is_noticed_when_the_order_shows_it() -> None:
    graph = small_graph("dp=2")
    reverse = replace(graph, tasks=graph.tasks[::-1], edges=())
    with pytest.raises(EngineError, match="before it is written"):
        RealmEngine(compile_program, 1).run(reverse, small_inputs())


def test_no_processor_is_refused() -> None:
    with pytest.raises(EngineError, match="got 0"):
        RealmEngine(compile_program, 0)


def test_ctrl_c_at_random_times() -> None:
    graph, inputs = random_graph(5, "dp=2 tp=2")
    rng = random.Random(0)
    engine = RealmEngine(Delays(rng, 0.01).compile, 2)
    start = time.perf_counter()
    want = engine.run(graph, fresh(inputs))
    step_s = time.perf_counter() - start
    interrupted = 0
    for _ in range(30):
        timer = threading.Timer(rng.random() * step_s, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                assert same(engine.run(graph, fresh(inputs)), want)
            timer.join()
            time.sleep(0.05)
        except KeyboardInterrupt:
            interrupted += 1
        except Interrupted as late:  # it came to its end first
            interrupted += same(dict(late.outputs), want)
        timer.join()
        assert same(engine.run(graph, fresh(inputs)), want)
    assert interrupted == 30


def test_ctrl_c_while_a_body_is_slow_ends_the_step() -> None:
    calls: list[float] = []

    def interrupt() -> None:
        calls.append(time.perf_counter())
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    def slow(local: LocalProgram, destinations: Sequence[Destination] = ()) -> Wrapped:
        return Wrapped(compile_program(local, destinations), interrupt)

    with pytest.raises(KeyboardInterrupt):
        RealmEngine(slow, 1).run(small_graph("dp=2", "dp"), small_inputs())
    assert len(calls) == 1, "the body that ran was waited for, those after it did not begin"
    assert time.perf_counter() - calls[0] >= 1
