"""`check`: a model under a strategy against the framework on one device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from maniple.api.frontends import detect, engine_or_default, frontend, verifier
from maniple.api.step import Compiled, Step
from maniple.api.trace import LastSteps
from maniple.api.workloads import load
from maniple.commands import CheckConfig, CheckReport, Listener, PhaseStarted, StepDone, TensorCheck, Traffic, ignore
from maniple.ir.program import Program
from maniple.lower import program_flops, state_bytes
from maniple.mesh import Mesh, Strategy
from maniple.shard.summary import totals, undivided
from maniple.verify.compare import Comparison, Tensor, compare, has_nan


def check(config: CheckConfig, listener: Listener = ignore) -> CheckReport:
    """Train a model a few steps on one device and under the strategy, and compare every tensor.

    The oracle is the framework itself, eager on one device. A step that draws random numbers, which are our own, is compared with the
    same step under the strategy of one device.

    Raises:
        ManipleError: if the model, the strategy or the step is refused.
        NonFiniteError: if `find_nan` is asked for and a number is not finite.
    """
    engine = engine_or_default(config.engine)
    runs = _Runs(config, listener)
    subject = runs.origin.copy()
    step = runs.parallel(subject, config.strategy)
    recorded = LastSteps(step, config.steps, config.trace, find_nan=config.find_nan)
    start = time.perf_counter()
    got = runs.run(f"{config.strategy or 'one device'} on {engine}", subject, recorded)
    seconds = time.perf_counter() - start
    draws = any(item.kind == "rng" for compiled in step.compiled for item in compiled.plan.program.inputs)
    expected = runs.oracle("one device", runs.origin.copy(), draws=draws)
    nudged = runs.oracle("one device, one unit in the last place away", runs.origin.nudged(), draws=draws)
    low = runs.verifier.low_precision(expected, config.workload.dtype)
    report = _report(config, engine, step, compare(expected, got, nudged), seconds, low)
    problems = (*report.problems, *_not_numbers(expected, got))
    return replace(report, trace=recorded.save(), problems=problems, equal=report.equal and not problems)


def _not_numbers(expected: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return what to say of results and state with NaN, of which nothing can be compared; empty if there is none."""
    found = [(name, all(has_nan(run[name]) for run in (expected, got) if name in run)) for name in got if has_nan(got[name])]
    if not found:
        return ()
    name, is_everywhere = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    where = "on one device too" if is_everywhere else "not on one device"
    return (f"{name}{more} holds NaN, {where}: --find-nan names the op that made it",)


class _Runs:
    """Runs of one workload, all from the same beginning.

    Attributes:
        origin: model and optimizer as they begin.
    """

    def __init__(self, config: CheckConfig, listener: Listener) -> None:
        self.config, self.listener = config, listener
        self.workload = load(config.workload)
        framework = detect((self.workload.model, self.workload.optimizer))
        self.verifier = verifier(framework)
        self.promotes = config.workload.dtype == "float64"
        self.mode = frontend(framework).PromoteFloat64 if self.promotes else nullcontext
        self.origin = self.verifier.Subject(self.workload.model, self.workload.optimizer)

    def parallel(self, subject: Any, strategy: Strategy) -> Step:
        """Return the workload's step under `strategy`, bound to `subject`."""
        bound = (subject.model, subject.optimizer)
        return Step(self.workload.step, bound, strategy, self.config.engine, promote_float64=self.promotes)

    def oracle(self, name: str, subject: Any, *, draws: bool) -> Mapping[str, Tensor]:
        """Run `subject` on one device: eager, or through our own program if it `draws` random numbers."""
        if draws:
            return self.run(name, subject, self.parallel(subject, Strategy(Mesh())))

        def step(batch: Any) -> Any:
            with self.mode():
                return self.workload.step(subject.model, subject.optimizer, batch)

        return self.run(name, subject, step)

    def run(self, name: str, subject: Any, step: Callable[[Any], Any]) -> Mapping[str, Tensor]:
        """Run all steps, telling the listener."""
        self.listener(PhaseStarted(name, self.config.steps))
        workload = self.workload

        def told(loss: float | None) -> None:
            self.listener(StepDone(loss=loss, samples=workload.samples, unit=workload.unit))

        found: Mapping[str, Tensor] = self.verifier.run_steps(subject, step, workload.batches, self.config.steps, told)
        return found


def _report(config: CheckConfig, engine: str, step: Step, comparison: Comparison, seconds: float, low: tuple[str, ...]) -> CheckReport:
    compiled = step.last
    problems = tuple(problem for each in step.compiled for problem in each.plan.problems())
    program, mesh = compiled.plan.sharded.program, compiled.plan.sharded.mesh
    worst = comparison.worst
    capture_s, compile_s = (sum(times) for times in zip(*((c.capture_s, c.compile_s) for c in step.compiled), strict=True))
    ratios = state_ratios(program, mesh)
    return CheckReport(
        model=config.workload.model,
        strategy=str(config.strategy),
        engine=engine,
        dtype=config.workload.dtype,
        steps=config.steps,
        equal=comparison.equal and not problems,
        max_rel_err=worst.measure,
        tolerance=worst.tolerance,
        worst_tensor=worst.name,
        num_ops=len(program.ops),
        num_tasks=len(compiled.plan.graph.tasks),
        flops_per_device_ratio=flops_ratio(compiled, mesh),
        state_bytes_per_device_ratio=ratios["state"],
        parameter_bytes_per_device_ratio=ratios["parameter"],
        optimizer_bytes_per_device_ratio=ratios["optimizer"],
        replicated_ops=dict(Counter(op.name for op in undivided(compiled.plan.divided, mesh)).most_common()),
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
    return program_flops(compiled.plan.divided, mesh) / max(whole, 1)


def state_ratios(program: Program, mesh: Mesh) -> dict[str, float]:
    """Return the bytes of the fullest device over the whole: of `parameter`, `optimizer`, and all `state`."""
    one, device = state_bytes(program, Mesh(tuple((axis, 1) for axis in mesh.names))), state_bytes(program, mesh)
    found = {kind: device[kind] / one[kind] if one[kind] else 1.0 for kind in ("parameter", "optimizer")}
    return {**found, "state": sum(device.values()) / max(sum(one.values()), 1)}
