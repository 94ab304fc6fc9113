"""A strategy: how a training step is divided, as data that people write.

The short form is a line of words, the long one TOML; both say the same and print back:

```
dp=2 tp=2 zero=3 sp place:*.mlp.fc.weight={tp,_} pin:batch.x={dp,_}
```
```toml
zero = 3
sp = true

[axes]
dp = 2
tp = 2

[[placements]]
pattern = "*.mlp.fc.weight"
sharding = "{tp,_}"

[[pins]]
tensor = "batch.x"
sharding = "{dp,_}"
```
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from maniple.base.errors import ParseError, StrategyError
from maniple.base.literals import NUMBER
from maniple.base.types import TensorType
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding

AXES: Final = ("dp", "tp")
"""Axes a strategy may name: data parallel, tensor parallel."""

ZERO_LEVELS: Final = (0, 1, 2, 3)
"""What is also divided over dp: nothing, optimizer state, gradients as well, parameters as well."""

_MEANT: Final = {
    "ddp": "dp=N",
    "data": "dp=N",
    "batch": "dp=N",
    "fsdp": "dp=N zero=3",
    "mp": "tp=N",
    "tensor": "tp=N",
    "model": "tp=N",
    "sp": "sp, a word without a number",
    "sequence": "sp",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """The layout of every parameter whose name matches `pattern` (as in shell file names); the first match counts."""

    pattern: str
    sharding: Sharding

    def __str__(self) -> str:
        """Return the word of the short form."""
        return f"place:{self.pattern}={self.sharding}"


@dataclass(frozen=True, slots=True)
class Pin:
    """The layout of every tensor whose name matches `tensor`: an input's name, or a value's as `explain` prints it."""

    tensor: str
    sharding: Sharding

    def __str__(self) -> str:
        """Return the word of the short form."""
        return f"pin:{self.tensor}={self.sharding}"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a step is divided.

    >>> str(Strategy.parse("dp=2  tp=4 zero=1"))
    'dp=2 tp=4 zero=1'

    Attributes:
        mesh: axes and their sizes, the first one varying slowest; no axes means one device.
        zero: 0 to 3, what is also divided over dp: nothing, optimizer state, gradients as well, parameters as well.
        sp: whether activations between products with parameters are divided over tp as well, where that saves memory.
        placements: layouts of parameters.
        pins: layouts of single tensors.

    Raises:
        StrategyError: if a name, a size or a layout is not a known one.
    """

    mesh: Mesh
    zero: int = 0
    placements: tuple[Placement, ...] = ()
    pins: tuple[Pin, ...] = ()
    sp: bool = False

    def __post_init__(self) -> None:
        """Refuse what no step could be divided by."""
        for at, (name, size) in enumerate(self.mesh.axes):
            _check_axis(name, size)
            if name in self.mesh.names[:at]:
                raise StrategyError(f"strategy names axis {name!r} twice", hint=f"write {name}=N once")
        if type(self.zero) is not int or self.zero not in ZERO_LEVELS:
            raise StrategyError(f"zero={self.zero} is no level of ZeRO", hint="zero=0, 1, 2 or 3")
        if type(self.sp) is not bool:
            raise StrategyError(f"sp={self.sp!r} is neither true nor false", hint="sp = true")
        for is_said, word, axis, what in ((self.zero, f"zero={self.zero}", "dp", "state"), (self.sp, "sp", "tp", "activations")):
            if is_said and axis not in self.mesh.names:
                message = f"{word} divides {what} over {axis}, which the strategy does not have"
                raise StrategyError(message, hint=f"add {axis}=N, or leave it out")
        for placement in self.placements:
            _check_layout("placement", placement.pattern, placement.sharding, self.mesh)
            if placement.sharding.pending:
                raise StrategyError(f"placement {placement.pattern!r}: a parameter cannot be pending, got {placement.sharding}")
        for pin in self.pins:
            _check_layout("pin", pin.tensor, pin.sharding, self.mesh)

    @property
    def num_devices(self) -> int:
        """Devices that the strategy needs."""
        return self.mesh.num_devices

    def size(self, axis: str) -> int:
        """Return the number of ways along `axis`, 1 if the strategy does not name it."""
        return dict(self.mesh.axes).get(axis, 1)

    def placed(self, parameters: Mapping[str, TensorType]) -> dict[str, Sharding]:
        """Return the layouts that placements give to parameters, by name.

        Args:
            parameters: global type of each parameter of the model.

        Raises:
            StrategyError: if a pattern matches no parameter, or a layout has another rank than the parameter.
        """
        rules = [(p.pattern, p.sharding) for p in self.placements]
        return _resolve("placement", rules, parameters)

    def pinned(self, tensors: Mapping[str, TensorType]) -> dict[str, Sharding]:
        """Return the layouts that pins give to tensors, by name.

        Args:
            tensors: global type of each input and value of the program.

        Raises:
            StrategyError: if a pin matches nothing, or a layout has another rank than the tensor.
        """
        return _resolve("pin", [(p.tensor, p.sharding) for p in self.pins], tensors)

    def __str__(self) -> str:
        """Return the short form, which `parse` reads."""
        words = [str(self.mesh)] if self.mesh.axes else []
        words += [f"zero={self.zero}"] if self.zero else []
        words += ["sp"] if self.sp else []
        return " ".join([*words, *map(str, self.placements), *map(str, self.pins)])

    @staticmethod
    def parse(text: str) -> Strategy:
        """Return the strategy that the short form `text` spells; empty text means one device.

        Raises:
            StrategyError: naming the word that is wrong.
        """
        axes: list[tuple[str, int]] = []
        zeros: list[int] = []
        flags: list[str] = []
        placements: list[Placement] = []
        pins: list[Pin] = []
        for word in text.split():
            if match := re.fullmatch(r"(place|pin):(.+)=(\{.*\})", word):
                sharding = _layout(match[3], word)
                if match[1] == "place":
                    placements.append(Placement(match[2], sharding))
                else:
                    pins.append(Pin(match[2], sharding))
            elif match := re.fullmatch(rf"([A-Za-z_]\w*)=(-?{NUMBER})", word):
                name, size = match[1], int(match[2])
                if name == "zero":
                    zeros.append(size)
                else:
                    axes.append((name, size))
            elif word == "sp":
                flags.append(word)
            else:
                raise StrategyError(f"cannot read {word!r} in strategy {text!r}", hint='words such as "dp=2 tp=2 zero=3 sp"')
        for said, name, once in ((zeros, "zero", "zero=N"), (flags, "sp", "sp")):
            if len(said) > 1:
                raise StrategyError(f"strategy {text!r} says {name} twice", hint=f"write {once} once")
        return Strategy(Mesh(tuple(axes)), zeros[0] if zeros else 0, tuple(placements), tuple(pins), bool(flags))

    @staticmethod
    def load(text: str) -> Strategy:
        """Return the strategy in the short form `text`, or in the file that it names if it ends in `.toml`.

        Raises:
            StrategyError: if the file cannot be read or the strategy is wrong.
        """
        if not text.endswith(".toml"):
            return Strategy.parse(text)
        try:
            content = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise StrategyError(f"cannot read strategy file {text!r}: {error}", hint="check the path") from error
        return Strategy.from_toml(content)

    @staticmethod
    def from_toml(text: str) -> Strategy:
        """Return the strategy that the TOML document `text` spells.

        Raises:
            StrategyError: naming the key that is wrong.
        """
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise StrategyError(f"strategy file is not TOML: {error}", hint="docs/strategies.md shows one") from error
        _check_keys("strategy file", table, ("axes", "zero", "sp", "placements", "pins"))
        axes = table.get("axes", {})
        if not isinstance(axes, dict):
            raise StrategyError("axes is not a table", hint="write [axes], then lines such as dp = 2")
        placements = _entries(table, "placements", "pattern")
        pins = _entries(table, "pins", "tensor")
        return Strategy(
            Mesh(tuple(axes.items())),
            table.get("zero", 0),
            tuple(Placement(name, sharding) for name, sharding in placements),
            tuple(Pin(name, sharding) for name, sharding in pins),
            table.get("sp", False),
        )

    def to_toml(self) -> str:
        """Return the TOML form, which `from_toml` reads."""
        options = (f"zero = {self.zero}\n" if self.zero else "") + ("sp = true\n" if self.sp else "")
        parts = [options] if options else []
        parts.append("[axes]\n" + "".join(f"{name} = {size}\n" for name, size in self.mesh.axes))
        parts += [_toml_entry("placements", "pattern", p.pattern, p.sharding) for p in self.placements]
        parts += [_toml_entry("pins", "tensor", p.tensor, p.sharding) for p in self.pins]
        return "\n".join(parts)


def _toml_entry(table: str, key: str, name: str, sharding: Sharding) -> str:
    return f'[[{table}]]\n{key} = {json.dumps(name, ensure_ascii=False)}\nsharding = "{sharding}"\n'


def _check_axis(name: str, size: object) -> None:
    if name not in AXES:
        known = ", ".join(f"{axis}=N" for axis in AXES) + ", zero=0..3 and sp"
        close = difflib.get_close_matches(name, [*AXES, "zero"], n=1)
        meant = _MEANT.get(name.lower(), f"{close[0]}=N" if close else "")
        hint = f"did you mean {meant}? A strategy may say {known}" if meant else f"a strategy may say {known}"
        raise StrategyError(f"unknown axis {name!r} in the strategy", hint=hint)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise StrategyError(f"axis {name} has size {size!r}; a size is a whole number from 1", hint=f"{name}=2, or leave {name} out")


def _check_layout(what: str, name: str, sharding: Sharding, mesh: Mesh) -> None:
    if not name or not name.isprintable() or " " in name:
        raise StrategyError(f"{what} {name!r} is not a name: it is empty or has blanks in it", hint="names such as blocks.*.fc.weight")
    axes = [part.axis for parts in sharding.dims for part in parts] + [axis for axis, _ in sharding.pending]
    for axis in axes:
        if axis not in mesh.names:
            raise StrategyError(
                f"{what} {name!r} uses axis {axis!r}, which the strategy does not have",
                hint=f"add {axis}=N to the strategy, or use one of: {', '.join(mesh.names) or 'none'}",
            )
        if axes.count(axis) > 1:
            raise StrategyError(f"{what} {name!r} uses axis {axis!r} twice in {sharding}", hint="an axis splits one dim only")
    for parts in sharding.dims:
        if len({(part.blocks, part.unit) for part in parts}) > 1 or any(part.blocks < 1 or part.unit < 1 for part in parts):
            raise StrategyError(f"{what} {name!r}: axes on one dim need the same blocks and units, from 1, got {sharding}")


def _layout(text: str, where: str) -> Sharding:
    try:
        return Sharding.parse(text)
    except ParseError as error:
        raise StrategyError(f"{error.what} in {where!r}", hint=error.hint) from error


def _check_keys(what: str, table: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = (f"did you mean {close[0]!r}? " if close else "") + f"known are {', '.join(known)}"
            raise StrategyError(f"{what}: unknown key {key!r}", hint=hint)


def _entries(table: Mapping[str, object], key: str, name: str) -> list[tuple[str, Sharding]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StrategyError(f"{key} is not a list of tables", hint=f"write [[{key}]], then {name} = ... and sharding = ...")
    found = []
    for entry in entries:
        _check_keys(f"[[{key}]]", entry, (name, "sharding"))
        if not all(isinstance(entry.get(field), str) for field in (name, "sharding")):
            raise StrategyError(f"an entry of [[{key}]] lacks {name} or sharding", hint=f'{name} = "...", sharding = "{{tp,_}}"')
        found.append((entry[name], _layout(entry["sharding"], entry[name])))
    return found


def _resolve(what: str, rules: Iterable[tuple[str, Sharding]], tensors: Mapping[str, TensorType]) -> dict[str, Sharding]:
    found: dict[str, Sharding] = {}
    for pattern, sharding in rules:
        matched = [name for name in tensors if fnmatchcase(name, pattern)]
        if not matched:
            close = difflib.get_close_matches(pattern, list(tensors), n=3, cutoff=0.4)
            hint = f"close names: {', '.join(close)}" if close else "maniple explain MODEL --stage program prints the names"
            raise StrategyError(f"{what} {pattern!r} matches nothing in the model", hint=hint)
        for name in matched:
            if len(sharding.dims) != tensors[name].rank:
                raise StrategyError(
                    f"{what} {pattern!r}: layout {sharding} has {len(sharding.dims)} dims, {name} is {tensors[name]}",
                    hint="write one entry per dim, _ for a dim that is not split",
                )
            for n, parts in zip(tensors[name].shape, sharding.dims, strict=True):
                if parts and n % (parts[0].blocks * parts[0].unit):
                    counts = f"{parts[0].blocks} blocks of units of {parts[0].unit}"
                    what_is = f"{what} {pattern!r}: a dim of {n} of {name} is no whole number of {counts}"
                    raise StrategyError(what_is, hint="numbers whose product divides the dim, or none")
            found.setdefault(name, sharding)
    return found
