"""Branches of torch's optimizers and averaged models on numbers in tensors: all ways are traced, and `where` picks the result.

RAdam corrects its variance once its step count is large enough, ASGD averages from some step on. The functions that update parameters
get lists with one entry per parameter, and are called here for one parameter after another: so few branches meet that all their
outcomes can be traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.optim.swa_utils import AveragedModel

from maniple.base.errors import CaptureError
from maniple.capture.torch.patches import replaced
from maniple.capture.torch.state import Bound

MAX_OUTCOMES: Final = 16
"""Ways through one parameter's update that are traced at the most."""

_REFUSED: Final = {
    torch.optim.LBFGS: (
        "runs its closure as often as its line search asks, which is known only when the step runs",
        "use an optimizer that computes the gradient once: Adam, SGD, Muon",
    ),
    torch.optim.SparseAdam: ("takes sparse gradients", "use Adam, and embeddings with sparse=False"),
}


@dataclass
class Decisions:
    """Answers to the questions of one way through a function.

    Attributes:
        given: answers to the first ones; the others are answered True.
        asked: the questions, in order.
    """

    given: Sequence[bool]
    asked: list[torch.SymBool] = field(default_factory=list)

    def answer(self, question: torch.SymBool) -> bool:
        """Return what to take for an answer, and note the question."""
        self.asked.append(question)
        at = len(self.asked) - 1
        return self.given[at] if at < len(self.given) else True


@contextmanager
def _answering(decisions: Decisions) -> Iterator[None]:
    """Answer questions about numbers that are known only when the step runs."""

    def truth(tensor: Tensor) -> bool:
        return bool(tensor.item())

    ask: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__

    def answer(question: torch.SymBool) -> bool:
        try:
            return ask(question)
        except GuardOnDataDependentSymNode:
            return decisions.answer(question)

    with replaced(torch.SymBool, "__bool__", answer), replaced(Tensor, "__bool__", truth):
        yield


def _every_way(run: Callable[[], object], tensors: Sequence[Tensor]) -> bool:
    """Let `tensors` hold what `run` makes of them, whichever way it goes; return whether there are several ways.

    Raises:
        CaptureError: if there are too many ways.
    """
    before = [tensor.clone() for tensor in tensors]
    num_ways = 0

    def explore(given: Sequence[bool]) -> list[Tensor] | None:
        nonlocal num_ways
        num_ways += 1
        if num_ways > MAX_OUTCOMES:
            raise CaptureError(f"an optimizer branches in more than {MAX_OUTCOMES} ways on numbers in tensors", hint="use torch.where")
        if num_ways > 1:
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
        decisions = Decisions(given)
        with _answering(decisions):
            run()
        if num_ways == 1 and not decisions.asked:
            return None  # as is
        made = [tensor.clone() for tensor in tensors]
        taken = [*given, *[True] * (len(decisions.asked) - len(given))]
        for at in reversed(range(len(given), len(taken))):
            other = explore([*taken[:at], False])
            assert other is not None, "only the first way can have no questions"
            holds = torch.scalar_tensor(decisions.asked[at], dtype=torch.bool)  # type: ignore[arg-type]  # takes symbols too
            made = [torch.where(holds, one, two) for one, two in zip(made, other, strict=True)]
        return made

    made = explore(())
    for tensor, value in zip(tensors, made or (), strict=made is not None):
        tensor.copy_(value)
    return made is not None


def _one_by_one(function: Callable[..., None]) -> Callable[..., None]:
    def run(params: list[Tensor], *lists: Any, **options: Any) -> None:
        with torch.no_grad():
            for at in range(len(params)):
                args = [params, *lists]
                own = [[item[at]] if isinstance(item, list) and len(item) == len(params) else item for item in args]
                pairs = [(item, part) for item, part in zip(args, own, strict=True) if item is not part]
                tensors = [part[0] for _, part in pairs if isinstance(part[0], Tensor)]
                branches = _every_way(partial(function, *own, **options), tensors)
                for item, part in pairs:  # SGD puts its first momentum there
                    if branches and item[at] is not part[0]:
                        raise CaptureError("an optimizer makes its state in one of the ways of a branch", hint="make it in every way")
                    item[at] = part[0]

    return run


def _averaging(update: Callable[..., None]) -> Callable[..., None]:
    """Return an update of averaged weights that takes both ways: to copy the first weights, and to average later ones."""

    def run(averaged: AveragedModel, model: torch.nn.Module) -> None:
        with torch.no_grad():
            _every_way(partial(update, averaged, model), [*averaged.parameters(), *averaged.buffers()])

    return run


def check_optimizers(bound: Bound) -> None:
    """Refuse optimizers of which no step is a program.

    Raises:
        CaptureError: for LBFGS and SparseAdam.
    """
    for _, optimizer in bound.optimizers:
        for kind, (why, hint) in _REFUSED.items():
            if isinstance(optimizer, kind):
                raise CaptureError(f"{type(optimizer).__name__} {why}", hint=hint)


@contextmanager
def branches_merged(bound: Bound) -> Iterator[None]:
    """Let the update functions of torch's optimizers, and of averaged models, take all ways of their branches."""
    modules = {kind.__module__ for _, optimizer in bound.optimizers for kind in type(optimizer).__mro__}
    with ExitStack() as stack:
        for module in (sys.modules[name] for name in sorted(modules) if name.startswith("torch.optim.")):
            entries: Mapping[str, Any] = dict(vars(module))
            for name, function in entries.items():
                if name.startswith("_single_tensor_") and function.__module__ == module.__name__:
                    stack.enter_context(replaced(module, name, _one_by_one(function)))
        stack.enter_context(replaced(AveragedModel, "update_parameters", _averaging(AveragedModel.update_parameters)))
        yield
