"""`explain`: what a strategy makes of a step, without running it and without memory for its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from maniple.api.compile import Plan, compile_program
from maniple.api.frontends import detect, engine_or_default, frontend, make_engine
from maniple.api.memory import memory_report
from maniple.api.workloads import load
from maniple.commands import CommunicationRow, ExplainConfig, ExplainReport, Listener, PhaseStarted, ignore
from maniple.ir.program import Program
from maniple.ir.text import print_program
from maniple.shard.summary import communication, saved_bytes, undivided
from maniple.taskgraph.text import print_taskgraph
from maniple.transform.cse import cse
from maniple.transform.dce import dce


def explain(config: ExplainConfig, listener: Listener = ignore) -> ExplainReport:
    """Return what a step communicates and why, the text of one stage, or what memory it takes.

    Raises:
        ManipleError: if the model, the strategy or the step is refused.
    """
    listener(PhaseStarted("capture"))
    program = steady_program(config)
    report = ExplainReport(model=config.workload.model, strategy=str(config.strategy), stage=config.stage)
    if config.stage == "program":
        program = dce(cse(program))
        return replace(report, text=print_program(program), num_ops=len(program.ops))
    listener(PhaseStarted("compile"))
    engine, framework = _engine(config) if config.stage in {"tasks", "memory"} else (None, "")
    plan = compile_program(program, config.strategy, engine.shared_axes(config.strategy.mesh) if engine else ())
    sharded = plan.sharded.program
    text = print_program(sharded) if config.stage == "sharded" else print_taskgraph(plan.graph) if config.stage == "tasks" else ""
    return replace(
        report,
        text=text,
        memory=memory_report(plan, engine, engine_or_default(config.engine), framework) if config.stage == "memory" else None,
        num_ops=len(sharded.ops),
        num_tasks=len(plan.graph.tasks),
        communication=tuple(_rows(plan)),
        replicated_ops=dict(Counter(op.name for op in undivided(plan.divided, plan.sharded.mesh)).most_common()),
        saved_bytes=saved_bytes(sharded, plan.sharded.mesh),
        notes=plan.sharded.notes,
    )


def _engine(config: ExplainConfig) -> tuple[Any, str]:
    """Return the engine whose tasks are to be explained, and the framework that the step is written in."""
    workload = load(config.workload, fake=True)
    framework = detect((workload.model, workload.optimizer))
    return make_engine(engine_or_default(config.engine), framework), framework


def steady_program(config: ExplainConfig) -> Program:
    """Return the program of every step but the first, in which the optimizer's state exists.

    The model is made of fake tensors, and so is the state that the first step would make.
    """
    workload = load(config.workload, fake=True)
    bound, args = (workload.model, workload.optimizer), (workload.batch,)
    adapter = frontend(detect(bound))
    first = adapter.capture(workload.step, bound, args)
    binding = adapter.Binding(first)
    if not binding.creates_state:
        program: Program = first.program
        return program
    binding.create_fake_state()
    steady: Program = adapter.capture(workload.step, bound, args).program
    return steady


def _rows(plan: Plan) -> list[CommunicationRow]:
    return [
        CommunicationRow(
            kind=item.kind,
            tensor=f"{item.tensor} [{','.join(map(str, item.shape))}]",
            axis=item.axis,
            bytes=item.num_bytes,
            phase=item.phase,
            why=item.why,
            where=str(item.location) if item.location else "",
        )
        for item in communication(plan.sharded.program, plan.sharded.mesh)
    ]
