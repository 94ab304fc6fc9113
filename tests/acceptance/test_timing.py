"""Acceptance: 200 repeats of one check on Realm, its tasks shuffled and delayed at random: equal to one device, and bitwise the same."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from maniple.api.check import _Runs
from maniple.commands import CheckConfig, WorkloadConfig, ignore
from maniple.engine.realm import RealmEngine
from maniple.kernels.torch import Body, compile_program
from maniple.mesh import Strategy
from maniple.ops.localize import Destination, LocalProgram
from maniple.verify.compare import compare

STEPS = 2


class Delays:
    """Bodies that sleep at random before they work; every other call, as long as a body takes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def compile(self, local: LocalProgram, destinations: Sequence[Destination] = ()) -> Body:
        body = compile_program(local, destinations)

        def run(*operands: Any) -> Any:
            if self.rng.random() < 0.5:
                time.sleep(self.rng.random() * 5e-4)
            return body(*operands)

        return Body(body.source, run, body.views)


@pytest.mark.usefixtures("captured_once", "compiled_once")
@pytest.mark.parametrize("strategy", ["dp=2 tp=2 zero=3"])
def test_two_hundred_checks(strategy: str) -> None:
    config = CheckConfig(workload=WorkloadConfig(model="mlp", dtype="float64"), strategy=Strategy.parse(strategy), steps=STEPS)
    runs = _Runs(config, ignore)
    expected = runs.oracle("one device", runs.origin.copy(), draws=False)
    nudged = runs.oracle("nudged", runs.origin.nudged(), draws=False)
    rng = random.Random(0)
    engines = [RealmEngine(Delays(rng).compile, number, rng) for number in (1, 2, 4)]
    first = None
    for repeat in range(200):
        subject = runs.origin.copy()
        step = runs.parallel(subject, config.strategy)
        step.engine = engines[repeat % len(engines)]
        got = runs.run(str(repeat), subject, step)
        if first is None:
            first = got
            assert compare(expected, got, nudged).equal
        assert got.keys() == first.keys() == expected.keys()
        for name, tensor in got.items():
            assert np.array_equal(tensor.data, first[name].data), (repeat, name)
