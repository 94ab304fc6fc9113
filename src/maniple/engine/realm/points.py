"""What a processor runs for one point task: reads, body, writes, over the slots of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from maniple.base.errors import EngineError, ManipleError
from maniple.engine.bodies import PointBody, body_failed, wrong_shape
from maniple.engine.realm.placement import Combine, Gather, Read, Source, Write
from maniple.taskgraph.graph import Task

Slots = list[torch.Tensor | None]
Take = Callable[[Slots], torch.Tensor]
"""Makes an operand from what is in the slots."""

DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType({
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
})  # fmt: skip
"""PyTorch's name of every dtype of `TensorType`."""

_COMBINERS: Final[Mapping[str, Callable[..., torch.Tensor]]] = MappingProxyType(
    {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
)


class PointRun:
    """A point task, ready to run any number of times.

    Attributes:
        task: the task.
        slots: those that it reads.
        frees: of those, the ones that nothing else reads.
        shares: of those, the ones that others read too, each with its count of reads.
    """

    __slots__ = (
        "_body", "_names", "_num_results", "_offsets", "_puts", "_simple", "_takes", "_values", "frees", "shares", "slots", "task",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        values: Slots,
        names: Sequence[str],
        reads: Sequence[Read | Combine],
        writes: Sequence[Write | None],
        body: PointBody[torch.Tensor] | None,
    ) -> None:
        """Prepare a point task.

        Args:
            task: the task.
            values: what is in the slots; changes as the step runs.
            names: buffer of each slot.
            reads: in the order of the body's operands.
            writes: in the order of its results.
            body: None for a collective, whose result is its operand.
        """
        self.task, self._values, self._names = task, values, names
        self._simple = tuple(read.slot for read in reads if isinstance(read, Source) and read.index is None)
        self._takes = None if len(self._simple) == len(reads) else [taker(read) for read in reads]
        self._puts = [
            (number, write, write.shape, write.slot, write.copies) for number, write in enumerate(writes) if write is not None
        ]  # fmt: skip
        self._num_results = len(writes)
        self._body: Callable[..., tuple[torch.Tensor, ...]] = body.body if body else _identity
        self._offsets = body.offsets if body else ()
        self.slots = tuple(dict.fromkeys(slot for read in reads for slot in slots_of(read)))
        self.frees: tuple[int, ...] = ()
        self.shares: tuple[tuple[int, ReadCount], ...] = ()

    def run(self) -> None:
        """Run once. This and `_work` are what a task costs beside its body: written for speed.

        Raises:
            EngineError: naming the task and the user's line, if the body fails or something that it reads was not written.
        """
        values = self._values
        try:
            self._work(values)
        except ManipleError:
            raise
        except Exception as error:
            missing = [slot for slot in self.slots if values[slot] is None]
            if missing:
                what = f"buffer {self._names[missing[0]]} is read before it is written"
                raise EngineError(what, where=self.task.location) from error
            raise body_failed(self.task, error) from error
        for slot in self.frees:
            values[slot] = None
        for slot, count in self.shares:
            if count.is_last():
                values[slot] = None

    def _work(self, values: Slots) -> None:
        if self._takes is None:
            operands: list[Any] = [values[slot] for slot in self._simple]
        else:
            operands = [take(values) for take in self._takes]
        if self._offsets:
            operands += self._offsets
        results = self._body(*operands)
        if len(results) != self._num_results:
            what = f"task {self.task.name} made {len(results)} tensors; expected {self._num_results}"
            raise EngineError(what, where=self.task.location)
        for number, write, shape, slot, copies in self._puts:
            result = results[number]
            if result.shape != shape:
                raise wrong_shape(self.task, write.buffer, tuple(result.shape), shape)
            if slot >= 0:
                values[slot] = result
            for index, target in copies:
                values[target].copy_(result[index])  # type: ignore[union-attr]  # an allocation: always there


def _identity(operand: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (operand,)


def slots_of(read: Read | Combine) -> Iterator[int]:
    """Yield the slots that a read looks at."""
    if isinstance(read, Source):
        yield read.slot
    elif isinstance(read, Gather):
        yield from (source.slot for source, _ in read.copies)
    else:
        for partial in read.partials:
            yield from slots_of(partial)


def taker(read: Read | Combine) -> Take:
    """Return the function that makes what a read says."""
    if isinstance(read, Source):
        return _source_taker(read)
    if isinstance(read, Gather):
        return _gather_taker(read)
    takes = [taker(partial) for partial in read.partials]
    combiner = _COMBINERS[read.kind]

    def combine(values: Slots) -> torch.Tensor:
        result = combiner(takes[0](values), takes[1](values))  # a new tensor, for the others to be added to
        for take in takes[2:]:
            combiner(result, take(values), out=result)
        return result

    return combine


def _source_taker(read: Source) -> Take:
    slot, index = read.slot, read.index
    if index is None:
        return lambda values: values[slot]  # type: ignore[return-value]  # None is noticed by whoever uses it
    return lambda values: values[slot][index]  # type: ignore[index]


def _gather_taker(read: Gather) -> Take:
    copies = [(_source_taker(source), index) for source, index in read.copies]
    shape, dtype = read.shape, DTYPES[read.dtype]

    def gather(values: Slots) -> torch.Tensor:
        result = torch.empty(shape, dtype=dtype)
        for take, index in copies:
            result[index].copy_(take(values))
        return result

    return gather


class ReadCount:
    """Counts the reads of a slot in a step; threads may do so at once."""

    __slots__ = ("_numbers", "_reads")

    def __init__(self, reads: int) -> None:
        """Expect so many reads in every step."""
        self._reads = reads
        self.reset()

    def reset(self) -> None:
        """Begin a step anew."""
        self._numbers = itertools.count(1)

    def is_last(self) -> bool:
        """Count a read; return whether it is the last one of the step."""
        return next(self._numbers) % self._reads == 0  # `next` is one step of the interpreter: no two threads get one number
