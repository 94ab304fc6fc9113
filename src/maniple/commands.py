"""What the commands take and what they give back: plain data between `cli` and `api`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from maniple.mesh import Strategy
from maniple.trace import TraceSummary

Stage = Literal["program", "sharded", "tasks", "memory"]
"""What `explain` prints: the captured program, the sharded one, the task graph, or how much memory that takes at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Which training step, on what data.

    Attributes:
        model: a name of the zoo, `hf:PATH`, or `FILE.py:FUNCTION`.
        batch: rows of a batch, None for the model's own.
        seq: tokens per row, None for the model's own.
        dtype: of parameters, buffers and batch.
        dropout: rate.
        seed: of weights, data and dropout.
    """

    model: str
    batch: int | None = None
    seq: int | None = None
    dtype: str = "float32"
    dropout: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What `train` does.

    Attributes:
        engine: what runs the tasks, None for the default.
        compare: train the framework's own way on one device as well.
        trace: file for a trace of the last steps; empty for none.
        find_nan: before each step, look for an op that makes a number that is not finite.
    """

    workload: WorkloadConfig
    strategy: Strategy
    engine: str | None = None
    steps: int = 50
    compare: bool = False
    trace: str = ""
    find_nan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """What `check` does.

    Attributes:
        engine: what runs the tasks, None for the default.
        trace: file for a trace of the last steps; empty for none.
        find_nan: before each step, look for an op that makes a number that is not finite.
    """

    workload: WorkloadConfig
    strategy: Strategy
    engine: str | None = None
    steps: int = 3
    trace: str = ""
    find_nan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainConfig:
    """What `explain` prints: the communication table, or one stage.

    Attributes:
        engine: whose tasks and memory, None for the default.
    """

    workload: WorkloadConfig
    strategy: Strategy
    stage: Stage | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What `trace` reads, and where it draws the last step; with an empty `svg` it draws nothing."""

    file: str
    svg: str = ""


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A part of the work has begun, e.g. `capture`; it has `num_steps` steps, 0 where that is not known."""

    name: str
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of a phase is done.

    Attributes:
        loss: what the step returned, None where it does not return a number.
        seconds: how long it took.
        samples: tokens, images or rows that it took, 0 if unknown.
        unit: what `samples` counts.
    """

    loss: float | None = None
    seconds: float = 0.0
    samples: int = 0
    unit: str = "rows"


Event = PhaseStarted | StepDone
Listener = Callable[[Event], None]
"""Told of progress; see `ignore`."""


def ignore(_event: Event) -> None:
    """Take no notice of an event."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many collectives of one kind there are, and the bytes that a device holds of their operands, together."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run.

    Attributes:
        name: strategy and engine, or the framework's own way.
        losses: of every step.
        samples_per_s: tokens, images or rows per second, the first step left out; 0 if unknown.
        step_s: median seconds per step.
        compile_s: seconds before the first step.
    """

    name: str
    losses: tuple[float, ...]
    samples_per_s: float
    step_s: float
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What `train` found.

    Attributes:
        runs: the run asked for, then the one-device run if there was one.
        max_loss_difference: largest difference between the losses of the two, None with one run.
        trace: of the run asked for, if it was recorded.
    """

    model: str
    strategy: str
    engine: str
    steps: int
    unit: str
    runs: tuple[Run, ...]
    max_loss_difference: float | None = None
    trace: TraceSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCheck:
    """How far one tensor is from that of one device.

    Attributes:
        kind: loss, parameter, buffer or optimizer.
        rel_err: norm of the difference over the larger of the tensor's norm and 1e-3 of the norm of its kind.
        noise: the same measure between two one-device runs that begin one unit in the last place apart.
        tolerance: what `rel_err` may be.
    """

    name: str
    kind: str
    rel_err: float
    noise: float
    tolerance: float
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check` found.

    Attributes:
        equal: whether every tensor is within its tolerance.
        max_rel_err: of the worst tensor.
        tolerance: of the worst tensor.
        worst_tensor: the tensor that is furthest out, relative to its tolerance.
        flops_per_device_ratio: FLOPs of the busiest device over those of one device alone.
        state_bytes_per_device_ratio: bytes of parameters, buffers and optimizer state, likewise.
        parameter_bytes_per_device_ratio: of parameters only.
        optimizer_bytes_per_device_ratio: of optimizer state only.
        replicated_ops: ops that every device computes whole, by name, with their number.
        collectives: by kind.
        tensors: every tensor compared.
        low_precision: what stayed below the dtype asked for.
        problems: what the checkers of layouts and dependences found wrong in the plan, and NaN; `equal` is false if there is any.
        trace: of the last steps, if they were recorded.
    """

    model: str
    strategy: str
    engine: str
    dtype: str
    steps: int
    equal: bool
    max_rel_err: float
    tolerance: float
    worst_tensor: str
    num_ops: int
    num_tasks: int
    flops_per_device_ratio: float
    state_bytes_per_device_ratio: float
    parameter_bytes_per_device_ratio: float
    optimizer_bytes_per_device_ratio: float
    replicated_ops: Mapping[str, int] = field(default_factory=dict)
    collectives: Mapping[str, Traffic] = field(default_factory=dict)
    capture_s: float = 0.0
    compile_s: float = 0.0
    run_s: float = 0.0
    tensors: tuple[TensorCheck, ...] = ()
    low_precision: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    trace: TraceSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationRow:
    """One collective.

    Attributes:
        tensor: value that is moved.
        why: the factor that was contracted, or the layouts that differ.
        where: the user's line, with the module path; empty if unknown.
    """

    kind: str
    tensor: str
    axis: str
    bytes: int
    phase: str
    why: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """Memory that is live at the peak.

    Attributes:
        name: value that lies in it, with how many more; or what bodies have inside.
        type: of that value, global.
        kind: activations, gradients, update (what the optimizer's part of the step makes) or bodies.
        bytes: in the whole node.
        task: that made it.
        where: the user's line; empty if unknown.
    """

    name: str
    type: str
    kind: str
    bytes: int
    task: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """The most memory of a node while its devices run a task.

    Attributes:
        task: name, `end` for the end of the step.
        held_bytes: made before and not surely free.
        body_bytes: inside bodies, results included.
    """

    task: str
    phase: str
    held_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """An upper bound for the memory that a step takes beside the tensors that are there before it.

    Attributes:
        engine: whose devices and processors.
        node_bytes: the most of the devices that share memory, at one time.
        device_bytes: the most of one device.
        kept_bytes: of `node_bytes`, what the engine keeps between steps.
        num_processors: bodies that run at one time in a node.
        task: what runs at the peak.
        state_bytes: of one copy of the parameters, buffers, optimizer state and batch, which are there before; by kind.
        kinds: what is live at the peak, by kind.
        live: the same, one by one, the largest first.
        tasks: in program order.
    """

    engine: str
    node_bytes: int
    device_bytes: int
    kept_bytes: int
    num_processors: int | None
    task: str
    state_bytes: Mapping[str, int]
    kinds: Mapping[str, int]
    live: tuple[LiveRow, ...]
    tasks: tuple[MemoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainReport:
    """What `explain` found.

    Attributes:
        text: text form of the stage asked for, empty if it has none.
        communication: every collective in program order; empty for stage `program`.
        replicated_ops: ops that every device computes whole, by name, with their number.
        saved_bytes: of what forward makes and backward reads, on the first device, where devices have memory of their own.
        notes: what the strategy's words turned out to mean, by subject.
        memory: of stage `memory`, else None.
    """

    model: str
    strategy: str
    stage: Stage | None = None
    text: str = ""
    num_ops: int = 0
    num_tasks: int = 0
    communication: tuple[CommunicationRow, ...] = ()
    replicated_ops: Mapping[str, int] = field(default_factory=dict)
    saved_bytes: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)
    memory: MemoryReport | None = None
