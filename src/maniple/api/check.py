"""`check`: a model under a strategy against the framework on one device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from maniple.api.frontends import frontend
from maniple.api.step import Compiled, Step
from maniple.commands import CheckConfig, CheckReport, Listener, PhaseStarted, StepDone, TensorCheck, Traffic, ignore
from maniple.ir.program import Program
from maniple.lower import program_flops, state_bytes
from maniple.mesh import Mesh, Strategy
from maniple.shard.summary import totals, undivided
from maniple.verify.compare import Comparison, compare

Mode = Callable[[], AbstractContextManager[object]]


def check(config: CheckConfig, listener: Listener = ignore) -> CheckReport:
    """Train a model a few steps on one device and under the strategy, and compare every tensor.

    The oracle is the framework itself, eager on one device; with dropout, whose masks are our own, it is the strategy of one device.

    Raises:
        ManipleError: if the model, the strategy or the step is refused.
    """
    from maniple.models import load
    from maniple.verify.torch import Subject, low_precision, run_steps

    given = config.workload
    workload = load(given.model, batch=given.batch, seq=given.seq, dtype=given.dtype, dropout=given.dropout, seed=given.seed)
    promote = given.dtype == "float64"
    mode: Mode = frontend("torch").PromoteFloat64 if promote else nullcontext
    origin = Subject(workload.model, workload.optimizer)

    def run(name: str, subject: Subject, step: Callable[[Any], Any]) -> Any:
        listener(PhaseStarted(name, config.steps))
        eager = not isinstance(step, Step)
        return run_steps(
            subject, step, workload.batches, config.steps, mode if eager else nullcontext,
            lambda loss: listener(StepDone(loss=loss, samples=workload.samples, unit=workload.unit)),
        )  # fmt: skip

    def step_of(subject: Subject, strategy: Strategy | None) -> Callable[[Any], Any]:
        if strategy is None:
            return lambda batch: workload.step(subject.model, subject.optimizer, batch)
        return Step(workload.step, (subject.model, subject.optimizer), strategy, config.engine, promote_float64=promote)

    oracle = Strategy(Mesh()) if given.dropout else None
    subject = origin.copy()
    step = step_of(subject, config.strategy)
    assert isinstance(step, Step)
    start = time.perf_counter()
    got = run(f"{config.strategy or 'one device'} on {config.engine}", subject, step)
    seconds = time.perf_counter() - start
    twin, nudged_twin = origin.copy(), origin.nudged()
    expected = run("one device", twin, step_of(twin, oracle))
    nudged = run("one device, one unit in the last place away", nudged_twin, step_of(nudged_twin, oracle))
    comparison = compare(expected, got, nudged)
    return _report(config, step, comparison, seconds, low_precision(expected, given.dtype))


def _report(config: CheckConfig, step: Step, comparison: Comparison, seconds: float, low: tuple[str, ...]) -> CheckReport:
    compiled = step.last
    problems = tuple(problem for each in step.compiled for problem in each.plan.problems())
    program, mesh = compiled.plan.sharded.program, compiled.plan.sharded.mesh
    worst = comparison.worst
    capture_s, compile_s = (sum(times) for times in zip(*((c.capture_s, c.compile_s) for c in step.compiled), strict=True))
    ratios = state_ratios(program, mesh)
    return CheckReport(
        model=config.workload.model,
        strategy=str(config.strategy),
        engine=config.engine,
        dtype=config.workload.dtype,
        steps=config.steps,
        equal=comparison.equal and not problems,
        max_rel_err=max(item.measure for item in comparison.differences),
        tolerance=worst.tolerance,
        worst_tensor=worst.name,
        num_ops=len(program.ops),
        num_tasks=len(compiled.plan.graph.tasks),
        flops_per_device_ratio=flops_ratio(compiled, mesh),
        state_bytes_per_device_ratio=ratios["state"],
        parameter_bytes_per_device_ratio=ratios["parameter"],
        optimizer_bytes_per_device_ratio=ratios["optimizer"],
        replicated_ops=dict(Counter(op.name for op in undivided(program, mesh)).most_common()),
        collectives={kind: Traffic(entry["count"], entry["bytes"]) for kind, entry in totals(program, mesh).items()},
        capture_s=capture_s,
        compile_s=compile_s,
        run_s=seconds - capture_s - compile_s,
        tensors=tuple(
            TensorCheck(
                name=d.name, kind=d.kind, rel_err=d.measure, noise=d.sensitivity, tolerance=d.tolerance, equal=d.equal
            )
            for d in comparison.differences
        ),
        low_precision=low,
        problems=problems,
    )  # fmt: skip


def flops_ratio(compiled: Compiled, mesh: Mesh) -> float:
    """Return the FLOPs of the busiest device over those of the step on one device."""
    whole = program_flops(compiled.plan.program, Mesh())
    return program_flops(compiled.plan.sharded.program, mesh) / max(whole, 1)


def state_ratios(program: Program, mesh: Mesh) -> dict[str, float]:
    """Return the bytes of the fullest device over the whole: of `parameter`, `optimizer`, and all `state`."""
    one, device = state_bytes(program, Mesh(tuple((axis, 1) for axis in mesh.names))), state_bytes(program, mesh)
    found = {kind: device[kind] / one[kind] if one[kind] else 1.0 for kind in ("parameter", "optimizer")}
    return {**found, "state": sum(device.values()) / max(sum(one.values()), 1)}
