"""Checks of numbers that are known only when the step runs: `assert`, and `if` of which one way can only raise.

A program raises nothing. While the step is traced each check passes, and what it asked becomes an output of the program; after a step in
which one fails, an error names it. What tells a check from a branch is the code around the question: every path from the jump that it
decides leads to a `raise`, and nothing of the user's that is running catches what is raised.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from maniple.base.location import Location
from maniple.capture.torch.locations import is_user_file, user_location
from maniple.capture.torch.patches import replaced

_GOES_ON: Final = frozenset({"RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE"})
_TRUTH: Final = FunctionalTensor.__bool__.__code__
_CATCHES: Final = frozenset({"CHECK_EXC_MATCH", "POP_EXCEPT", "CHECK_EG_MATCH"})


@dataclass
class Checks:
    """The checks of one trace.

    Attributes:
        outermost: code of the function below which nothing is the user's.
        passed: of each check, by the name of its output, whether it passes.
        locations: where they stand.
        num_suppressing: blocks of `contextlib.suppress` that are running.
    """

    outermost: CodeType
    passed: dict[str, Tensor] = field(default_factory=dict)
    locations: dict[str, Location] = field(default_factory=dict)
    num_suppressing: int = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Let checks pass, and note what they ask."""
        ask: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__

        def answer(question: torch.SymBool) -> bool:
            try:
                return ask(question)
            except GuardOnDataDependentSymNode:
                asked = sys._getframe(1)
                found = self._answer(question, asked.f_back if asked.f_code is _TRUTH else asked)
                if found is None:
                    raise
                return found

        def counted(function: Callable[..., Any], by: int) -> Callable[..., Any]:
            def run(manager: contextlib.suppress, *error: Any) -> Any:
                self.num_suppressing += by
                return function(manager, *error)

            return run

        with (
            replaced(torch.SymBool, "__bool__", answer),
            replaced(contextlib.suppress, "__enter__", counted(contextlib.suppress.__enter__, 1)),
            replaced(contextlib.suppress, "__exit__", counted(contextlib.suppress.__exit__, -1)),
        ):
            yield

    def _answer(self, question: torch.SymBool, frame: FrameType | None) -> bool | None:
        """Return the answer that does not raise, and note the check; None if the code around it is none."""
        assert frame is not None, "somebody asks"
        passes = _passing(frame.f_code, frame.f_lasti)
        if passes is None or self.num_suppressing or _is_caught(frame, self.outermost):
            return None
        with torch.no_grad():
            holds = torch.scalar_tensor(question, dtype=torch.bool)  # type: ignore[arg-type]  # takes symbols too
            name = f"check.{len(self.passed)}"
            self.passed[name] = holds if passes else holds.logical_not()
        self.locations[name] = user_location(frame)
        return passes


def failed(checks: Mapping[str, Location], outputs: Mapping[str, Tensor]) -> Location | None:
    """Return where the first check stands that failed in a step, given its outputs; None if all passed."""
    return next((where for name, where in checks.items() if not outputs[name]), None)


def _passing(code: CodeType, at: int) -> bool | None:
    """Return which truth of what the instruction at offset `at` asks avoids a certain `raise`; None if both go on, or it is no jump."""
    instructions = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
    places = {item.offset: number for number, item in enumerate(instructions)}
    if at not in places:  # amid a call
        return None
    here = places[at]
    while instructions[here].opname in ("TO_BOOL", "NOP", "EXTENDED_ARG"):
        here += 1
    jump = instructions[here]
    if "POP_JUMP" not in jump.opname or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = jump.opname.endswith("IF_TRUE")
    if _only_raises(instructions, places, here + 1):
        return jumps_if
    return not jumps_if if _only_raises(instructions, places, places[jump.argval]) else None


def _only_raises(instructions: list[dis.Instruction], places: Mapping[int, int], start: int) -> bool:
    """Return whether every path from an instruction on ends in a `raise`."""
    waiting, seen = [start], set()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        item = instructions[here]
        if item.opname in _GOES_ON:
            return False
        if item.opname in ("RAISE_VARARGS", "RERAISE"):
            continue
        if item.opcode in dis.hasjrel or item.opcode in dis.hasjabs:
            waiting.append(places[item.argval])
            if item.opname.startswith("JUMP"):
                continue
        waiting.append(here + 1)
    return True


def _is_caught(frame: FrameType | None, outermost: CodeType) -> bool:
    """Return whether an exception raised in `frame` would be caught by code of the user's on its way out."""
    while frame is not None and frame.f_code is not outermost:
        if is_user_file(frame.f_code.co_filename) and _catches(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


def _catches(code: CodeType, at: int) -> bool:
    """Return whether the instruction at offset `at` stands in a `try` that has an `except`; `with` and `finally` do not count."""
    instructions = list(dis.get_instructions(code))
    entries: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    for entry in entries:
        if entry.start <= at < entry.end and not entry.lasti:
            after = [item.opname for item in instructions if item.offset >= entry.target]
            end = next((number for number, name in enumerate(after) if name == "RERAISE"), len(after))
            if "WITH_EXCEPT_START" not in after[:end] and any(name in _CATCHES for name in after[:end]):
                return True
    return False
