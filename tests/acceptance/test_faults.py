"""Acceptance: `check` can fail. Each fault is planted in the finished plan of several devices; `check` exits 1 and names the tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptance_harness import check, maniple, wrong

from maniple.api import Plan
from maniple.api import compile as plans
from maniple.api.explain import steady_program
from maniple.base.errors import VerifyError
from maniple.commands import ExplainConfig, WorkloadConfig
from maniple.engine import bodies
from maniple.ir.program import Op, Output, Program, Value
from maniple.lower import lower
from maniple.mesh import Mesh, Strategy
from maniple.mesh.mesh import Point
from maniple.ops.localize import LocalProgram, localize
from maniple.shard.shard import Sharded
from maniple.taskgraph import TaskGraph
from maniple.verify.dependences import check_dependences

Fault = Callable[[Plan], Plan]
Plant = Callable[[Fault], list[Plan]]
WEIGHT = "layers.1.weight"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Put a fault into every plan for several devices; the plans that have it are in the list returned."""

    def install(fault: Fault) -> list[Plan]:
        planted: list[Plan] = []

        def compiled(program: Program, strategy: Strategy, shared: tuple[str, ...] = (), *, idle: bool = False) -> Plan:
            plan = plans.compile_program(program, strategy, shared, idle=idle)
            if strategy.num_devices == 1:
                return plan
            planted.append(fault(plan))
            assert planted[-1] != plan
            return planted[-1]

        monkeypatch.setattr("maniple.api.step.compile_program", compiled)
        return planted

    return install


def lowered(plan: Plan, program: Program) -> Plan:
    """Return the plan with another sharded program."""
    sharded = Sharded(program, plan.sharded.mesh, plan.sharded.layouts, plan.sharded.solution)
    return Plan(plan.program, sharded, program, lower(program, plan.sharded.mesh, plan.graph.shared))


def state_of(name: str) -> set[str]:
    return {name, f"optimizer.exp_avg.{name}", f"optimizer.exp_avg_sq.{name}"}


def test_without_a_fault_it_passes(plant: Plant) -> None:
    planted = plant(lambda plan: replace(plan, program=plan.program, graph=replace(plan.graph, edges=tuple(reversed(plan.graph.edges)))))
    status, report = check("mlp", "dp=2", "--steps", "2")
    assert planted
    assert (status, report["equal"], report["problems"]) == (0, True, [])


def gradient_of(plan: Plan, name: str) -> Value:
    return dict(plan.sharded.program.gradients)[name]


def drop_all_reduce(plan: Plan) -> Plan:
    """Let each device take its own part for the sum, where the gradient of WEIGHT is reduced."""
    gradient = gradient_of(plan, WEIGHT)
    stem = gradient.name.partition("~")[0]
    (victim,) = [task for task in plan.graph.tasks if task.op == "all_reduce" and task.accesses[0].buffer.partition("~")[0] == stem]
    read, write = victim.accesses
    alone = replace(victim, accesses=(replace(read, part=replace(read.part, peers=())), write))
    return replace(plan, graph=replace(plan.graph, tasks=tuple(alone if task is victim else task for task in plan.graph.tasks)))


def test_an_all_reduce_dropped(plant: Plant) -> None:
    plant(drop_all_reduce)
    status, report = check("mlp", "dp=2", "--steps", "1")
    assert status == 1
    assert not report["equal"]
    assert wrong(report) == state_of(WEIGHT)
    assert report["worst_tensor"] in state_of(WEIGHT)
    assert report["max_rel_err"] > 1e-3


def test_every_all_reduce_of_tensor_parallelism_counts(plant: Plant) -> None:
    def drop(plan: Plan) -> Plan:
        victim = next(task for task in plan.graph.tasks if task.op == "all_reduce")
        read, write = victim.accesses
        alone = replace(victim, accesses=(replace(read, part=replace(read.part, peers=())), write))
        return replace(plan, graph=replace(plan.graph, tasks=tuple(alone if task is victim else task for task in plan.graph.tasks)))

    plant(drop)
    status, report = check("mlp", "tp=2", "--steps", "1")
    assert status == 1
    assert "step0.result" in wrong(report)
    assert report["worst_tensor"] in wrong(report)


def double_gradient(plan: Plan) -> Plan:
    program = plan.sharded.program
    gradient = gradient_of(plan, WEIGHT)
    doubled = Value("doubled", gradient.type, gradient.sharding)
    (maker,) = [at for at, op in enumerate(program.ops) if gradient in op.results]
    adding = Op("add", (gradient, gradient), (doubled,), phase="backward", location=program.ops[maker].location)
    later = [
        replace(op, operands=tuple(doubled if value is gradient else value for value in op.operands)) for op in program.ops[maker + 1 :]
    ]
    return lowered(plan, replace(program, ops=(*program.ops[: maker + 1], adding, *later)))


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 zero=2"])
def test_a_gradient_doubled(plant: Plant, strategy: str) -> None:
    plant(double_gradient)
    status, report = check("mlp", strategy, "--steps", "1")
    assert status == 1
    assert wrong(report) >= state_of(WEIGHT) - {WEIGHT}  # Adam's first step hardly depends on the gradient's size
    assert wrong(report) <= state_of(WEIGHT)
    assert report["worst_tensor"] in state_of(WEIGHT)


def skip_update(plan: Plan) -> Plan:
    program = plan.sharded.program
    before = program.input_named(WEIGHT).value
    outputs = tuple(Output(before, item.name) if item.name == WEIGHT else item for item in program.outputs)
    return lowered(plan, replace(program, outputs=outputs))


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 tp=2 zero=3"])
def test_one_update_skipped(plant: Plant, strategy: str) -> None:
    plant(skip_update)
    status, report = check("mlp", strategy, "--steps", "1")
    assert status == 1
    assert wrong(report) == {WEIGHT}
    assert report["worst_tensor"] == WEIGHT


def test_the_table_names_the_tensor(plant: Plant) -> None:
    plant(skip_update)
    result = maniple("check", "mlp", "--strategy", "dp=2", "--steps", "1")
    assert result.exit_code == 1
    assert "NOT equal" in result.stdout
    assert WEIGHT in result.stdout


TINY_LM = """
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(128, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, ids):
        return self.mix(self.table(ids)).tanh() @ self.table.weight.T


def step(model, optimizer, batch):
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def make():
    model = Model()
    batch = {"x": torch.randint(0, 128, (256,)), "y": torch.randint(0, 128, (256,))}
    return step, model, torch.optim.Adam(model.parameters(), lr=1e-2), batch
"""


@pytest.fixture
def tiny_lm(tmp_path: Path) -> str:
    (tmp_path / "tiny_lm.py").write_text(TINY_LM, encoding="utf-8")
    return f"{tmp_path / 'tiny_lm.py'}:make"


@pytest.mark.parametrize("kind", ["embedding", "pick"])
def test_a_shard_begins_one_row_too_late(monkeypatch: pytest.MonkeyPatch, tiny_lm: str, kind: str) -> None:
    """The offset of a shard of the vocabulary that an op is told is one more than it is."""
    moved: list[Op] = []

    def shifted(fragment: Program, mesh: Mesh, point: Point) -> LocalProgram:
        local = localize(fragment, mesh, point)
        victims = [op for op in local.program.ops if op.name == kind and len(op.operands) == 3]
        if not victims:
            return local
        moved.extend(victims)
        return off_by_one(local, victims[0])

    monkeypatch.setattr(bodies, "localize", shifted)
    status, report = check(tiny_lm, "tp=2", "--steps", "1")
    assert moved
    assert status == 1
    assert {"step0.result", "optimizer.exp_avg.table.weight"} & wrong(report)
    assert report["worst_tensor"] in wrong(report)


def off_by_one(local: LocalProgram, victim: Op) -> LocalProgram:
    """Return the program with one more added to the last operand of `victim`, its offset."""
    offset = victim.operands[-1]
    one, sum_ = Value("planted.1", offset.type), Value("planted.2", offset.type)
    late = replace(victim, operands=(*victim.operands[:-1], sum_))
    added = (Op("constant", (), (one,), (("value", 1),)), Op("add", (offset, one), (sum_,)))
    ops = [other for op in local.program.ops for other in ((*added, late) if op is victim else (op,))]
    return replace(local, program=replace(local.program, ops=tuple(ops)))


def collisions(plan: Plan) -> Plan:
    """Let all layers of dropout draw with the id of the first."""
    drawn = [op for op in plan.sharded.program.ops if op.name == "rng_uniform"]
    number = drawn[0].integer("id")

    def same(op: Op) -> Op:
        return replace(op, attrs=tuple((key, number if key == "id" else value) for key, value in op.attrs)) if op in drawn else op

    assert len(drawn) > 1
    return lowered(plan, replace(plan.sharded.program, ops=tuple(same(op) for op in plan.sharded.program.ops)))


def test_two_layers_draw_one_mask(plant: Plant) -> None:
    plant(collisions)
    status, report = check("mlp", "dp=2", "--steps", "1", "--dropout", "0.2")
    assert status == 1
    assert "step0.result" in wrong(report)
    assert report["worst_tensor"] in wrong(report)


def test_shards_draw_one_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard draws what the first one does."""
    drawn: list[Op] = []

    def at_the_start(fragment: Program, mesh: Mesh, point: Point) -> LocalProgram:
        local = localize(fragment, mesh, point)
        drawn.extend(op for op in local.program.ops if op.name == "rng_uniform" and len(op.operands) > 1)
        ops = tuple(replace(op, operands=op.operands[:1]) if op.name == "rng_uniform" else op for op in local.program.ops)
        return replace(local, program=replace(local.program, ops=ops))

    monkeypatch.setattr(bodies, "localize", at_the_start)
    status, report = check("mlp", "dp=2", "--steps", "1", "--dropout", "0.2")
    assert drawn
    assert status == 1
    assert "step0.result" in wrong(report)


def necessary_edge(plan: Plan) -> Plan:
    edge = plan.graph.edges[len(plan.graph.edges) // 2]
    return replace(plan, graph=replace(plan.graph, edges=tuple(other for other in plan.graph.edges if other is not edge)))


def test_one_dependence_removed(plant: Plant) -> None:
    planted = plant(necessary_edge)
    # in an order of the tasks that happens to be right; Realm may find out that a buffer is not written yet
    status, report = check("mlp", "dp=2 tp=2", "--steps", "1", "--engine", "reference")
    assert status == 1
    assert not report["equal"]
    (problem, *_) = report["problems"]
    names = {buffer.name for buffer in planted[-1].graph.buffers}
    assert any(f"buffer {name} " in problem for name in names)
    assert "nothing orders task" in problem
    shown = maniple("check", "mlp", "--strategy", "dp=2 tp=2", "--steps", "1", "--engine", "reference")
    assert shown.exit_code == 1
    assert "wrong: " in shown.stdout


def without_each_edge(graph: TaskGraph) -> Iterator[TaskGraph]:
    for at in range(len(graph.edges)):
        yield replace(graph, edges=graph.edges[:at] + graph.edges[at + 1 :])


@pytest.mark.parametrize("strategy", ["dp=2", "dp=2 tp=2 zero=3"])
def test_every_single_dependence_is_missed(strategy: str) -> None:
    program = steady_program(ExplainConfig(workload=WorkloadConfig(model="mlp"), strategy=Strategy.parse("")))
    graph = plans.compile_program(program, Strategy.parse(strategy)).graph
    check_dependences(graph)
    found: list[Any] = []
    for less in without_each_edge(graph):
        with pytest.raises(VerifyError, match="buffer") as caught:
            check_dependences(less)
        found.append(caught.value)
    assert len(found) == len(graph.edges) > 10
