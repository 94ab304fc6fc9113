"""The verifier of programs: what every pass may rely on."""

from __future__ import annotations

from collections.abc import Iterable

from maniple.base.errors import VerifyError
from maniple.ir.program import Op, Program, Value
from maniple.ops.catalog import definition


def check_program(program: Program) -> None:
    """Raise unless `program` is well formed.

    Every op is in the table and its results have the types that the table infers; every operand, output and gradient is an input or
    the result of an earlier op; no two values have one name, nor two inputs or two outputs. Regions are programs of their own.

    Raises:
        VerifyError: naming the op and the user's line, or the input or output.
    """
    defined: set[Value] = set()
    names: set[str] = set()
    _define((item.value for item in program.inputs), defined, names)
    for op in program.ops:
        for value in op.operands:
            if value not in defined:
                raise VerifyError(f"%{value.name} is not defined before its use in {_short(op)}", where=op.location)
        _check_types(op)
        for region in op.regions:
            check_program(region)
        _define(op.results, defined, names, op)
    leaving = [(item.name, item.value) for item in program.outputs]
    for name, value in (*leaving, *program.gradients):
        if value not in defined:
            raise VerifyError(f"{name!r} is %{value.name}, which nothing defines")
    for what, taken in (("inputs", [item.name for item in program.inputs]), ("outputs", [name for name, _ in leaving])):
        if len(set(taken)) != len(taken):
            double = next(name for name in taken if taken.count(name) > 1)
            raise VerifyError(f"two {what} are called {double!r}")


def _short(op: Op) -> str:
    """Return the op on one line, without its regions."""
    return repr(op).partition("\n")[0]


def _define(values: Iterable[Value], defined: set[Value], names: set[str], op: Op | None = None) -> None:
    for value in values:
        if value.name in names:
            by = f"by {_short(op)}" if op else "among the inputs"
            raise VerifyError(f"%{value.name} is defined a second time {by}", where=op.location if op else None)
        names.add(value.name)
        defined.add(value)


def _check_types(op: Op) -> None:
    try:
        row = definition(op.name)
    except VerifyError as error:
        raise VerifyError(f"{error.what}: {_short(op)}", where=op.location) from error
    like = op.results[0].type if op.results else None
    try:
        types = row.infer([value.type for value in op.operands], dict(op.attrs), like)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise VerifyError(f"{_short(op)}: {error}", where=op.location) from error
    found = tuple(value.type for value in op.results)
    if types != found:
        expected = ", ".join(map(str, types))
        raise VerifyError(f"{_short(op)}: the results must be {expected}", where=op.location)
