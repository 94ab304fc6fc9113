"""From a strategy to a sharded program: layouts of state and batch, the solver for tp, then propagation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from maniple.base.errors import StrategyError
from maniple.base.types import TensorType
from maniple.ir.program import Program
from maniple.mesh import AxisPart, Mesh, Sharding, shard_bounds
from maniple.mesh.strategy import Strategy
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts, parameter_of
from maniple.shard.options import along, lay
from maniple.shard.propagate import propagate
from maniple.shard.regather import regather
from maniple.shard.solve import Solution, solve

DATA_AXIS = "dp"
TENSOR_AXIS = "tp"


@dataclass(frozen=True, slots=True)
class Sharded:
    """A sharded program with the decisions that led to it.

    Attributes:
        solution: what the solver decided for tp, None without tp.
        notes: what people should know of these decisions, by subject.
    """

    program: Program
    mesh: Mesh
    layouts: Layouts
    solution: Solution | None
    notes: Mapping[str, str] = field(default_factory=dict)


def shard(program: Program, strategy: Strategy, cost: CostModel | None = None, *, idle: bool = False) -> Sharded:
    """Return `program` divided as `strategy` says.

    Args:
        program: as captured.
        strategy: how to divide it.
        cost: what communication costs.
        idle: whether devices may be left without any row of the batch, as by the last one of an epoch.

    Raises:
        StrategyError: if the strategy does not fit the program.
        ShardingError: if an op cannot be divided as required.
    """
    cost = cost or CostModel()
    mesh = strategy.mesh
    parameters = {item.name: item.value.type for item in program.inputs if item.kind == "parameter"}
    placed = strategy.placed(parameters)
    tensors = {value.name: value.type for value in program.values()}
    tensors |= {item.name: item.value.type for item in program.inputs}
    pinned = strategy.pinned(tensors) if strategy.pins else {}
    for item in program.inputs:
        for name in (item.name, item.value.name):
            if name in pinned and pinned[name].pending:
                raise StrategyError(
                    f"pin {name!r}: {pinned[name]} is a partial result, but an input is whole", hint="split it, or leave it whole: _"
                )
    batch = _batch_layouts(program, strategy.size(DATA_AXIS), pinned, idle=idle)
    fixed = batch | placed | pinned
    solution = None
    if strategy.size(TENSOR_AXIS) > 1:
        chosen = {name: along(sharding, TENSOR_AXIS) for name, sharding in {**placed, **pinned}.items()}
        solution = solve(program, TENSOR_AXIS, mesh.size(TENSOR_AXIS), cost, pins=chosen, sp=strategy.sp)
    scatters = solution.num_changes("reduce_scatter") if solution and strategy.sp else 0
    if strategy.sp and solution and not scatters:  # nothing to gain
        solution = solve(program, TENSOR_AXIS, mesh.size(TENSOR_AXIS), cost, pins=chosen)
    layouts = _layouts(program, strategy, solution, fixed, set(placed) | set(pinned))
    sharded = propagate(program, mesh, layouts, cost)
    if scatters:
        sharded = regather(sharded, TENSOR_AXIS)
    return Sharded(sharded, mesh, layouts, solution, dict(_notes(strategy, batch, solution, scatters)))


def _notes(strategy: Strategy, batch: Mapping[str, Sharding], solution: Solution | None, scatters: int) -> Iterator[tuple[str, str]]:
    if batch:
        yield "batch", f"rows are dim 0 of {', '.join(batch)}"
    if strategy.sp and scatters:
        yield "sp", f"{scatters} partial sums are scattered, where tp alone makes them whole"
    elif strategy.sp:
        yield "sp", "finds nothing to divide between products; all is as without it"
    if solution and solution.gathered:
        yield "parameters that cannot stay divided", "; ".join(solution.gathered)


def _batch_layouts(program: Program, ways: int, pinned: Collection[str], *, idle: bool) -> dict[str, Sharding]:
    """Return the layout of each batch input that is not pinned: rows over dp, for those that have the batch's number of rows.

    That number is the first dim of most of them, less those of which it is another dim (so that a mask [tokens, tokens] does not count);
    of equals, that of the tensors with most elements. It is 1 only if all first dims are.

    Raises:
        StrategyError: if there are fewer rows than data-parallel ways and none may idle, or no batch at all.
    """
    if ways == 1:
        return {}
    batch = {item.name: item.value.type for item in program.inputs if item.kind == "batch" and item.value.type.rank}
    if not batch:
        raise StrategyError(f"dp={ways} divides the batch, but the step takes no batch tensor", hint="leave dp out")
    tensors = {name: kind for name, kind in batch.items() if name not in pinned}
    if not tensors:
        return {}

    def votes(n: int) -> tuple[bool, int, int]:
        first = [kind for kind in tensors.values() if kind.shape[0] == n]
        others = sum(n in kind.shape[1:] for kind in tensors.values())
        return n > 1, len(first) - others, sum(kind.num_elements for kind in first)

    rows = max(dict.fromkeys(kind.shape[0] for kind in tensors.values()), key=votes)
    if rows < ways and not idle:
        name = next(name for name, kind in tensors.items() if kind.shape[0] == rows)
        raise StrategyError(f"dp={ways} is more ways than {name} has rows: {rows}", hint=f"dp={max(rows, 1)} or a larger batch")
    return {name: Sharding.replicated(kind.rank).split(0, AxisPart(DATA_AXIS)) for name, kind in tensors.items() if kind.shape[0] == rows}


def _layouts(program: Program, strategy: Strategy, solution: Solution | None, fixed: Mapping[str, Sharding], chosen: set[str]) -> Layouts:
    """Return the layouts of all inputs, with what ZeRO adds."""
    mesh, dp, inputs = strategy.mesh, strategy.size(DATA_AXIS), dict(fixed)
    parameters = {item.name: item.value.type for item in program.inputs if item.kind == "parameter"}
    divided: dict[str, Sharding] = {}
    for name, kind in parameters.items():
        bare = fixed.get(name) or _tensor_parallel(name, kind, solution)
        divided[name] = _zero(bare, kind, mesh) if dp > 1 and kind.rank and not bare.along(DATA_AXIS) else bare
        inputs[name] = divided[name] if strategy.zero >= 3 and name not in chosen else bare
    for item in program.inputs:
        if item.kind == "buffer" and item.name not in inputs:
            inputs[item.name] = _tensor_parallel(item.name, item.value.type, solution)
    states = {item.name: item.value.type for item in program.inputs if item.kind == "optimizer"}
    known = {item.name for item in program.inputs}
    states |= {item.name: item.value.type for item in program.outputs if item.name not in known}
    for name, kind in states.items():
        parameter = parameter_of(name, kind, parameters)
        if name not in inputs and parameter:
            inputs[name] = divided[parameter] if strategy.zero >= 1 else inputs[parameter]
    gradients = {}
    if strategy.zero >= 1:
        for name in parameters:
            found = divided[name].along(DATA_AXIS)
            if isinstance(found, tuple):
                gradients[name] = found
    values = {value.name for value in program.values()}
    return Layouts(
        inputs=inputs,
        order=(*(axis for axis in mesh.names if axis != DATA_AXIS), *((DATA_AXIS,) if dp > 1 else ())),
        options={TENSOR_AXIS: solution.options} if solution else {},
        gradients=gradients,
        splits_gradients_at_once=strategy.zero >= 2,
        gathered=frozenset(n for n in parameters if n not in chosen) if strategy.zero >= 3 and dp > 1 else frozenset(),
        gather_axis=DATA_AXIS if strategy.zero >= 3 and dp > 1 else "",
        pins={name: sharding for name, sharding in fixed.items() if name in values},
    )


def _tensor_parallel(name: str, kind: TensorType, solution: Solution | None) -> Sharding:
    layout = solution.inputs.get(name) if solution else None
    return lay(Sharding.replicated(kind.rank), TENSOR_AXIS, layout)


def _zero(sharding: Sharding, kind: TensorType, mesh: Mesh) -> Sharding:
    """Return `sharding` with dp added where it divides best.

    The dim with the smallest largest shard wins, then one that no other axis splits, then the first.
    """
    local = sharding.local_shape(kind.shape, mesh)
    ways = mesh.size(DATA_AXIS)

    def rank(dim: int) -> tuple[float, bool, int]:
        parts = sharding.dims[dim]
        granule = parts[0].blocks * parts[0].unit if parts else 1
        _, largest = shard_bounds(local[dim] // granule, ways, 0)
        return largest * granule / max(local[dim], 1), bool(parts), dim

    dim = min(range(kind.rank), key=rank)
    parts = sharding.dims[dim]
    part = AxisPart(DATA_AXIS, parts[0].blocks, parts[0].unit) if parts else AxisPart(DATA_AXIS)
    return sharding.split(dim, part)
