"""A captured step: the program, and how its inputs and outputs belong to the user's objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from maniple.base.errors import CaptureError
from maniple.base.location import Location
from maniple.capture.torch.apart import Apart, unchanged_inputs
from maniple.capture.torch.batch import BatchStructure, ResultStructure, batch_structure
from maniple.capture.torch.errors import explained
from maniple.capture.torch.guards import Signature, describe_change, signature
from maniple.capture.torch.hyperparameters import Number, NumberGuard
from maniple.capture.torch.importer import import_trace
from maniple.capture.torch.patches import collection_paused
from maniple.capture.torch.state import Slot, find_bound
from maniple.capture.torch.swap import Mode
from maniple.capture.torch.trace import trace_step
from maniple.ir.program import Program


@dataclass(frozen=True, eq=False)
class Captured:
    """A training step as a program.

    Attributes:
        program: the whole step. Its outputs are every state tensor under its input's name (the input's own value where the step
            does not change it), state that the step creates (an output without an input), and the leaves of the result.
        slots: for each input and output that is state, where it stands in the user's objects; the slot of state that the step
            creates gives None until it is set.
        created: names of the state that the step creates.
        numbers: hyperparameter inputs, read anew for each step.
        batch: which tensor of the step's arguments each batch input is.
        result: how the value that the step returns is built.
        guards: conditions on hyperparameters under which the program is right.
        signature: everything else under which it is right.
        conditional: of state that the step creates only if its update takes place, the name of the boolean output that says so.
        modes: train or eval mode of modules that the step puts in another one.
        checks: boolean outputs that must be true, and where the step asks for it; see `checks`.
    """

    program: Program
    slots: Mapping[str, Slot]
    created: tuple[str, ...]
    numbers: tuple[Number, ...]
    batch: BatchStructure
    result: ResultStructure
    guards: tuple[NumberGuard, ...]
    signature: Signature
    conditional: Mapping[str, str]
    modes: tuple[Mode, ...]
    checks: Mapping[str, Location]

    def left_out(self, outputs: Mapping[str, Tensor]) -> list[str]:
        """Return the names of state that a step did not create, as its update did not take place."""
        return [name for name, condition in self.conditional.items() if not outputs[condition]]

    @cached_property
    def unchanged(self) -> frozenset[str]:
        """Names of the state that the step leaves as it is."""
        return unchanged_inputs(self.program)

    @cached_property
    def apart(self) -> Apart:
        """What checks that the state that the step changes lies apart."""
        return Apart(self.program)

    def hyperparameters(self) -> dict[str, float]:
        """Return the numbers as they are now, by input name."""
        return {number.name: number.get() for number in self.numbers}

    def note_step(self) -> None:
        """Put modules in the mode that the step leaves them in, and tell learning rate schedulers that the optimizers have stepped.

        They warn if they step first.
        """
        for mode in self.modes:
            mode.set()
        for number in self.numbers:
            number.optimizer._opt_called = True  # type: ignore[attr-defined]  # what LRScheduler looks for

    def broken_guard(self) -> str:
        """Return the condition that today's hyperparameters break, in words; empty if there is none."""
        values = self.hyperparameters() if self.guards else {}
        return next((guard.text for guard in self.guards if not guard.holds(values)), "")

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors of all state inputs, by name."""
        found = {name: slot.get() for name, slot in self.slots.items() if name not in self.created}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def capture(step_fn: Callable[..., object], bound: Sequence[object], args: Sequence[object], *, promote_float64: bool = False) -> Captured:
    """Return the training step `step_fn(*bound, *args)` as a program, without running it.

    The step is traced under fake tensors: nothing is computed, and parameters, buffers, gradients, optimizer state, random state
    and Python attributes are afterwards as they were, after errors too. If the optimizer has no state yet, the program makes it.

    Args:
        step_fn: forward, loss, backward, `optimizer.step()` and `optimizer.zero_grad()`; it must return the loss or more.
        bound: its leading arguments: modules, optimizers, lists and dicts of these, and anything else.
        args: an example batch: nested containers of tensors and Python values.
        promote_float64: whether casts to lower float dtypes inside of the step become float64 (see `PromoteFloat64`).

    Raises:
        CaptureError: if the step cannot be a program; it says where and what to do.
    """
    before = signature(step_fn, bound, args)
    found = find_bound(step_fn, bound)
    structure, leaves = batch_structure(args)
    with collection_paused():
        try:
            trace = trace_step(step_fn, found, (*bound, *args), structure, leaves, promote=promote_float64)
        except Exception as error:
            told = explained(error)
            if told is error:
                raise
            raise told from error
        program, constants = import_trace(trace)
    slots: dict[str, Slot] = {slot.name: slot for slot in (*found.slots(), *constants, *trace.created)}
    _check_names(program)
    changed = describe_change(before, signature(step_fn, bound, args))
    if changed:
        raise CaptureError(f"the step changes what it depends on: {changed}", hint="keep counters and schedules outside of the step")
    return Captured(
        program, slots, tuple(slot.name for slot in trace.created), trace.numbers, structure, trace.result, trace.guards, before,
        trace.conditional, trace.modes, trace.checks,
    )  # fmt: skip


def _check_names(program: Program) -> None:
    for what, names in (("input", [i.name for i in program.inputs]), ("output", [o.name for o in program.outputs])):
        double = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if double:
            raise CaptureError(f"the program has two {what}s called {double[0]!r}", hint="rename the module or argument")
