"""`train`: a model under a strategy, and the framework's own way beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maniple.api.frontends import detect, engine_or_default, verifier
from maniple.api.step import Step
from maniple.api.trace import LastSteps
from maniple.api.workloads import load
from maniple.commands import Listener, PhaseStarted, Run, StepDone, TrainConfig, TrainReport, ignore


def train(config: TrainConfig, listener: Listener = ignore) -> TrainReport:
    """Train a model for some steps and report losses and speed.

    Raises:
        ManipleError: if the model, the strategy or the step is refused.
        NonFiniteError: if `find_nan` is asked for and a number is not finite.
    """
    workload, engine = load(config.workload), engine_or_default(config.engine)
    step = Step(workload.step, (workload.model, workload.optimizer), config.strategy, engine)
    name = f"{config.strategy or 'one device'} on {engine}"
    recorded = LastSteps(step, config.steps, config.trace, find_nan=config.find_nan)
    runs = [
        replace(_run(name, workload, recorded, config.steps, listener), compile_s=sum(c.capture_s + c.compile_s for c in step.compiled))
    ]
    if config.compare:
        other = load(config.workload)
        runs.append(_run("PyTorch eager, one device", other, lambda b: other.step(other.model, other.optimizer, b), config.steps, listener))
    differences = [abs(a - b) for a, b in zip(runs[0].losses, runs[-1].losses, strict=True)]
    return TrainReport(
        model=config.workload.model,
        strategy=str(config.strategy),
        engine=engine,
        steps=config.steps,
        unit=workload.unit,
        runs=tuple(runs),
        max_loss_difference=max(differences) if config.compare and differences else None,
        trace=recorded.save(),
    )


def _run(name: str, workload: Any, step: Callable[[Any], Any], num_steps: int, listener: Listener) -> Run:
    first_number = verifier(detect((workload.model, workload.optimizer))).first_number
    listener(PhaseStarted(name, num_steps))
    losses, times = [], []
    for number in range(num_steps):
        batch = workload.batches(number)
        start = time.perf_counter()
        result = step(batch)
        times.append(time.perf_counter() - start)
        losses.append(first_number(result))
        listener(StepDone(loss=losses[-1], seconds=times[-1], samples=workload.samples, unit=workload.unit))
    warm = times[2:] or times
    return Run(
        name=name,
        losses=tuple(loss for loss in losses if loss is not None),
        samples_per_s=workload.samples / statistics.median(warm),
        step_s=statistics.median(warm),
    )
