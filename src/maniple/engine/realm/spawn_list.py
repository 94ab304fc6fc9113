"""A step as a list of Realm spawns and merges, prepared once and issued in one call of the helper in spawn_list.c."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_int, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass

from maniple.base.errors import EngineError
from maniple.engine.realm.binding import FIRST_TASK, Handle, Runtime, failed

_Body = ctypes.CFUNCTYPE(c_int, c_int64)


@dataclass(frozen=True, slots=True)
class Spawn:
    """One point task.

    Attributes:
        device: logical device, which picks the processor.
        after: numbers of earlier spawns that end before this one begins.
    """

    device: int
    after: tuple[int, ...] = ()


class _Instruction(Structure):
    _fields_ = [
        ("processor", Handle), ("body", c_int64), ("first", c_int64), ("count", c_int32), ("priority", c_int32),
    ]  # fmt: skip


class _Step(Structure):
    _fields_ = [
        ("runtime", c_void_p), ("spawn", c_void_p), ("merge", c_void_p), ("body", _Body), ("instructions", POINTER(_Instruction)),
        ("operands", POINTER(c_int64)), ("events", POINTER(Handle)), ("scratch", POINTER(Handle)), ("count", c_int64), ("done", Handle),
        ("task", c_uint32), ("stopped", c_int),
    ]  # fmt: skip


class SpawnList:
    """What a step issues: per point task one spawn, and one merge where it waits for several and no other task waits for the same.

    Attributes:
        runtime: what it was prepared for.
        num_instructions: spawns and merges of a step.
        ended: whether every body of the last run has run.
        issued_ns: when the last step had been issued, by `time.perf_counter_ns`.
    """

    def __init__(
        self, runtime: Runtime, helper: ctypes.CDLL, num_processors: int, spawns: Sequence[Spawn], body: Callable[[int], bool]
    ) -> None:
        """Prepare a list.

        Args:
            runtime: has at least `num_processors` processors.
            helper: the library of spawn_list.c.
            num_processors: devices take turns on so many.
            spawns: in an order in which each comes after those it waits for.
            body: called on a processor's thread with the number of a spawn; says whether all went well. It must not raise.
        """
        self.runtime = runtime
        self.ended = False
        self.issued_ns = 0
        self._issue = helper.maniple_issue
        self._issue.argtypes, self._issue.restype = [c_void_p, POINTER(c_int64)], c_int
        self._at: list[int] = []  # instruction of each spawn
        listed, operands, widest = self._instructions(spawns, runtime.processors[:num_processors])
        self.num_instructions = len(listed)
        self._list = (_Instruction * len(listed))(*listed)
        self._operands = (c_int64 * max(len(operands), 1))(*operands)
        self._events, self._scratch = (Handle * len(listed))(), (Handle * widest)()
        self._step = _Step(
            runtime.pointer, runtime.address("realm_processor_spawn"), runtime.address("realm_event_merge"), _Body(body), self._list,
            self._operands, self._events, self._scratch, len(listed), 0, FIRST_TASK, 0,
        )  # fmt: skip

    def _instructions(self, spawns: Sequence[Spawn], processors: Sequence[int]) -> tuple[list[_Instruction], list[int], int]:
        """Return the instructions, what they wait for, and the most that one waits for; the last one waits for all."""
        listed: list[_Instruction] = []
        operands: list[int] = []
        merges: dict[tuple[int, ...], int] = {}

        def add(processor: int, body: int, after: Sequence[int]) -> int:
            listed.append(_Instruction(processor, body, len(operands), len(after), 0))
            operands.extend(after)
            return len(listed) - 1

        awaited = {number for spawn in spawns for number in spawn.after}
        for number, spawn in enumerate(spawns):
            after = tuple(self._at[other] for other in spawn.after)
            if len(after) > 1:
                if after not in merges:
                    merges[after] = add(0, 0, after)
                after = (merges[after],)
            self._at.append(add(processors[spawn.device % len(processors)], number, after))
        last = [self._at[number] for number in range(len(spawns)) if number not in awaited]
        add(0, 0, last)
        return listed, operands, max(instruction.count for instruction in listed) or 1

    def prioritize(self, priorities: Sequence[int]) -> None:
        """Give each spawn a priority: of tasks that may run on a processor, the one with the highest runs next."""
        for at, priority in zip(self._at, priorities, strict=True):
            self._list[at].priority = priority

    def run(self, may_stop: Callable[[], bool] = lambda: True) -> bool:
        """Issue the list and wait for its end.

        If anything is raised meanwhile, such as KeyboardInterrupt, no further body begins; it passes on once those that run have ended.

        Args:
            may_stop: asked in that case; if it says no, all bodies run to the end before it passes on.

        Returns:
            Whether every body said that all went well.

        Raises:
            EngineError: if Realm refuses.
        """
        self.ended = False
        self._step.stopped, self._step.done = 0, 0
        try:
            self._issue_all()
            self.issued_ns = time.perf_counter_ns()
            self.runtime.wait(self._step.done)
            self.ended = not self._step.stopped
            self._step.done = 0
        except BaseException:
            if may_stop():
                self._step.stopped = 1
            self.settle()
            raise
        return self.ended

    @property
    def settled(self) -> bool:
        """Whether nothing of the last run runs any more."""
        return not self._step.done

    def _issue_all(self) -> None:
        failed_at = c_int64()
        status = self._issue(byref(self._step), byref(failed_at))
        if status:
            raise failed(f"spawning task {failed_at.value} of {self.num_instructions}", status)

    def settle(self) -> None:
        """Wait for the bodies that run: they use what the caller is about to free.

        What signal handlers raise meanwhile is passed on afterwards. If even that is interrupted, call it again before the next step;
        after a step that came to its end there is nothing to wait for.
        """
        raised: BaseException | None = None
        while self._step.done:
            try:
                self.runtime.wait(self._step.done)
                self.ended = not self._step.stopped
                self._step.done = 0
            except EngineError:  # given up: nothing of it runs
                self._step.done = 0
            except BaseException as error:  # noqa: BLE001  # kept until nothing runs
                raised = error
        if raised is not None:
            raise raised
