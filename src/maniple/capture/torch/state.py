"""What a step is bound to: modules and optimizers, and a name and a slot for every tensor in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

from maniple.base.errors import CaptureError
from maniple.capture.torch.others import Place, is_state, tensors_of
from maniple.ir.program import InputKind


class Slot(Protocol):
    """A place in the user's objects that holds one state tensor."""

    @property
    def name(self) -> str:
        """Return the name, as in the program."""

    @property
    def kind(self) -> InputKind:
        """Return what the tensor is."""

    def get(self) -> Tensor | None:
        """Return the tensor there, None if the step has yet to create it."""

    def set(self, tensor: Tensor) -> None:
        """Put `tensor` there; the user's object refers to it from then on."""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSlot:
    """A parameter, or a tensor that nothing but the step's code holds; the object stays, its storage is exchanged."""

    name: str
    parameter: Tensor
    kind: InputKind = "parameter"

    def get(self) -> Tensor:
        """Return the parameter itself."""
        return self.parameter

    def set(self, tensor: Tensor) -> None:
        """Let the parameter hold the data of `tensor`."""
        self.parameter.data = tensor


@dataclass(frozen=True, slots=True, eq=False)
class BufferSlot:
    """A buffer, or a tensor that is a plain attribute, in every place that holds it.

    Attributes:
        places: dicts and their keys, or lists and indices.
    """

    name: str
    places: tuple[Place, ...]
    kind: InputKind = "buffer"

    def get(self) -> Tensor:
        """Return the buffer."""
        holder, key = self.places[0]
        found: Tensor = holder[key]
        return found

    def set(self, tensor: Tensor) -> None:
        """Replace the buffer everywhere."""
        for holder, key in self.places:
            holder[key] = tensor


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerSlot:
    """A tensor of an optimizer's state."""

    name: str
    optimizer: Optimizer
    parameter: Tensor
    key: str
    kind: InputKind = "optimizer"

    def get(self) -> Tensor | None:
        """Return the tensor, None before the first step."""
        found = self.optimizer.state[self.parameter].get(self.key) if self.parameter in self.optimizer.state else None
        return found if isinstance(found, Tensor) else None

    def set(self, tensor: Tensor) -> None:
        """Put the tensor under its parameter and key."""
        self.optimizer.state[self.parameter][self.key] = tensor


@dataclass
class Bound:
    """The objects a step works on.

    Attributes:
        modules: outermost modules with the prefix of their names.
        optimizers: likewise; the prefix of the only one is `optimizer`.
        others: everything else, by label.
        loose: names and places of tensors in the others.
        parameters: name to parameter; a shared one has its first name.
        buffers: name to slot; plain tensor attributes of modules are among them.
        scopes: module path by identity.
        tree: every module once, with its path; outer ones first.
    """

    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    optimizers: list[tuple[str, Optimizer]] = field(default_factory=list)
    others: list[tuple[str, object]] = field(default_factory=list)
    loose: list[tuple[str, Place]] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, BufferSlot] = field(default_factory=dict)
    scopes: dict[int, str] = field(default_factory=dict)
    tree: list[tuple[str, nn.Module]] = field(default_factory=list)

    def parameter_names(self) -> dict[int, str]:
        """Return the name of each parameter by identity."""
        return {id(parameter): name for name, parameter in self.parameters.items()}

    def all_modules(self) -> Sequence[tuple[str, nn.Module]]:
        """Return every module that there was when the objects were looked at, with its path."""
        return self.tree

    def optimizer_slots(self) -> Iterator[OptimizerSlot]:
        """Yield a slot for every state tensor that exists."""
        names = self.parameter_names()
        for prefix, optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield OptimizerSlot(state_name(prefix, key, names[id(parameter)]), optimizer, parameter, key)

    def slots(self) -> Iterator[Slot]:
        """Yield the slots of all state that exists: parameters, buffers, optimizer state."""
        for name, parameter in self.parameters.items():
            yield ParameterSlot(name, parameter)
        yield from self.buffers.values()
        yield from self.optimizer_slots()


def state_name(prefix: str, key: str, parameter: str) -> str:
    """Return the name of optimizer state.

    >>> state_name("optimizer", "exp_avg", "fc.weight")
    'optimizer.exp_avg.fc.weight'
    """
    return f"{prefix}.{key}.{parameter}"


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def find_bound(step_fn: Callable[..., object], bound: Sequence[object]) -> Bound:
    """Return the modules, optimizers and named tensors in a step's leading arguments.

    One module with tensors has no prefix: names are those of its own `named_parameters`. Several have the name of the step's argument.

    Raises:
        CaptureError: if two tensors would have one name.
    """
    found = Bound()
    for label, item in zip(_labels(step_fn, len(bound)), bound, strict=True):
        _collect(found, label, item)
    device = next((p.device for _, module in found.modules for p in module.parameters()), torch.device("cpu"))
    found.loose += [entry for label, item in found.others for entry in tensors_of(label, item, device)]
    if sum(_has_tensors(module) for _, module in found.modules) <= 1:
        found.modules = [("", module) for _, module in found.modules]
    seen: set[int] = set()
    found.tree = [entry for prefix, root in found.modules for entry in _walk(prefix, root, seen)]
    if len(found.optimizers) == 1:
        found.optimizers = [("optimizer", found.optimizers[0][1])]
    _name_tensors(found)
    return found


def _walk(path: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield `module` and all modules in it that are not among those `seen`, outer ones first, with their paths."""
    waiting = [(path, module)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        start = f"{path}." if path else ""
        waiting += [(start + key, child) for key, child in reversed(module._modules.items()) if child is not None]


def _has_tensors(root: nn.Module) -> bool:
    own = (held for _, module in _walk("", root, set()) for held in (module._parameters, module._buffers))
    return any(tensor is not None for held in own for tensor in held.values())


def _labels(step_fn: Callable[..., object], count: int) -> list[str]:
    try:
        names = [p.name for p in inspect.signature(step_fn).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    return [names[at] if at < len(names) else f"arg{at}" for at in range(count)]


def _collect(found: Bound, label: str, item: object) -> None:
    if isinstance(item, nn.Module):
        if all(item is not module for _, module in found.modules):
            found.modules.append((label, item))
    elif isinstance(item, Optimizer):
        if all(item is not optimizer for _, optimizer in found.optimizers):
            found.optimizers.append((label, item))
    elif isinstance(item, list | tuple):
        for at, part in enumerate(item):
            _collect(found, f"{label}.{at}", part)
            _collect_loose(found, f"{label}.{at}", (item, at))
    elif isinstance(item, Mapping):
        for key, part in item.items():
            _collect(found, f"{label}.{key}", part)
            _collect_loose(found, f"{label}.{key}", (item, key))
    elif not isinstance(item, Tensor):
        found.others.append((label, item))


def _collect_loose(found: Bound, label: str, place: Place) -> None:
    holder, key = place
    if isinstance(holder, list | dict) and is_state(holder[key]):
        found.loose.append((label, place))


def _name_tensors(found: Bound) -> None:
    names: dict[int, str] = {}
    places: dict[str, list[Place]] = {}
    for path, module in found.all_modules():
        found.scopes[id(module)] = path
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in names:
                names[id(parameter)] = _add_name(found, _join(path, key), places)
                found.parameters[names[id(parameter)]] = parameter
    for path, module in found.all_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
        for holder, tensors in ((module._buffers, module._buffers), (vars(module), plain)):
            for key, value in tensors.items():
                if value is None or names.get(id(value)) in found.parameters:
                    continue
                if id(value) not in names:
                    names[id(value)] = _add_name(found, _join(path, key), places)
                places.setdefault(names[id(value)], []).append((holder, key))
    for name, (where, at) in found.loose:
        value = where[at]
        if names.get(id(value)) not in found.parameters:
            if id(value) not in names:
                names[id(value)] = _add_name(found, name, places)
            places.setdefault(names[id(value)], []).append((where, at))
    found.buffers = {name: BufferSlot(name, tuple(held)) for name, held in places.items()}
    _name_loose_parameters(found)


def _add_name(found: Bound, name: str, places: Mapping[str, object]) -> str:
    if name in found.parameters or name in places:
        raise CaptureError(f"two tensors are called {name!r}", hint="give the modules different argument or attribute names")
    return name


def _name_loose_parameters(found: Bound) -> None:
    """Name parameters that only an optimizer holds."""
    known = found.parameter_names()
    for prefix, optimizer in found.optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for at, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    name = known[id(parameter)] = _add_name(found, f"{prefix}.params.{number}.{at}", found.buffers)
                    found.parameters[name] = parameter


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise unless a program can hold `tensor`.

    Raises:
        CaptureError: if it is sparse, quantised, complex or a tensor subclass.
    """
    is_plain = type(tensor) in (Tensor, nn.Parameter, FakeTensor) or type(tensor).__module__.startswith("torch.nn")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or not is_plain:
        raise CaptureError(
            f"{name!r} is a {type(tensor).__name__} of layout {tensor.layout} and dtype {tensor.dtype}",
            hint="use a dense real tensor",
        )
