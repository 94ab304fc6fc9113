"""Traces an unmodified eager training step, under fake tensors, into one functional graph of ATen ops.

Layers, outermost first: float64 promotion (checks only), origins, functionalisation, recording (make_fx), fake tensors. Everything is
traced as on a CPU, so that the ops do not depend on the device; no user code runs on real data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from maniple.base.errors import CaptureError
from maniple.base.location import Location
from maniple.capture.torch.batch import BatchStructure, ResultStructure, result_structure
from maniple.capture.torch.branches import branches_merged, check_optimizers
from maniple.capture.torch.checks import Checks
from maniple.capture.torch.fake import FakeTensors
from maniple.capture.torch.fold import NotApartError, updates_folded
from maniple.capture.torch.foreach import lists_unrolled
from maniple.capture.torch.hyperparameters import Number, NumberGuard, Symbols, find_numbers
from maniple.capture.torch.locations import OriginMode, StepPosition
from maniple.capture.torch.numbers import numbers_computed
from maniple.capture.torch.patches import (
    backward_watched,
    checkpoint_traced_through,
    compiled_traced_through,
    numbers_refused,
    schedulers_refused,
    texts_marked,
)
from maniple.capture.torch.promote import PromoteFloat64
from maniple.capture.torch.quick import Memory, QuickFunctional, calls_remembered
from maniple.capture.torch.scaler import Predicated
from maniple.capture.torch.state import Bound, OptimizerSlot, Slot, check_tensor, state_name
from maniple.capture.torch.swap import Mode, swapped_modules, swapped_optimizers, unchanged
from maniple.ir.program import InputKind

_ZEROS = ("aten.zeros_like.default", "aten.zero.default", "aten.zeros.default", "aten.new_zeros.default")
_MOVES = tuple(f"aten.{name}." for name in ("detach", "alias", "clone", "t", "view", "transpose", "permute", "expand"))
_CLEAR = "call optimizer.zero_grad() inside the step"


@dataclass(frozen=True, slots=True, eq=False)
class TraceInput:
    """One placeholder of the graph: what it stands for, and the fake tensor or symbolic float."""

    name: str
    kind: InputKind | None
    value: Tensor | torch.SymFloat


@dataclass(eq=False)
class Trace:
    """A traced step.

    Attributes:
        module: functional ATen ops; each node's `meta` has its fake value (`val`) and its `Origin`.
        inputs: what the graph's placeholders are, in order; kind None: a gradient from before the step.
        outputs: names of the graph's outputs, in order.
        gradients: names of the parameters whose gradients follow the outputs.
        created: slots of optimizer state that the step creates.
        result: how what the step returns is built of outputs.
        numbers: hyperparameters among the inputs.
        guards: conditions on them under which the graph is right.
        conditional: state that only exists if a boolean output says so, to that output's name.
        modes: train or eval mode of modules that the step puts in another one.
        checks: boolean outputs that must be true, and where the step asks for it.
    """

    module: fx.GraphModule
    inputs: list[TraceInput]
    outputs: list[str]
    gradients: list[str]
    created: list[Slot]
    result: ResultStructure
    numbers: tuple[Number, ...]
    guards: tuple[NumberGuard, ...]
    conditional: dict[str, str]
    modes: tuple[Mode, ...]
    checks: dict[str, Location]


@dataclass
class _Tracer:
    """State of one trace; `run` is what make_fx calls."""

    step_fn: Callable[..., object]
    bound: Bound
    user_args: Sequence[object]
    batch: BatchStructure
    batch_leaves: Sequence[object]
    promote: bool
    fold: bool
    memory: Memory
    inputs: list[TraceInput] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    created: list[Slot] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    leftovers: dict[str, Tensor] = field(default_factory=dict)
    uncleared: list[str] = field(default_factory=list)
    traced: dict[str, Tensor] = field(default_factory=dict)
    result: ResultStructure | None = None
    python_state: dict[tuple[int, str, str], object] = field(default_factory=dict)
    conditional: dict[str, str] = field(default_factory=dict)
    modes: list[Mode] = field(default_factory=list)
    position: StepPosition = field(init=False)
    predicated: Predicated = field(init=False)
    checks: Checks = field(init=False)

    def __post_init__(self) -> None:
        self.predicated = Predicated(self.bound, self.traced)
        self.position = StepPosition(self.bound.scopes)
        self.checks = Checks(_Tracer.run.__code__)

    def collect(self, mode: FakeTensorMode, symbols: Symbols) -> None:
        """Make the placeholders: state, numbers, batch, and the gradients from before the step."""
        for slot in self.bound.slots():
            tensor = slot.get()
            assert tensor is not None, "slots() yields what exists"
            self.inputs.append(TraceInput(slot.name, slot.kind, _fake(mode, slot.name, tensor)))
        for number in find_numbers(self.bound):
            self.numbers.append(number)
            self.inputs.append(TraceInput(number.name, "hyperparameter", symbols.make(number)))
        for name, leaf in zip(self.batch.names, self.batch_leaves, strict=True):
            if isinstance(leaf, Tensor):
                self.inputs.append(TraceInput(name, "batch", _fake(mode, name, leaf)))
        for name, parameter in self.bound.parameters.items():
            if parameter.requires_grad:
                self.inputs.append(TraceInput(f"gradient of {name}", None, _fake(mode, name, parameter)))

    def run(self, *values: Any) -> list[Any]:  # tensors and symbolic floats
        """Run the step on traced values and return outputs, then gradients."""
        with ExitStack() as stack:
            stack.enter_context(calls_remembered(self.memory))
            functional = stack.enter_context(QuickFunctional(self.memory, self._tracer()))
            stack.enter_context(OriginMode(self._tracer().graph, self.position))
            if self.promote:
                stack.enter_context(PromoteFloat64())
            self._wrap(values)
            symbols = dict(zip(self.numbers, (v for v in values if isinstance(v, torch.SymFloat)), strict=True))
            stack.enter_context(self._replaced(symbols, functional))
            result = self.step_fn(*self.user_args[: len(self.user_args) - self.batch.spec.num_children], *self._args())
            outputs = self._collect_outputs(result)
            self._check_gradients()
        return [*outputs, *self.gradients.values()]

    @contextmanager
    def _replaced(self, symbols: Mapping[Number, torch.SymFloat], functional: QuickFunctional) -> Iterator[None]:
        with (
            unchanged(self.bound, self.modes),
            swapped_modules(self.bound, self.traced),
            swapped_optimizers(self.bound, self.traced, symbols),
            self.predicated.taken(),
            updates_folded(self.bound, functional) if self.fold else nullcontext(),
            schedulers_refused(),
            checkpoint_traced_through(),
            numbers_refused(),
            lists_unrolled(),
            compiled_traced_through(),
            numbers_computed(),
            self.checks.taken(),
            branches_merged(self.bound),
            texts_marked(),
            backward_watched(self.position, self._before_backward, self._after_backward),
            self.position.hooked(),
            torch.enable_grad(),
        ):
            yield

    @staticmethod
    def _tracer() -> Any:  # torch's PythonKeyTracer
        proxy_mode = get_proxy_mode()
        assert proxy_mode is not None, "runs under make_fx"
        return proxy_mode.tracer

    def _wrap(self, values: Sequence[Any]) -> None:
        for entry, value in zip(self.inputs, values, strict=True):
            if isinstance(value, torch.SymFloat):
                continue
            traced = FunctionalTensor.to_functional(value)
            if entry.kind == "parameter":
                traced._is_param = True
                _make_leaf(traced, self.bound.parameters[entry.name])
            self.traced[entry.name] = traced
        for name, parameter in self.bound.parameters.items():
            if parameter.requires_grad:
                self.leftovers[name] = self.traced[f"gradient of {name}"]
                self.traced[name].grad = self.leftovers[name]

    def _args(self) -> tuple[Any, ...]:
        leaves = [self.traced.get(name, leaf) for name, leaf in zip(self.batch.names, self.batch_leaves, strict=True)]
        args: tuple[Any, ...] = pytree.tree_unflatten(leaves, self.batch.spec)
        return args

    def _before_backward(self) -> None:
        """Find gradients from before the step that are still there; the first backward pass would add to them."""
        for name, old in self.leftovers.items():
            if self.traced[name].grad is old and not torch._functionalize_has_data_mutation(old.elem):  # type: ignore[attr-defined]
                self.uncleared.append(name)
                self.traced[name].grad = None
                if self.bound.parameters[name].grad is not None:
                    raise CaptureError(f"`{name}.grad` holds a gradient from before the step, to which the step would add", hint=_CLEAR)
        self.leftovers = {}

    def _after_backward(self) -> None:
        for name in self.bound.parameters:
            grad = self.traced[name].grad
            if grad is not None:
                self.gradients[name] = _unwrap_tensor(grad)

    def _check_gradients(self) -> None:
        """Raise if the step leaves gradients to which its next run would add, or parameters frozen that were not, or the reverse."""
        for name, parameter in self.bound.parameters.items():
            if self.traced[name].requires_grad != parameter.requires_grad:
                what = f"the step changes `{name}.requires_grad`"
                raise CaptureError(what, hint="freeze parameters outside of the step; what it changes it must change back")
        for name in self.uncleared:
            grad = self.traced[name].grad
            if grad is not None and not _is_zeros(_unwrap_tensor(grad)):
                raise CaptureError(f"the step leaves a gradient in `{name}.grad`, to which its next run would add", hint=_CLEAR)

    def _collect_outputs(self, result: object) -> list[Any]:
        self.result, computed = result_structure(result)
        outputs = [*self._state_outputs(), *self._optimizer_outputs(), *computed]
        outputs += [(name, self.predicated.conditions[name]) for name in dict.fromkeys(self.conditional.values())]
        outputs += self.checks.passed.items()
        self.outputs = [name for name, _ in outputs]
        return [_unwrap(value) for _, value in outputs]

    def _state_outputs(self) -> Iterator[tuple[str, object]]:
        for name in self.bound.parameters:
            yield name, self.traced[name]
        for name, slot in self.bound.buffers.items():
            now = slot.get()
            was = self.traced[name]
            if not isinstance(now, Tensor) or now.shape != was.shape or now.dtype != was.dtype:
                raise CaptureError(f"the step changes `{name}` to something of another type", hint="keep its shape and dtype")
            yield name, now

    def _optimizer_outputs(self) -> Iterator[tuple[str, object]]:
        names = {id(self.traced[name]): name for name in self.bound.parameters}
        known = {entry.name for entry in self.inputs}
        for prefix, optimizer in self.bound.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    owner = names[id(parameter)]
                    name = state_name(prefix, key, owner)
                    if isinstance(value, Tensor):
                        yield name, value
                        if name not in known:
                            self.created.append(OptimizerSlot(name, optimizer, self.bound.parameters[owner], key))
                            condition = self.predicated.created.get((id(optimizer), id(parameter), key))
                            if condition is not None:
                                self.conditional[name] = condition
                    elif self._python_state(optimizer, owner, key) != value:
                        what = f"optimizer state `{name}` is a Python value that changes"
                        raise CaptureError(what, hint="use an optimizer whose state is tensors")

    def _python_state(self, optimizer: object, owner: str, key: str) -> object:
        """Return the Python value that the user's optimizer has; its state was exchanged for the trace."""
        return self.python_state.get((id(optimizer), owner, key))

    def remember_python_state(self) -> None:
        """Note optimizer state that is not tensors."""
        names = self.bound.parameter_names()
        self.python_state = {
            (id(optimizer), names[id(parameter)], key): value
            for _, optimizer in self.bound.optimizers
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
            if not isinstance(value, Tensor)
        }


def _make_leaf(traced: Tensor, parameter: Tensor) -> None:
    """Let `traced` need a gradient if `parameter` does, and have its hooks."""
    traced.requires_grad_(parameter.requires_grad)
    for hook in (parameter._backward_hooks or {}).values():
        traced.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        traced.register_post_accumulate_grad_hook(hook)


def _fake(mode: FakeTensorMode, name: str, tensor: Tensor) -> Tensor:
    """Return a fake CPU tensor like `tensor`."""
    check_tensor(name, tensor)
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _unwrap(value: object) -> object:
    """Return the fake tensor that tracing knows, after all its mutations."""
    if not isinstance(value, FunctionalTensor):
        return value
    return _unwrap_tensor(value)


def _unwrap_tensor(value: Tensor) -> Tensor:
    assert isinstance(value, FunctionalTensor), "what the traced step computes"
    torch._sync(value)  # type: ignore[attr-defined]  # not in torch's stubs
    return torch._from_functional_tensor(value.elem)


def _is_zeros(value: Tensor) -> bool:
    proxy_mode = get_proxy_mode()
    assert proxy_mode is not None, "runs under make_fx"
    slot: Any = get_proxy_slot(value, proxy_mode.tracer, None)
    if slot is None:
        return False
    node = getattr(slot, "proxy", slot).node
    while str(node.target).startswith(_MOVES):
        node = node.args[0]
    return str(node.target) in _ZEROS or (str(node.target).startswith("aten.full") and node.args[1] == 0)


def trace_step(
    step_fn: Callable[..., object],
    bound: Bound,
    user_args: Sequence[object],
    batch: BatchStructure,
    batch_leaves: Sequence[object],
    *,
    promote: bool,
    fold: bool = True,
) -> Trace:
    """Return the graph of `step_fn(*user_args)`, whose last arguments are the batch.

    With `fold` optimizers are traced once for parameters that are alike.

    Raises:
        CaptureError: if the step does what a program cannot do.
        Exception: what torch or the user's code raises.
    """
    check_optimizers(bound)
    try:
        return _trace_step(step_fn, bound, user_args, batch, batch_leaves, promote=promote, fold=fold)
    except NotApartError:
        return _trace_step(step_fn, bound, user_args, batch, batch_leaves, promote=promote, fold=False)


def _trace_step(
    step_fn: Callable[..., object],
    bound: Bound,
    user_args: Sequence[object],
    batch: BatchStructure,
    batch_leaves: Sequence[object],
    *,
    promote: bool,
    fold: bool,
) -> Trace:
    env = ShapeEnv(allow_dynamic_output_shape_ops=False)
    mode = FakeTensors(shape_env=env, allow_non_fake_inputs=True)
    symbols = Symbols(env)
    tracer = _Tracer(step_fn, bound, user_args, batch, batch_leaves, promote, fold, Memory(mode))
    tracer.collect(mode, symbols)
    tracer.remember_python_state()
    with mode, _use_lazy_graph_module(should_use=True):  # nobody runs the graph: no code for it
        module = make_fx(tracer.run)(*(entry.value for entry in tracer.inputs))
    assert tracer.result is not None, "run sets it"
    return Trace(
        module, tracer.inputs, tracer.outputs, list(tracer.gradients), tracer.created, tracer.result,
        tuple(tracer.numbers), symbols.guards(), tracer.conditional, tuple(tracer.modes),
        tracer.checks.locations,
    )  # fmt: skip
