"""Tracing without working out again what is known: an op on tensors of types that it was called with before gives results of known types.

PyTorch spends milliseconds on each op that it traces, most of them to find out which types the results have and whether the op is really
another. A model calls the same ops on the same types again and again, in every layer. Here the second call of an op that only reads
its operands writes the graph's node at once and makes results of the types that the first one had. Everything else goes
through PyTorch: ops that write into their operands, draw random numbers or give Python numbers, operands whose numbers are known, symbolic
numbers. The graph is the same with and without. Contract: bitwise.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import return_and_correct_aliasing

from maniple.capture.torch.patches import replaced

_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_IMPURE: Final = (
    torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view,
)  # fmt: skip

_KEYS: Final = torch._C._TorchDispatchModeKey
_INFRA: Final = (_KEYS.FUNCTIONAL, _KEYS.PROXY, _KEYS.FAKE)


@contextmanager
def modes_off() -> Iterator[None]:
    """Put aside the modes that record ops and that make fake tensors: what is done inside is no op of the step."""
    modes = [torch._C._unset_dispatch_mode(key) for key in _INFRA]
    try:
        yield
    finally:
        for mode in modes:
            if mode is not None:
                torch._C._set_dispatch_mode(mode)


class _UnknownError(Exception):
    """An operand is of a kind of which nothing is remembered."""


@dataclass(frozen=True, slots=True)
class _Made:
    """One result of an op.

    Attributes:
        value: what the node's `val` is; only its type matters.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: torch.device
    value: Any


@dataclass(frozen=True, slots=True)
class _Results:
    """What an op gives: one tensor, or a tuple or list (`kind`) of tensors and None."""

    kind: type | None
    items: tuple[_Made | None, ...]


@dataclass
class Memory:
    """What one trace has seen.

    Attributes:
        mode: of the fake tensors.
        forms: for each op whether it is remembered, and whether its results are views of its operands.
        known: results by op and types of operands.
        num_quick: calls that were answered from memory.
    """

    mode: FakeTensorMode
    forms: dict[Any, str] = field(default_factory=dict)
    known: dict[Hashable, _Results] = field(default_factory=dict)
    num_quick: int = 0

    def form(self, func: Any) -> str:
        """Return `pure` for an op that makes its results of what it reads, `view` for one that gives views, else nothing."""
        if func not in self.forms:
            self.forms[func] = _form(func)
        return self.forms[func]

    def recall(self, tracer: Any, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Hashable, Any]:
        """Return the key of a call and its results; None for a key that is of no use, NotImplemented for results that are not known.

        Args:
            tracer: torch's PythonKeyTracer, into whose graph the node is written.
            func: an op of form `pure` or `view`.
            args: fake tensors and plain values.
            kwargs: likewise.
        """
        key: list[Any] = [func, torch.get_default_dtype()]
        try:
            new_args = tuple(self.read(tracer, item, key) for item in args)
            new_kwargs = {name: self.read(tracer, item, key, name) for name, item in kwargs.items()}
            whole = tuple(key)
            found = self.known.get(whole)
        except (_UnknownError, TypeError):  # sizes that are symbolic have no hash
            return None, NotImplemented
        if found is None:
            return whole, NotImplemented
        self.num_quick += 1
        node = tracer.graph.create_node("call_function", func, new_args, new_kwargs, name="op")
        with modes_off():
            if found.kind is None:
                (only,) = found.items
                return whole, self.make(tracer, node, only)
            node.meta["val"] = found.kind(None if item is None else item.value for item in found.items)
            items = [self.part(tracer, node, at, item) for at, item in enumerate(found.items)]
            return whole, found.kind(items)

    def read(self, tracer: Any, item: Any, key: list[Any], name: str = "") -> Any:
        """Return an operand as the graph has it; append its type to `key`.

        Raises:
            _UnknownError: if it is neither a plain value nor a traced tensor whose numbers are unknown.
        """
        if isinstance(item, FakeTensor):
            slot = tracer.tensor_tracker.get(item)
            if slot is None or slot.constant is not None or item.constant is not None or item.fake_mode is not self.mode:
                raise _UnknownError
            key.extend((name, item.dtype, item.shape, item.stride(), item.storage_offset(), item.fake_device, item.requires_grad))
            return slot.proxy.node
        if type(item) in _PLAIN:
            key.extend((name, type(item), item))
            return item
        if type(item) in (list, tuple):
            key.extend((name, type(item), len(item)))
            return type(item)(self.read(tracer, part, key) for part in item)
        raise _UnknownError

    def part(self, tracer: Any, node: fx.Node, at: int, made: _Made | None) -> Tensor | None:
        """Return result number `at` of the op that `node` is."""
        if made is None:
            return None
        return self.make(tracer, tracer.graph.create_node("call_function", operator.getitem, (node, at), name="op"), made)

    def make(self, tracer: Any, node: fx.Node, made: _Made | None) -> Tensor:
        """Return a new fake tensor that `node` makes."""
        assert made is not None, "one result is a tensor"
        node.meta["val"] = made.value
        return self.new(tracer, node, made, None)

    def fresh(self, tracer: Any, node: fx.Node, like: Any, constant: Tensor | None) -> Any:  # FakeTensors
        """Return a new fake tensor of the type of `like` that `node` makes; `constant` is its number, if that is known."""
        with modes_off():
            return self.new(tracer, node, _made(like, node), constant)

    def new(self, tracer: Any, node: fx.Node, made: _Made, constant: Tensor | None) -> Tensor:
        """Return a new fake tensor that `node` makes; the modes are off."""
        with in_kernel_invocation_manager(self.mode):
            if made.offset:
                extent = made.offset + 1 + sum((n - 1) * step for n, step in zip(made.shape, made.stride, strict=True))
                empty = torch.empty((extent,), dtype=made.dtype, device="meta").as_strided(made.shape, made.stride, made.offset)
            else:
                empty = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
        result = FakeTensor(self.mode, empty, made.device)
        tracer.tensor_tracker[result] = proxy_tensor._ProxyTensor(fx.Proxy(node, tracer), constant)
        return result

    def learn(self, tracer: Any, key: Hashable, func: Any, result: object) -> None:
        """Remember what a call gave, if the graph has one node for it."""
        kind = type(result) if isinstance(result, list | tuple) else None
        items = tuple(result) if isinstance(result, list | tuple) else (result,)
        if kind not in (None, list, tuple) or not all(isinstance(item, FakeTensor) for item in items if item is not None or kind is None):
            return
        nodes = [None if item is None else self.node(tracer, item) for item in items]
        if None in [node for node, item in zip(nodes, items, strict=True) if item is not None]:
            return
        makers = {node if kind is None else node.args[0] for node in nodes if node is not None}
        if len(makers) == 1 and all(isinstance(maker, fx.Node) and maker.target is func for maker in makers):
            found = (None if node is None else _made(item, node) for item, node in zip(items, nodes, strict=True))
            self.known[key] = _Results(kind, tuple(found))

    @staticmethod
    def node(tracer: Any, item: Tensor) -> fx.Node | None:
        """Return the node that makes `item`; None if its number is known."""
        slot = tracer.tensor_tracker.get(item)
        if slot is None or slot.constant is not None:
            return None
        node: fx.Node = slot.proxy.node
        return node


def _made(item: Any, node: fx.Node) -> _Made:  # a FakeTensor
    return _Made(item.dtype, tuple(item.shape), item.stride(), item.storage_offset(), item.fake_device, node.meta.get("val"))


def _form(func: Any) -> str:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func in FunctionalTensor.metadata_fns:
        return ""
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd)
    schema = func._schema
    returned = [item.alias_info for item in schema.returns]
    if is_composite or schema.is_mutable or not returned or any(tag in func.tags for tag in _IMPURE) or "lift" in func.name():
        return ""
    if not any(returned):
        return "" if any(argument.alias_info for argument in schema.arguments) else "pure"
    return "view" if all(returned) and schema.arguments[0].alias_info else ""


class QuickFunctional(FunctionalTensorMode):
    """Torch's functionalisation, with a shorter way for ops that are remembered."""

    def __init__(self, memory: Memory, tracer: Any) -> None:
        """Trace into the graph of `tracer`, torch's PythonKeyTracer."""
        super().__init__()
        self.memory, self.tracer = memory, tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's protocol
        """Run `func` on functional tensors."""
        kwargs = kwargs or {}
        form = self.memory.form(func)
        if form == "pure":
            try:
                inner = [self.unwrapped(item) for item in args], {name: self.unwrapped(item) for name, item in kwargs.items()}
            except _UnknownError:
                return super().__torch_dispatch__(func, types, args, kwargs)
            _, found = self.memory.recall(self.tracer, func, *inner)
            if found is not NotImplemented:
                return self.wrapped(found)
        elif form == "view" and type(args[0]) is FunctionalTensor and not kwargs:
            return self.view(func, args)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def unwrapped(self, item: Any) -> Any:
        """Return the fake tensor that a functional one holds now, or a plain value."""
        if type(item) is FunctionalTensor:
            torch._functionalize_sync(item.elem)
            return torch._from_functional_tensor(item.elem)
        if isinstance(item, Tensor):
            raise _UnknownError
        return type(item)(map(self.unwrapped, item)) if type(item) in (list, tuple) else item

    def wrapped(self, found: Any) -> Any:
        """Return functional tensors that hold new fake ones."""
        with modes_off():
            if isinstance(found, list | tuple):
                return type(found)(None if item is None else FunctionalTensor(torch._to_functional_tensor(item), self) for item in found)
            return FunctionalTensor(torch._to_functional_tensor(found), self)

    def view(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Run an op that gives views through functionalisation, as torch does."""
        elements = (args[0].elem, *args[1:])
        functionalize = torch._C.DispatchKey.Functionalize
        include = torch._C._dispatch_tls_local_include_set() | torch._C.DispatchKeySet(functionalize)
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(functionalize) - FunctionalTensor._extra_dispatch_keys
        with torch._C._ForceDispatchKeyGuard(include, exclude):
            try:
                before = torch._functionalize_enable_reapply_views(True)  # type: ignore[attr-defined]  # noqa: FBT003  # torch's own
                made = func._op_dk(functionalize, *elements)
                several = isinstance(made, list | tuple)
                found: Any = type(made)(FunctionalTensor(item, self) for item in made) if several else FunctionalTensor(made, self)
            finally:
                torch._disable_functionalization()
                torch._functionalize_enable_reapply_views(before)  # type: ignore[attr-defined]
        return return_and_correct_aliasing(func, args, {}, found)


@contextmanager
def calls_remembered(memory: Memory) -> Iterator[None]:
    """Let tracing (`proxy_call`) answer from `memory` what it knows, and add to it."""
    slow = proxy_tensor.proxy_call

    def call(mode: ProxyTorchDispatchMode, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:  # noqa: FBT001  # torch's
        if not memory.form(func):
            return slow(mode, func, pre_dispatch, args, kwargs)
        key, found = memory.recall(mode.tracer, func, args, kwargs)
        if found is not NotImplemented:
            return found
        found = slow(mode, func, pre_dispatch, args, kwargs)
        if key is not None:
            memory.learn(mode.tracer, key, func, found)
        return found

    with replaced(proxy_tensor, "proxy_call", call):
        yield
