"""Whatever is raised wherever the engine is, while it starts, runs a step or shuts down: the next step works."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from graphs import Wrapped, fresh, random_graph, same, small_graph, small_inputs

from maniple import engine as engines
from maniple.engine.protocol import Interrupted as LateInterrupt
from maniple.engine.realm import RealmEngine
from maniple.engine.realm.process import PROCESS
from maniple.kernels.torch import compile_program
from maniple.ops.localize import Destination, LocalProgram

FOLDER = str(Path(engines.__file__).parent / "realm")


class Interrupted(BaseException):
    """What a signal handler might raise."""


def raise_at(number: int, function: Callable[[], Any], begins: Callable[[], bool] = lambda: True) -> bool:
    """Call `function`, and raise at the line of the engine that is run as number `number` once `begins` holds.

    Returns:
        Whether there was such a line.
    """
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and begins() and next(lines) == number:
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def positions(function: Callable[[], Any], step: int = 1) -> Iterator[int]:
    """Yield after each line at which `function` was interrupted."""
    number = 0
    while raise_at(number, function):
        yield number
        number += step


def test_an_exception_at_every_line_of_starting_and_stopping() -> None:
    engine, graph, inputs = RealmEngine(compile_program, 2), small_graph("dp=2", "dp"), small_inputs()
    want = engine.run(graph, fresh(inputs))

    def restart() -> None:
        PROCESS.close()
        with PROCESS.runtime(2):
            pass

    count = 0
    for _ in positions(restart):
        assert same(engine.run(graph, fresh(inputs)), want)
        count += 1
    assert count > 20


def test_an_exception_at_every_line_of_a_step() -> None:
    """State is as it was, or new as a whole, or the engine says that it is neither."""
    graph, inputs = small_graph("dp=2", "dp"), small_inputs()
    engine = RealmEngine(compile_program, 2)
    given = fresh(inputs)
    want = fresh(engine.run(graph, given))
    finished = fresh(given)
    found = set()
    for _ in positions(lambda: engine.run(graph, given)):
        found.add("old" if same(given, inputs) else "new" if same(given, finished) else "neither")
        assert same(given, inputs) or engine.state_changed or same(given, finished)
        assert same(engine.run(graph, fresh(inputs)), want)
        for name, tensor in inputs.items():
            given[name].copy_(tensor)
    assert "old" in found


@pytest.mark.parametrize("number", range(0, 60, 6))
def test_a_second_exception_while_the_first_waits_for_bodies(number: int) -> None:
    """Impatient users: Ctrl-C ends a step, and something else is raised while what runs is waited for."""
    graph, inputs = random_graph(5, "dp=2 tp=2")
    runs, goes_on, is_sent, has_failed = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    goes_on.set()

    def slow(local: LocalProgram, destinations: Sequence[Destination] = ()) -> Wrapped:
        return Wrapped(compile_program(local, destinations), lambda: (runs.set(), goes_on.wait(60))[0])

    engine = RealmEngine(slow, 2)
    want = engine.run(graph, fresh(inputs))
    runs.clear()
    goes_on.clear()

    def interrupt() -> None:
        runs.wait(60)
        is_sent.set()
        os.kill(os.getpid(), signal.SIGINT)
        has_failed.wait(0.3)  # if it did not, the step waits for the bodies
        goes_on.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises((KeyboardInterrupt, Interrupted, LateInterrupt)):
        until_signals_arrive(lambda: interrupted(raise_at(number, lambda: engine.run(graph, fresh(inputs)), is_sent.is_set)))
    has_failed.set()
    thread.join()
    assert same(engine.run(graph, fresh(inputs)), want)


def until_signals_arrive(function: Callable[[], None]) -> None:
    """Call `function`, and give a signal that is on its way then time to arrive."""
    try:
        function()
    finally:
        time.sleep(0.2)


def interrupted(at_a_line: bool) -> None:
    if at_a_line:
        raise Interrupted


def test_ctrl_c_at_random_times_of_starting() -> None:
    graph, inputs = small_graph("dp=2", "dp"), small_inputs()
    engine = RealmEngine(compile_program, 2)
    rng = random.Random(0)
    want = engine.run(graph, fresh(inputs))
    PROCESS.close()
    start = time.perf_counter()
    engine.run(graph, fresh(inputs))
    longest_s = 1.5 * (time.perf_counter() - start)
    interrupted = 0
    for _ in range(20):
        PROCESS.close()
        timer = threading.Timer(rng.random() * longest_s, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                assert same(engine.run(graph, fresh(inputs)), want)
            timer.join()
            time.sleep(0.05)  # the handler runs
        except (KeyboardInterrupt, LateInterrupt):
            interrupted += 1
        timer.join()
        assert same(engine.run(graph, fresh(inputs)), want)
    assert interrupted == 20


def test_tensors_of_an_interrupted_step_are_let_go() -> None:
    """What the step held is free when the next one has run."""
    graph, inputs = small_graph("dp=2", "dp"), small_inputs()
    engine = RealmEngine(compile_program, 2)
    engine.run(graph, inputs)
    uses = [sys.getrefcount(tensor) for tensor in inputs.values()]
    for _ in positions(lambda: engine.run(graph, inputs), 5):
        engine.run(graph, small_inputs())
        assert [sys.getrefcount(tensor) for tensor in inputs.values()] == uses
