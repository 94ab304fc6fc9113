"""Where ops come from: the user's line, the module path and the phase of the step."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from maniple.base.location import Location
from maniple.capture.torch.outside import check_outside
from maniple.ir.program import Phase

ORIGIN = "maniple_origin"
"""Key of an fx node's `meta` under which its `Origin` stands."""

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_STDLIB = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one op comes from.

    Attributes:
        is_loose: whether the phase is a guess: after a backward pass, outside of module and optimizer.
    """

    phase: Phase
    location: Location
    is_loose: bool = False


def is_user_file(name: str) -> bool:
    """Return whether a source file is neither torch's, this package's, nor the standard library's."""
    if name.startswith((_TORCH, _HERE, "<")):
        return False
    return not name.startswith(_STDLIB) or "site-packages" in name or "dist-packages" in name


def user_location(frame: FrameType | None, scope: str = "") -> Location:
    """Return the innermost line of user code at or above `frame`."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno, scope)
        frame = frame.f_back
    return Location(scope=scope)


def error_location(traceback: TracebackType | None) -> Location:
    """Return the innermost line of user code that an exception passed."""
    found = Location()
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_user_file(name):
            found = Location(name, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


@dataclass
class StepPosition:
    """Which part of the step is running; hooks keep it up to date.

    Attributes:
        scopes: module paths by identity.
        stack: paths of the modules that are running, outermost first.
        num_backward: number of backward passes running.
        num_optimizer: number of optimizer steps running.
        had_backward: whether any backward pass has begun.
    """

    scopes: Mapping[int, str]
    stack: list[str] = field(default_factory=list)
    num_backward: int = 0
    num_optimizer: int = 0
    had_backward: bool = False

    def phase(self) -> tuple[Phase, bool]:
        """Return the phase, and whether it is a guess."""
        if self.num_backward or torch._C._current_graph_task_id() != -1:
            return "backward", False
        if self.num_optimizer:
            return "update", False
        return ("update", True) if self.had_backward and not self.stack else ("forward", False)

    def _outside(self, closure: Any) -> Any:
        """Return a closure given to an optimizer so that it does not run as part of the update."""
        if not callable(closure):
            return closure

        def run(*args: Any, **kwargs: Any) -> Any:  # passed on
            inside, self.num_optimizer = self.num_optimizer, 0
            try:
                return closure(*args, **kwargs)
            finally:
                self.num_optimizer = inside

        return run

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow modules and optimizers through torch's global hooks.

        While a module runs, `torch.compiler.is_compiling()` is true: libraries then leave out checks of the numbers in tensors. It is not
        while an optimizer runs, as torch's own would compute their corrections in the precision of their state, not in float64.
        """
        was_compiling = torch.compiler._is_compiling_flag

        def enter_module(module: torch.nn.Module, _args: object) -> None:
            outer = self.stack[-1] if self.stack else ""
            self.stack.append(self.scopes.get(id(module), outer))
            torch.compiler._is_compiling_flag = True

        def leave_module(_module: torch.nn.Module, _args: object, _result: object) -> None:
            self.stack.pop()
            torch.compiler._is_compiling_flag = was_compiling or bool(self.stack)

        def enter_optimizer(_optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            self.num_optimizer += 1
            wrapped = {key: self._outside(value) if key == "closure" else value for key, value in kwargs.items()}
            return tuple(self._outside(value) for value in args), wrapped

        def leave_optimizer(*_: object) -> None:
            self.num_optimizer -= 1

        handles = [
            register_module_forward_pre_hook(enter_module),
            register_module_forward_hook(leave_module, always_call=True),
            register_optimizer_step_pre_hook(enter_optimizer),
            register_optimizer_step_post_hook(leave_optimizer),
        ]
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = was_compiling
            for handle in handles:
                handle.remove()


class OriginMode(TorchDispatchMode):
    """Writes the origin of each op into the nodes that tracing it adds to the graph.

    An op of the backward pass has the location of the forward op with its autograd sequence number.
    """

    def __init__(self, graph: fx.Graph, position: StepPosition) -> None:
        """Watch `graph`, which is being traced."""
        super().__init__()
        self.graph, self.position = graph, position
        self.by_sequence: dict[int, Location] = {}
        self.last = Location()

    def origin(self) -> Origin:
        """Return the origin of an op that runs now."""
        phase, is_loose = self.position.phase()
        if phase == "backward":
            node = torch._C._current_autograd_node()
            self.last = self.last if node is None else self.by_sequence.get(node._sequence_nr(), self.last)
            return Origin(phase, self.last)
        scope = self.position.stack[-1] if self.position.stack else ""
        here = user_location(_caller(), scope)
        if phase == "forward":
            self.by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, here)
            self.last = here
        return Origin(phase, here, is_loose)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,  # torch's protocol
    ) -> Any:
        """Run `func` and mark its nodes; scalar arithmetic before it belongs to it."""
        if func is torch.ops.aten._linalg_check_errors.default:
            return None  # functions of matrices check their operands themselves when the step runs
        with torch._C.DisableTorchFunction():  # what is called from here on is no call of the user's
            if func is torch.ops.prim.device.default:
                return func(*args, **(kwargs or {}))
            origin = self.origin()
            check_outside(func, args, kwargs or {})
            result = func(*args, **(kwargs or {}))
        for node in reversed(self.graph.nodes):
            if ORIGIN in node.meta or node.op == "placeholder":
                break
            node.meta[ORIGIN] = origin
        return result


def _caller() -> FrameType | None:
    return sys._getframe(2)
