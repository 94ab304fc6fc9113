"""The memory that a body takes beside its operands, found without running it: its calls are made on fake tensors and storages counted."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maniple.base.types import TensorType
from maniple.ir.program import Program
from maniple.kernels.torch.compile import Body, compile_program
from maniple.kernels.torch.emit import TORCH_DTYPES
from maniple.kernels.torch.nn_functions import rows_of
from maniple.kernels.torch.workspace import workspace_bytes
from maniple.ops.localize import Destination, LocalProgram
from maniple.taskgraph.storage import BodyMemory


def body_memory(program: LocalProgram | Program, destinations: Sequence[Destination] = ()) -> BodyMemory:
    """Return what the body of `program` allocates: exact for tensors, an upper bound for what kernels need inside.

    The body is run on fake tensors, which have no data: neither memory nor time depends on shapes. Offsets are 0. Where it matters to a
    body whether an offset is 0, which is so on some devices only, the result is the larger of the two.

    Args:
        program: ops with local types.
        destinations: outputs that are written into memory given.

    Raises:
        LoweringError: if an op has no kernel.
    """
    local = program.program if isinstance(program, LocalProgram) else program
    num_offsets = len(program.offsets) if isinstance(program, LocalProgram) else 0
    body = compile_program(program, destinations)
    runs = [_run(body, local, destinations, (0,) * num_offsets)]
    if any(op.name == "keep_at_zero" for op in local.ops):
        runs.append(_run(body, local, destinations, (_Elsewhere(),) * num_offsets))
    return BodyMemory(
        max(run.peak_bytes for run in runs),
        tuple(frozenset[int]().union(*places) for places in zip(*(run.places for run in runs), strict=True)),
        tuple(max(sizes) for sizes in zip(*(run.new_bytes for run in runs), strict=True)),
    )


class _Elsewhere(int):
    """The offset 0 that says it is another: as a place in a tensor it fits whatever the shard's length is."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1


def _run(body: Body, local: Program, destinations: Sequence[Destination], offsets: tuple[int, ...]) -> BodyMemory:
    counter = _Counter()
    function = FunctionType(body.function.__code__, {**body.function.__globals__, "adam": _adam})
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [_empty(item.value.type) for item in local.inputs[: len(local.inputs) - len(offsets)]]
        given = [tensors[at.inputs[0]] if at.inputs else _empty(local.outputs[at.output].value.type) for at in destinations]
        operands = {_key(tensor): number for number, tensor in enumerate((*tensors, *given))}
        with counter:
            results = function(*tensors, *offsets, *given)
        first: dict[int, int] = {}
        for number, result in enumerate(results):
            first.setdefault(_key(result), number)
        places = tuple(frozenset({operands.get(_key(result), ~first[_key(result)])}) for result in results)
        sizes = [counter.live[_key(result)].num_bytes if ~number in places[number] else 0 for number, result in enumerate(results)]
        return BodyMemory(counter.peak_bytes, places, tuple(sizes))


def _adam(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, _scalars: object, targets: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """Allocate what `adam` does, which looks at numbers that there are none of here: results without memory, and some rows."""
    new = tuple(torch.empty_like(x) if to is None else to for x, to in zip((p, m, v), targets, strict=True))
    if g.dim():
        torch.empty_like(g[: rows_of(g)])
    return new


def _empty(kind: TensorType) -> torch.Tensor:
    return torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype])


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  # the address of the storage: nothing public tells two apart


@dataclass(slots=True)
class _Storage:
    num_bytes: int
    watcher: Any


class _Counter(TorchDispatchMode):
    """Counts the bytes of storages that calls make, until nothing refers to them.

    Attributes:
        live: storages made and not freed, by address.
        peak_bytes: most bytes live at one time, what kernels need inside included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, _Storage] = {}
        self.now_bytes = self.peak_bytes = 0

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make a call and count what it made."""
        known = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _key(leaf) not in known:
                self._add(leaf)
        self.peak_bytes = max(self.peak_bytes, self.now_bytes + workspace_bytes(func, args, result))
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key in self.live:
            return
        num_bytes = storage.nbytes()
        self.now_bytes += num_bytes
        self.live[key] = _Storage(num_bytes, weakref.ref(storage, lambda _: self._drop(key)))

    def _drop(self, key: int) -> None:
        self.now_bytes -= self.live.pop(key).num_bytes
