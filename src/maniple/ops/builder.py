"""Builds programs op by op, inferring types from the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maniple.base.errors import VerifyError
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Attr, Op, Phase, Value, sorted_attrs
from maniple.ops.opdef import OpDef


class Builder:
    """Collects ops; every value gets a fresh number as its name.

    Attributes:
        ops: what was emitted so far, in order.
        phase: phase of the ops to come.
        location: location of the ops to come.
    """

    def __init__(self, table: Mapping[str, OpDef], *, prefix: str = "") -> None:
        """Start an empty program over the ops of `table`; names begin with `prefix`."""
        self.table, self.prefix = table, prefix
        self.ops: list[Op] = []
        self.phase: Phase = "forward"
        self.location: Location | None = None
        self._count = 0

    def fresh(self, kind: TensorType) -> Value:
        """Return a new value of type `kind` that no op makes."""
        self._count += 1
        return Value(f"{self.prefix}{self._count}", kind)

    def emit(self, name: str, operands: Sequence[Value], like: TensorType | None = None, **attrs: Attr) -> tuple[Value, ...]:
        """Append an op and return its results.

        Args:
            name: row of the table.
            operands: values of this program.
            like: type of the first result, for ops whose shape or dtype nothing else tells.
            attrs: the op's attributes.

        Raises:
            VerifyError: if there is no such op or the types do not fit.
        """
        if name not in self.table:
            raise VerifyError(f"there is no op {name!r} in the table", where=self.location)
        try:
            types = self.table[name].infer([value.type for value in operands], dict(attrs), like)
        except ValueError as error:
            shown = ", ".join(str(value.type) for value in operands)
            raise VerifyError(f"{name}({shown}): {error}", where=self.location) from error
        results = tuple(self.fresh(kind) for kind in types)
        self.ops.append(Op(name, tuple(operands), results, sorted_attrs(attrs), phase=self.phase, location=self.location))
        return results

    def __call__(self, name: str, *operands: Value, like: TensorType | None = None, **attrs: Attr) -> Value:
        """Append an op of one result and return that."""
        (result,) = self.emit(name, operands, like, **attrs)
        return result

    def constant(self, value: float, dtype: str) -> Value:
        """Return the rank-0 constant `value`."""
        return self("constant", like=TensorType(dtype), value=value)

    def broadcast(self, x: Value, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value:
        """Return `x` repeated to `shape`, its dims standing at `dims` of the result."""
        if x.type.shape == shape:
            return x
        return self("broadcast_in_dim", x, like=x.type.with_shape(shape), dims=dims)
