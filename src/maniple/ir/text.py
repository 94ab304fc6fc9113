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
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

from maniple.base.errors import ParseError
from maniple.base.literals import QUOTED, quote, unquote
from maniple.base.location import LOCATION, Location
from maniple.base.types import TensorType
from maniple.ir.program import Attr, Input, InputKind, Op, Output, Phase, Program, Value, sorted_attrs
from maniple.mesh.sharding import Sharding

_MAX_DEPTH = 100
_WORD = r"[\w.:/$~-]+"
_VALUE = re.compile(rf"%({_WORD}): (\w+\[[\d,]*\])(\{{[^}}]*\}})?")
_INPUT = re.compile(rf"in ({_VALUE.pattern}) (\w+) ({QUOTED})")
_OUTPUT = re.compile(rf"(out|gradient) %({_WORD}) ({QUOTED})")
_OP = re.compile(rf"(?:(.*?) = )?(\w+)\(((?:%{_WORD}(?:, )?)*)\)(?: \{{(.*)\}})? (forward|backward|update)(?: ({LOCATION}))?( \[)?")


def print_program(program: Program, indent: str = "") -> str:
    """Return the text form of `program`."""
    lines = [indent + "program {"]
    inner = indent + "  "
    lines += [f"{inner}in {item.value!r} {item.kind} {quote(item.name)}" for item in program.inputs]
    lines += [print_op(op, inner) for op in program.ops]
    lines += [f"{inner}gradient %{value.name} {quote(name)}" for name, value in program.gradients]
    lines += [f"{inner}out %{item.value.name} {quote(item.name)}" for item in program.outputs]
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


def _read_attrs(text: str) -> Iterator[tuple[str, Attr]]:
    """Yield the attributes in `a=1, b=(2,)`; nothing is evaluated but literals."""
    node = ast.parse(f"dict({text})", mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("not a list of name=literal")
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an attribute without a name")
        yield keyword.arg, _read_attr(ast.literal_eval(keyword.value))


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
    return _parse_body(lines, 0)


def _parse_body(lines: Iterator[str], depth: int) -> Program:
    if depth > _MAX_DEPTH:
        raise ParseError(f"regions lie in one another more than {_MAX_DEPTH} deep")
    draft = _Draft()
    for line in lines:
        if line == "}":
            return Program(tuple(draft.inputs), tuple(draft.ops), tuple(draft.outputs), tuple(draft.gradients))
        try:
            _parse_line(line, lines, draft, depth)
        except ParseError as error:
            raise error.in_line(line) from error
    raise ParseError("a program ends with '}'")


@dataclass(slots=True)
class _Draft:
    """What was read so far of a program."""

    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    gradients: list[tuple[str, Value]] = field(default_factory=list)


def _parse_line(line: str, lines: Iterator[str], draft: _Draft, depth: int) -> None:
    if match := _INPUT.fullmatch(line):
        value = _define(match[1], draft.values)
        kind = match[5]
        if kind not in get_args(InputKind):
            raise ParseError(f"unknown kind of input {kind!r}")
        draft.inputs.append(Input(value, kind, unquote(match[6])))  # type: ignore[arg-type]  # checked just above
    elif match := _OUTPUT.fullmatch(line):
        value, name = _look_up(match[2], draft.values), unquote(match[3])
        if match[1] == "out":
            draft.outputs.append(Output(value, name))
        else:
            draft.gradients.append((name, value))
    else:
        draft.ops.append(_parse_op(line, lines, draft.values, depth))


def _parse_op(line: str, lines: Iterator[str], values: dict[str, Value], depth: int) -> Op:
    match = _OP.fullmatch(line)
    if match is None:
        raise ParseError(f"cannot read the line: {line}")
    results_text, name, operands_text, attrs_text, phase, location, opens = match.groups()
    operands = tuple(_look_up(word, values) for word in re.findall(rf"%({_WORD})", operands_text))
    try:
        attrs = dict(_read_attrs(attrs_text or ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"cannot read the attributes of the line: {line}") from error
    regions = tuple(_parse_regions(lines, depth + 1)) if opens else ()
    texts = [found[0] for found in _VALUE.finditer(results_text or "")]
    if ", ".join(texts) != (results_text or ""):
        raise ParseError(f"cannot read the results {results_text!r} of the line: {line}")
    results = tuple(_define(text, values) for text in texts)
    phase_name: Phase = phase  # type: ignore[assignment]  # the pattern admits the three phases only
    return Op(name, operands, results, sorted_attrs(attrs), regions, phase_name, Location.parse(location or ""))


def _parse_regions(lines: Iterator[str], depth: int) -> Iterator[Program]:
    for line in lines:
        if line == "]":
            return
        if line != "program {":
            raise ParseError(f"expected a region, got: {line}")
        yield _parse_body(lines, depth)


def _define(text: str, values: dict[str, Value]) -> Value:
    match = _VALUE.fullmatch(text)
    if match is None:
        raise ParseError(f"cannot read the value {text!r}")
    if match[1] in values:
        raise ParseError(f"value %{match[1]} is defined twice; the second time")
    value = Value(match[1], TensorType.parse(match[2]), Sharding.parse(match[3]) if match[3] else None)
    if value.sharding is not None and len(value.sharding.dims) != value.type.rank:
        raise ParseError(f"layout {value.sharding} does not fit {value.type}")
    values[match[1]] = value
    return value


def _look_up(name: str, values: dict[str, Value]) -> Value:
    if name not in values:
        raise ParseError(f"value %{name} is used before it is defined")
    return values[name]
