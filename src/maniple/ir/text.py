"""The text form of programs, and its parser.

```
program {
  in %w: f32[8,4]{tp,_} parameter "fc.weight"
  %1: f32[2,8]{_,tp} = dot_general(%x, %w) {lhs_contract=(1,), rhs_contract=(1,)} forward "train.py":12 @fc
  gradient %7 "fc.weight"
  out %9 "fc.weight"
}
```
Attribute values are written as Python literals and read with `ast.literal_eval`; infinities and NaN as `"inf"`-like words `@inf`,
`@-inf`, `@nan`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from typing import get_args

from maniple.base.errors import ParseError
from maniple.base.location import Location
from maniple.base.types import TensorType
from maniple.ir.program import Attr, Input, InputKind, Op, Output, Phase, Program, Value, sorted_attrs
from maniple.mesh.sharding import Sharding

_WORD = r"[\w.:/$~-]+"
_VALUE = re.compile(rf"%({_WORD}): (\w+\[[\d,]*\])(\{{[^}}]*\}})?")
_INPUT = re.compile(rf"in ({_VALUE.pattern}) (\w+) (\".*\")")
_OUTPUT = re.compile(rf"(out|gradient) %({_WORD}) (\".*\")")
_OP = re.compile(
    rf"(?:(.*?) = )?(\w+)\(((?:%{_WORD}(?:, )?)*)\)(?: \{{(.*)\}})? (forward|backward|update)(?: (\"[^@]*\":\d+(?: @\S*)?))?( \[)?"
)


def print_program(program: Program, indent: str = "") -> str:
    """Return the text form of `program`."""
    lines = [indent + "program {"]
    inner = indent + "  "
    lines += [f"{inner}in {item.value!r} {item.kind} {json.dumps(item.name)}" for item in program.inputs]
    lines += [print_op(op, inner) for op in program.ops]
    lines += [f"{inner}gradient %{value.name} {json.dumps(name)}" for name, value in program.gradients]
    lines += [f"{inner}out %{item.value.name} {json.dumps(item.name)}" for item in program.outputs]
    return "\n".join([*lines, indent + "}"])


def print_op(op: Op, indent: str = "") -> str:
    """Return one op as text, its regions on the lines below."""
    results = ", ".join(map(repr, op.results))
    operands = ", ".join("%" + value.name for value in op.operands)
    attrs = ", ".join(f"{name}={_print_attr(value)}" for name, value in op.attrs)
    line = f"{indent}{results + ' = ' if results else ''}{op.name}({operands})"
    line += (f" {{{attrs}}}" if attrs else "") + f" {op.phase}"
    line += f" {op.location.text()}" if op.location else ""
    if not op.regions:
        return line
    return "\n".join([line + " [", *(print_program(region, indent + "  ") for region in op.regions), indent + "]"])


def _print_attr(value: Attr) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"'@{value}'"
    if isinstance(value, tuple):
        inner = ", ".join(map(_print_attr, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _read_attr(value: object) -> Attr:
    if isinstance(value, str) and value in ("@inf", "@-inf", "@nan"):
        return float(value[1:])
    if isinstance(value, tuple):
        return tuple(_read_attr(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ParseError(f"attribute {value!r} is not a number, a string or a tuple of them")


def parse_program(text: str) -> Program:
    """Return the program that `text` spells.

    Raises:
        ParseError: naming the line that does not parse.
    """
    lines = iter([line.strip() for line in text.strip().splitlines() if line.strip()])
    if next(lines, "") != "program {":
        raise ParseError("a program starts with 'program {'")
    return _parse_body(lines)


def _parse_body(lines: Iterator[str]) -> Program:
    values: dict[str, Value] = {}
    inputs: list[Input] = []
    ops: list[Op] = []
    outputs: list[Output] = []
    gradients: list[tuple[str, Value]] = []
    for line in lines:
        if line == "}":
            return Program(tuple(inputs), tuple(ops), tuple(outputs), tuple(gradients))
        if match := _INPUT.fullmatch(line):
            value = _define(match[1], values, line)
            kind = match[5]
            if kind not in get_args(InputKind):
                raise ParseError(f"unknown kind of input {kind!r} in line: {line}")
            inputs.append(Input(value, kind, json.loads(match[6])))  # type: ignore[arg-type]  # checked just above
        elif match := _OUTPUT.fullmatch(line):
            value, name = _look_up(match[2], values, line), json.loads(match[3])
            if match[1] == "out":
                outputs.append(Output(value, name))
            else:
                gradients.append((name, value))
        else:
            ops.append(_parse_op(line, lines, values))
    raise ParseError("a program ends with '}'")


def _parse_op(line: str, lines: Iterator[str], values: dict[str, Value]) -> Op:
    match = _OP.fullmatch(line)
    if match is None:
        raise ParseError(f"cannot read the line: {line}")
    results_text, name, operands_text, attrs_text, phase, location, opens = match.groups()
    operands = tuple(_look_up(word, values, line) for word in re.findall(rf"%({_WORD})", operands_text))
    try:
        node = ast.parse(f"dict({attrs_text or ''})", mode="eval").body
        assert isinstance(node, ast.Call)
        attrs = {str(k.arg): _read_attr(ast.literal_eval(k.value)) for k in node.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError) as error:
        raise ParseError(f"cannot read the attributes of the line: {line}") from error
    regions = tuple(_parse_regions(lines)) if opens else ()
    results = tuple(_define(m[0], values, line) for m in _VALUE.finditer(results_text or ""))
    phase_name: Phase = phase  # type: ignore[assignment]  # the pattern admits the three phases only
    return Op(name, operands, results, sorted_attrs(attrs), regions, phase_name, Location.parse(location or ""))


def _parse_regions(lines: Iterator[str]) -> Iterator[Program]:
    for line in lines:
        if line == "]":
            return
        if line != "program {":
            raise ParseError(f"expected a region, got: {line}")
        yield _parse_body(lines)


def _define(text: str, values: dict[str, Value], line: str) -> Value:
    match = _VALUE.fullmatch(text)
    if match is None:
        raise ParseError(f"cannot read the value {text!r} in line: {line}")
    if match[1] in values:
        raise ParseError(f"value %{match[1]} is defined twice; second time in line: {line}")
    value = Value(match[1], TensorType.parse(match[2]), Sharding.parse(match[3]) if match[3] else None)
    values[match[1]] = value
    return value


def _look_up(name: str, values: dict[str, Value], line: str) -> Value:
    if name not in values:
        raise ParseError(f"value %{name} is used before it is defined in line: {line}")
    return values[name]
