"""Traces an optimizer's update once for parameters that are alike, and copies the ops for the others.

The optimizers of `torch.optim` update each parameter by itself. Parameters of one group whose types, gradients' types and state agree are
updated by the same ops, so that one of them, the representative, is traced, and what the trace recorded is written into the graph again
for each of the others, with its parameter, gradient and state in place of the representative's. What a graph without folding would
hold is in the graph, in another order. Contract: bitwise.

Only those classes themselves take part: others, subclasses too, may look at a parameter's place in its group, or combine parameters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_slot
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from maniple.capture.torch.locations import ORIGIN
from maniple.capture.torch.quick import QuickFunctional, modes_off
from maniple.capture.torch.state import Bound

_TOGETHER: Final = (torch.optim.LBFGS,)
"""Optimizers that combine parameters."""


class NotApartError(Exception):
    """The traced update of a parameter depends on others: the step is to be traced without folding."""


@dataclass(slots=True)
class _Member:
    """One parameter with a gradient.

    Attributes:
        tensors: the parameter, its gradient and the tensors of its state before the update, by role.
        nodes: the graph's nodes that hold them.
        known: the number in those of one element whose number tracing knows.
    """

    parameter: Tensor
    tensors: dict[str, Tensor]
    nodes: dict[str, fx.Node]
    known: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class _Update:
    """One call of an optimizer's `step`.

    Attributes:
        groups: parameter lists that were exchanged for shorter ones.
        members: by representative, which is the first of its list.
        start: the last node before the update.
        known: parameters that had state before the update.
    """

    groups: list[tuple[dict[str, Any], list[Tensor]]] = field(default_factory=list)
    members: list[list[_Member]] = field(default_factory=list)
    start: fx.Node | None = None
    known: list[Tensor] = field(default_factory=list)


@contextmanager
def updates_folded(bound: Bound, functional: QuickFunctional) -> Iterator[None]:
    """Let the optimizers of `bound` be traced for one of several parameters that are alike.

    Hooks that users put on an optimizer see it whole: this one begins after their pre-hooks and ends before their post-hooks.

    Args:
        bound: what the step works on; its optimizers hold traced tensors.
        functional: the mode that functionalises the step.

    Raises:
        NotApartError: if what one representative becomes depends on another.
    """
    handles = []
    try:
        for optimizer in (optimizer for _, optimizer in bound.optimizers if is_apart(optimizer)):
            folder = _Folder(functional)
            handles.append(optimizer.register_step_pre_hook(folder.before))
            post = optimizer.register_step_post_hook(folder.after)
            hooks: Any = optimizer._optimizer_step_post_hooks  # an OrderedDict
            hooks.move_to_end(post.id, last=False)
            handles.append(post)
        yield
    finally:
        for handle in handles:
            handle.remove()


def is_apart(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is known to update each parameter by itself."""
    kind = type(optimizer)
    is_torch = kind.__module__.startswith("torch.optim.") and getattr(torch.optim, kind.__name__, None) is kind
    own = {key for key, value in vars(optimizer).items() if callable(value)} - {"step"}  # schedulers wrap `step` in a counter
    return is_torch and kind not in _TOGETHER and not own.intersection(dir(kind))


class _Folder:
    """Folds the calls of one optimizer's `step`."""

    def __init__(self, functional: QuickFunctional) -> None:
        self.functional, self.tracer = functional, functional.tracer
        self.update = _Update()

    # -- before ---------------------------------------------------------------------------------------------------------------------

    def before(self, optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Leave only representatives in the parameter groups; a closure needs them all."""
        self.update = _Update()
        has_closure = any(item is not None for item in (*args[1:], *kwargs.values()))
        if has_closure or any(group.get("differentiable") for group in optimizer.param_groups):
            return
        for number, group in enumerate(optimizer.param_groups):
            classes: dict[Hashable, list[_Member]] = {}
            for parameter in group["params"]:
                member = self.member(optimizer, parameter)
                if member is not None:
                    classes.setdefault(self.key(number, optimizer, member), []).append(member)
            several = [members for members in classes.values() if len(members) > 1]
            left_out = {id(member.parameter) for members in several for member in members[1:]}
            if left_out:
                self.update.members += several
                self.update.groups.append((group, group["params"]))
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in left_out]
        self.update.start, self.update.known = self.last_node(), list(optimizer.state)

    def last_node(self) -> fx.Node:
        last: fx.Node = self.tracer.graph._root.prev  # public only as the slow `nodes`
        return last

    def member(self, optimizer: Optimizer, parameter: Tensor) -> _Member | None:
        """Return what is updated with a parameter; None if it must be traced by itself."""
        if isinstance(parameter.grad, FunctionalTensor) and not parameter.grad.is_base_tensor():
            parameter.grad = _whole(parameter.grad)
        tensors = self.tensors(optimizer, parameter)
        held = {role: self.held(tensor) for role, tensor in tensors.items()}
        if "gradient" not in tensors or None in held.values():
            return None
        constants = {role: slot.constant for role, slot in held.items() if slot.constant is not None}
        with _disable_current_modes() if constants else nullcontext():
            known = tuple((role, constant.item()) for role, constant in constants.items())
        return _Member(parameter, tensors, {role: slot.proxy.node for role, slot in held.items()}, known)

    @staticmethod
    def tensors(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
        """Return a parameter, its gradient, and the tensors of its state, by role."""
        found = {"parameter": parameter, **({} if parameter.grad is None else {"gradient": parameter.grad})}
        state = optimizer.state.get(parameter, {})
        return found | {f"state {key}": value for key, value in state.items() if isinstance(value, Tensor)}

    def held(self, tensor: Tensor) -> Any:  # torch's _ProxyTensor
        """Return what tracing notes of what a traced tensor holds now: the node, and its number if that is known; None if nothing."""
        if not isinstance(tensor, FunctionalTensor):
            return None
        torch._sync(tensor)  # type: ignore[attr-defined]  # not in torch's stubs
        return get_proxy_slot(torch._from_functional_tensor(tensor.elem), self.tracer, None)

    @staticmethod
    def key(group: int, optimizer: Optimizer, member: _Member) -> Hashable:
        """Return what members must agree in."""
        state = optimizer.state.get(member.parameter)
        plain = None if state is None else tuple((k, None if isinstance(v, Tensor) else (type(v), repr(v))) for k, v in state.items())
        kinds = tuple((role, x.dtype, x.shape, x.stride(), x.requires_grad) for role, x in member.tensors.items())
        nodes = list(member.nodes.values())
        return group, plain, kinds, member.known, tuple(map(nodes.index, nodes))

    # -- after ----------------------------------------------------------------------------------------------------------------------

    def after(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """Copy what was recorded for the representatives, and give the optimizer all of its parameters back."""
        update, self.update = self.update, _Update()
        for group, parameters in update.groups:
            group["params"] = parameters
        if not update.members or update.start is None:
            return
        made = {node: at for at, node in enumerate(_nodes_after(update.start))}
        leaves = {node for members in update.members for node in members[0].nodes.values()}
        for members in update.members:
            self.copy(optimizer, members, made, leaves)
        _in_order(optimizer, update.known)

    def copy(self, optimizer: Optimizer, members: Sequence[_Member], made: Mapping[fx.Node, int], leaves: set[fx.Node]) -> None:
        first = members[0]
        new = self.tensors(optimizer, first.parameter)
        _check_apart(new)
        ends = {role: self.end(tensor) for role, tensor in new.items()}
        path = _made_of(ends.values(), made, set(first.nodes.values()), leaves)
        for member in members[1:]:
            copies = dict(zip(first.nodes.values(), member.nodes.values(), strict=True))
            for node in path:
                copies[node] = self.copied(node, copies)
            for role, tensor in new.items():
                end = ends[role]
                if role in first.nodes and first.tensors[role] is tensor:
                    if end is not first.nodes[role]:
                        self.write(member.tensors[role], tensor, copies[end])
                elif role.startswith("state "):
                    value = self.functional.wrapped(self.fresh(tensor, copies.get(end, end)))
                    optimizer.state[member.parameter][role.removeprefix("state ")] = value
                else:
                    raise NotApartError(f"the optimizer replaces a {role}")
            self.copy_plain(optimizer, first.parameter, member.parameter)

    def end(self, tensor: Tensor) -> fx.Node:
        slot = self.held(tensor)
        if slot is None:
            raise NotApartError("the optimizer keeps a tensor that the step did not make")
        node: fx.Node = slot.proxy.node
        return node

    def copied(self, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """Return a copy of `node` at the end of the graph that reads copies of what it reads."""
        made: fx.Node = self.tracer.graph.node_copy(node, lambda read: copies.get(read, read))
        made.meta = {key: node.meta[key] for key in ("val", ORIGIN) if key in node.meta}
        return made

    def fresh(self, like: Tensor, node: fx.Node) -> Tensor:
        """Return a new fake tensor that `node` makes, of the type of a traced tensor."""
        inner: Any = torch._from_functional_tensor(like.elem)  # type: ignore[attr-defined]  # a FunctionalTensor
        made: Any = self.functional.memory.fresh(self.tracer, node, inner, self.held(like).constant)
        made.constant = inner.constant
        result: Tensor = made
        return result

    def write(self, tensor: Tensor, like: Tensor, node: fx.Node) -> None:
        """Let a traced tensor, and whatever is a view of it, hold what `node` makes."""
        if not isinstance(tensor, FunctionalTensor) or not tensor.is_base_tensor():
            raise NotApartError("the optimizer writes into a view")
        made = self.fresh(like, node)
        with modes_off():
            tensor.replace_(made)
            tensor.commit_update()
            tensor.sync()

    @staticmethod
    def copy_plain(optimizer: Optimizer, first: Tensor, other: Tensor) -> None:
        """Give `other` the state that is not tensors, and the order of entries."""
        if first not in optimizer.state:
            return
        old, entries = optimizer.state[first], optimizer.state[other]
        found = {key: entries[key] if isinstance(value, Tensor) else value for key, value in old.items()}
        entries.clear()
        entries.update(found)


def _whole(view: Any) -> Tensor:  # a FunctionalTensor
    """Return a traced tensor that holds what `view` does, and is no view: one that was written to is made anew by each op that reads it."""
    torch._sync(view)  # type: ignore[attr-defined]  # not in torch's stubs
    return FunctionalTensor.to_functional(torch._from_functional_tensor(view.elem))


def _nodes_after(start: fx.Node) -> Iterator[fx.Node]:
    node = start.next
    while node.op != "root":
        yield node
        node = node.next


def _check_apart(tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors of one parameter have memory of their own."""
    storages = [tensor.untyped_storage()._cdata for tensor in tensors.values()]
    if len(set(storages)) < len(storages):
        raise NotApartError("an optimizer's tensors of one parameter share memory")


def _made_of(ends: Iterable[fx.Node], made: Mapping[fx.Node, int], own: set[fx.Node], leaves: set[fx.Node]) -> list[fx.Node]:
    """Return those of the nodes `made`, each with its place in the graph, that the ends depend on, in the graph's order.

    Raises:
        NotApartError: if other `leaves` than its `own` are among what they depend on, or other tensors that are no numbers.
    """
    found: set[fx.Node] = set()
    queue = list(ends)
    while queue:
        node = queue.pop()
        value = node.meta.get("val")
        is_large = isinstance(value, Tensor) and value.numel() > 1
        if node not in own and (node in leaves or (is_large and node not in made)):
            raise NotApartError(f"an optimizer's update combines {node} with other parameters")
        if node in made and node not in found:
            found.add(node)
            queue += node.all_input_nodes
    return sorted(found, key=made.__getitem__)


def _in_order(optimizer: Optimizer, known: Sequence[Tensor]) -> None:
    """Let new state stand behind what was there, in the order of the parameters, as it would without folding."""
    state = dict(optimizer.state)
    parameters = [*known, *(parameter for group in optimizer.param_groups for parameter in group["params"])]
    optimizer.state.clear()
    optimizer.state.update({parameter: state.pop(parameter) for parameter in parameters if parameter in state})
    optimizer.state.update(state)
