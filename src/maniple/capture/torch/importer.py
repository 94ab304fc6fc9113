"""From the traced graph of ATen ops to a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from maniple.base.errors import CaptureError, ManipleError
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.capture.torch.decompose import Decompositions
from maniple.capture.torch.emit import DTYPES, Complex, Emitter, Scalar, type_of, type_shape
from maniple.capture.torch.locations import ORIGIN, Origin
from maniple.capture.torch.state import ParameterSlot, Slot
from maniple.capture.torch.table import ATEN, COMPLEX, SCALARS, is_complex
from maniple.capture.torch.trace import Trace
from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.ops.builder import Builder
from maniple.ops.catalog import CATALOG

_LIFTS = ("aten.lift_fresh.default", "aten.lift_fresh_copy.default")
_ZEROS = ("aten.zero.default", "aten.zeros_like.default")
"""Ops that read only the shape of their operand."""

_UNMAPPED = "write it with other ops, or add a row to maniple/capture/torch/table"


def import_trace(trace: Trace) -> tuple[Program, list[Slot]]:
    """Return the program of a traced step, and slots for tensors that the step's code alone holds.

    Raises:
        CaptureError: if an op has no mapping, or the step reads a gradient from before it.
    """
    importer = _Importer(trace)
    return importer.program(), importer.constants


class _Importer:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.inputs: list[Input] = []
        self.seed: Value | None = None
        self.seed_name = ""
        self.constants: list[Slot] = []
        self.builder = Builder(CATALOG)
        self.emitter = Emitter(self.builder, self._seed)
        self.env: dict[fx.Node, Any] = {}
        self.origins = dict(_origins(trace.module.graph))
        self.module = trace.module
        self.decompositions = Decompositions()

    def _seed(self) -> Value:
        if self.seed is None:
            self.seed_name = self._free("seed", [entry.name for entry in self.trace.inputs])
            self.seed = Value(self._free("seed", [item.value.name for item in self.inputs]), TensorType("i64"))
        return self.seed

    def program(self) -> Program:
        """Return the program; ops that reach no output are left out."""
        nodes = list(self.trace.module.graph.nodes)
        needed = _needed(nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node, entry in zip(placeholders, self.trace.inputs, strict=True):
            if entry.kind is None:
                if node in needed:
                    self._refuse_old_gradient(node, entry.name)
                continue
            self._add_input(node, entry.name, entry.kind, entry.value)
        for node in nodes:
            if node in needed and node.op in ("call_function", "get_attr"):
                self._import(node)
        (result,) = (node for node in nodes if node.op == "output")
        values = [self._output(item) for item in result.args[0]]
        outputs = [Output(value, name) for name, value in zip(self.trace.outputs, values, strict=False)]
        outputs += [Output(self._input(slot.name), slot.name) for slot in self.constants]
        gradients = tuple(zip(self.trace.gradients, values[len(self.trace.outputs) :], strict=True))
        if self.seed is not None:
            self.inputs.append(Input(self.seed, "rng", self.seed_name))
        ops = _live(self.builder.ops, [item.value for item in outputs] + [value for _, value in gradients])
        return Program(tuple(self.inputs), ops, tuple(outputs), gradients)

    def _input(self, name: str) -> Value:
        return next(item.value for item in self.inputs if item.name == name)

    def _refuse_old_gradient(self, node: fx.Node, name: str) -> None:
        where = next((self.origins[user].location for user in node.users if user in self.origins), None)
        raise CaptureError(f"the step reads the {name} from before it", where=where, hint="call optimizer.zero_grad() inside the step")

    @staticmethod
    def _free(name: str, taken: Sequence[str]) -> str:
        """Return `name`, or one like it that nothing has."""
        while name in taken:
            name += "_"
        return name

    def _add_input(self, node: fx.Node, name: str, kind: Any, value: Tensor | torch.SymFloat) -> None:  # InputKind
        taken = [item.value.name for item in self.inputs]
        plain = re.sub(r"[^\w.:/$-]", "_", name)
        plain = f"{kind}.{plain}" if plain in taken or plain.isdigit() else plain
        made = Value(self._free(plain, taken), TensorType("f64") if isinstance(value, torch.SymFloat) else type_of(value))
        self.inputs.append(Input(made, kind, name))
        self.env[node] = Scalar(made) if isinstance(value, torch.SymFloat) else made

    def _import(self, node: fx.Node) -> None:
        origin = self.origins[node]
        self.builder.phase, self.builder.location = origin.phase, origin.location
        if node.op == "get_attr":
            self.env[node] = self._constant(node)
            return
        args = fx.node.map_arg(node.args, self._read)
        kwargs = fx.node.map_arg(node.kwargs, self._read)
        name = _name(node)
        try:
            self.emitter.outs = types = _types(node)
            if isinstance(node.target, type):  # a named tuple of results
                result = tuple(args[0]) if isinstance(args[0], list | tuple) else tuple(args)
            elif name in SCALARS and not (name != "getitem" and is_complex(args)):
                result = SCALARS[name](self.emitter, *args)
            elif _makes_complex(node) or is_complex(args):
                result = self._complex(node, name)(self.emitter, *args, **kwargs)
            elif name in ATEN:
                result = ATEN[name](self.emitter, *args, **kwargs)
            else:
                result = self._decomposed(node, name)
        except ManipleError as error:
            if isinstance(error, CaptureError) and error.where is not None:
                raise
            raise CaptureError(f"{name}: {error.what}", where=origin.location, hint=error.hint) from error
        except (TypeError, NotImplementedError) as error:
            raise CaptureError(f"{name}: called in a form that has no mapping ({error})", where=origin.location) from error
        if not isinstance(node.target, type):
            self._check(node, name, result, types)
        self.env[node] = result

    def _complex(self, node: fx.Node, name: str) -> Callable[..., Any]:
        """Return the row of an op on complex tensors."""
        unknown = [item.dtype for item in _values(node) if isinstance(item, Tensor) and item.is_complex() and item.dtype not in _REAL]
        if unknown:
            raise CaptureError(f"a program cannot hold dtype {unknown[0]}", where=self.origins[node].location, hint="use complex64")
        if name not in COMPLEX:
            what = f"the op {name} has no mapping for complex numbers"
            raise CaptureError(what, where=self.origins[node].location, hint="write it with real and imaginary parts (torch.view_as_real)")
        return COMPLEX[name]

    def _decomposed(self, node: fx.Node, name: str) -> Any:  # value, scalar or tuple of them
        """Return what an op without a row gives, by simpler ops."""
        found = self.decompositions.find(node)
        if found is None:
            raise CaptureError(f"the op {name} has no mapping", where=self.origins[node].location, hint=_UNMAPPED)
        outer, (self.module, sources) = self.module, found
        try:
            placeholders = iter(sources)
            for inner in self.module.graph.nodes:
                self.origins[inner] = self.origins[node]
                if inner.op == "placeholder":
                    self.env[inner] = self.env[next(placeholders)]
                elif inner.op == "output":
                    result = fx.node.map_arg(inner.args[0], self._read)
                else:
                    self._import(inner)
        finally:
            self.module = outer
        return tuple(result) if isinstance(result, list) else result

    def _check(self, node: fx.Node, name: str, result: Any, types: tuple[TensorType | None, ...]) -> None:  # value, scalar or tuple of them
        made = result if isinstance(result, tuple) else (result,)
        for value, kind in zip(made, types, strict=True):
            if isinstance(value, Value) and kind is not None and value.type != kind:
                raise CaptureError(f"{name} was mapped to {value.type}, but gives {kind}", where=self.origins[node].location)

    def _read(self, node: fx.Node) -> Any:  # value, scalar or tuple of them; None if it was left out
        return self.env.get(node)

    def _output(self, item: object) -> Value:
        if isinstance(item, fx.Node):
            found = self.env[item]
            value = found.value if isinstance(found, Scalar) else found
            if isinstance(value, Complex):
                where = self.origins[item].location
                raise CaptureError("the step returns, or keeps, a complex tensor", where=where, hint="return torch.view_as_real of it")
            assert isinstance(value, Value), "outputs are tensors or numbers"
            return value
        self.builder.location = None
        if isinstance(item, Tensor):
            return self._tensor(item, is_fresh=False)
        assert isinstance(item, bool | int | float), "outputs are tensors or numbers"
        return self.builder.constant(item, "bool" if isinstance(item, bool) else "i64" if isinstance(item, int) else "f64")

    def _constant(self, node: fx.Node) -> Value:
        owner: Any = self.module
        for word in str(node.target).split("."):
            owner = getattr(owner, word)
        return self._tensor(owner, is_fresh=all(_name(user) in _LIFTS for user in node.users))

    def _tensor(self, tensor: Tensor, *, is_fresh: bool) -> Value:
        """Return a tensor that exists: an input, as it may be another at the next step, unless the step makes it anew each time.

        Args:
            tensor: what tracing found.
            is_fresh: whether the step itself makes it of Python numbers; it is a constant if these are all one number.
        """
        known = getattr(tensor, "constant", None)  # of a fake tensor
        tensor = known if isinstance(known, Tensor) else tensor
        for item in self.constants:
            if item.get() is tensor:
                return self._input(item.name)
        with unset_fake_temporarily():
            first = tensor.flatten()[0].item() if is_fresh and tensor.numel() and not isinstance(tensor, FakeTensor) else 0
            is_uniform = is_fresh and not isinstance(tensor, FakeTensor) and bool((tensor == first).all())
        if is_uniform:
            return self.emitter.full(first, type_of(tensor))
        name = self._free(f"constant.{len(self.constants)}", [entry.name for entry in self.trace.inputs])
        value = Value(self._free(name, [item.value.name for item in self.inputs]), type_of(tensor))
        self.inputs.append(Input(value, "buffer", name))
        self.constants.append(ParameterSlot(name, tensor, "buffer"))
        return value


def _name(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


_REAL: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def _types(node: fx.Node) -> tuple[TensorType | None, ...]:
    """Return the types of results: of their parts for complex tensors, None for what is no tensor."""
    return tuple(_type(item) if isinstance(item, Tensor) else None for item in _values(node))


def _type(tensor: Tensor) -> TensorType | None:
    dtype = DTYPES.get(_REAL.get(tensor.dtype, tensor.dtype))
    return TensorType(dtype, type_shape(tensor)) if dtype else None


def _values(node: fx.Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, tuple | list) else (value,)


def _makes_complex(node: fx.Node) -> bool:
    return any(isinstance(item, Tensor) and item.is_complex() for item in _values(node))


def _needed(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes that some output depends on."""
    needed: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or (node in needed and str(node.target) not in _ZEROS):
            needed.update(node.all_input_nodes)
    return needed


def _origins(graph: fx.Graph) -> Mapping[fx.Node, Origin]:
    """Return each node's origin; a guess of `update` on which forward or backward ops depend becomes `forward`."""
    found: dict[fx.Node, Origin] = {}
    last = Origin("forward", Location())
    for node in graph.nodes:
        last = found[node] = node.meta.get(ORIGIN, last)
    for node in reversed(graph.nodes):
        if found[node].is_loose and any(found[user].phase != "update" for user in node.users if user.op == "call_function"):
            found[node] = replace(found[node], phase="forward", is_loose=False)
    return found


def _live(ops: Sequence[Op], values: Sequence[Value]) -> tuple[Op, ...]:
    """Return the ops that make `values`, and those that they depend on."""
    live = set(values)
    kept = []
    for op in reversed(ops):
        if not live.isdisjoint(op.results):
            live.update(op.operands)
            kept.append(op)
    return tuple(reversed(kept))
