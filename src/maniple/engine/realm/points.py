"""What a processor runs for one point task: reads, body, writes, over the slots of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import torch

from maniple.base.errors import EngineError, ManipleError
from maniple.engine.bodies import PointBody, body_failed, wrong_shape
from maniple.engine.protocol import Destinations
from maniple.engine.realm.placement import Combine, Gather, Read, Source, Write
from maniple.engine.tensors import COMBINERS, DTYPES
from maniple.ops.localize import Destination
from maniple.taskgraph.graph import Task

Slots = list[torch.Tensor | None]
Take = Callable[[Slots], torch.Tensor]
"""Makes an operand from what is in the slots."""

Compute = Callable[[Slots], Sequence[torch.Tensor]]
"""Makes the results of a task from what is in the slots."""


class State:
    """Whether the step that runs has begun to write to the caller's state."""

    __slots__ = ("changing",)

    def __init__(self) -> None:
        """Nothing is written yet."""
        self.changing = False


class PointRun:
    """A point task, ready to run any number of times.

    Attributes:
        task: the task.
        slots: those that it reads.
        frees: of those, the ones that nothing else reads.
        shares: of those, the ones that others read too, each with its count of reads.
    """

    __slots__ = (
        "_clones", "_compute", "_names", "_num_results", "_puts", "_state", "_updates", "_values", "frees", "shares", "slots", "task",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        values: Slots,
        names: Sequence[str],
        reads: Sequence[Read | Combine],
        writes: Sequence[Write | None],
        body: PointBody[torch.Tensor] | None,
        updated: AbstractSet[int] = frozenset(),
        state: State | None = None,
    ) -> None:
        """Prepare a point task.

        Args:
            task: the task.
            values: what is in the slots; changes as the step runs.
            names: buffer of each slot.
            reads: in the order of the body's operands.
            writes: in the order of its results.
            body: made for the destinations that `destinations` says; None for a collective, whose result is its operand.
            updated: slots of the state that the step updates.
            state: told when this task is about to do so.
        """
        self.task, self._values, self._names = task, values, names
        self._compute = _compute(reads, writes, body) if body else _collect(reads[0], writes[0])
        self._puts = [
            (number, write, write.shape, write.slot, [(index, _source_taker(source)) for index, source in write.copies])
            for number, write in enumerate(writes)
            if write is not None and write.target is None
        ]
        self._num_results, put = len(writes), {number for number, *_ in self._puts}
        at_risk = {number for number, read in enumerate(reads) if not updated.isdisjoint(slots_of(read))}
        views = body.body.views if body and at_risk else ()
        self._clones = [number for number, roots in enumerate(views) if roots & at_risk and number in put]
        self._state = state or State()
        self._updates = any(write.is_update for write in writes if write is not None)
        self.slots = tuple(dict.fromkeys(slot for read in reads for slot in slots_of(read)))
        self.frees: tuple[int, ...] = ()
        self.shares: tuple[tuple[int, ReadCount], ...] = ()

    def run(self) -> None:
        """Run once. This and what it calls are what a task costs beside its body: written for speed.

        Raises:
            EngineError: naming the task and the user's line, if the body fails or something that it reads was not written.
        """
        values = self._values
        try:
            if self._updates:
                self._state.changing = True
            self._put(values, self._compute(values))
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

    def _put(self, values: Slots, results: Sequence[torch.Tensor]) -> None:
        if len(results) != self._num_results:
            what = f"task {self.task.name} made {len(results)} tensors; expected {self._num_results}"
            raise EngineError(what, where=self.task.location)
        if self._clones:
            results = [result.clone() if number in self._clones else result for number, result in enumerate(results)]
        for number, write, shape, slot, copies in self._puts:
            result = results[number]
            if result.shape != shape:
                raise wrong_shape(self.task, write.buffer, tuple(result.shape), shape)
            if slot >= 0:
                values[slot] = result
            for index, take in copies:
                take(values).copy_(result[index])


def destinations(reads: Sequence[Read | Combine], writes: Sequence[Write | None]) -> Destinations:
    """Return the results that a body can write where they belong.

    An operand and a result that are the same state lie in the same part of it: lowering sees to that.
    """
    found = []
    for number, write in enumerate(writes):
        if write is not None and write.target is not None:
            same = [at for at, read in enumerate(reads) if isinstance(read, Source) and read.slot == write.target.slot]
            found.append(Destination(number, tuple(same) if write.is_update else ()))
    return tuple(found)


def _targets(writes: Sequence[Write | None]) -> list[Source]:
    return [write.target for write in writes if write is not None and write.target is not None]


def _compute(reads: Sequence[Read | Combine], writes: Sequence[Write | None], body: PointBody[torch.Tensor]) -> Compute:
    """Return the function that runs a body on what is in the slots."""
    function, offsets = body.body, body.offsets
    sources = [*reads, *_targets(writes)]
    if not offsets and all(isinstance(source, Source) and source.index is None for source in sources):
        simple = tuple(source.slot for source in sources if isinstance(source, Source))
        return lambda values: function(*[values[slot] for slot in simple])
    takes, targets = [taker(read) for read in reads], [taker(target) for target in _targets(writes)]

    def compute(values: Slots) -> Sequence[torch.Tensor]:
        return function(*[take(values) for take in takes], *offsets, *[take(values) for take in targets])

    return compute


def _collect(read: Read | Combine, write: Write | None) -> Compute:
    """Return the function that makes the result of a collective, where it belongs if that takes it whole."""
    take = taker(read)
    if write is None or write.target is None:
        return lambda values: (take(values),)
    target = _source_taker(write.target)
    if not isinstance(read, Combine):
        return lambda values: (target(values).copy_(take(values)),)
    combiner, (first, second, *rest) = COMBINERS[read.kind], [taker(partial) for partial in read.partials]

    def combine(values: Slots) -> Sequence[torch.Tensor]:
        result = target(values)
        combiner(first(values), second(values), out=result)
        for other in rest:
            combiner(result, other(values), out=result)
        return (result,)

    return combine


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
    combiner = COMBINERS[read.kind]

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
