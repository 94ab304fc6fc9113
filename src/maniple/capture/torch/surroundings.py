"""What a step's code takes from around it: outer variables and globals, of the functions and methods that it calls as well."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from maniple.capture.torch.plain import Same, is_foreign, keep, keep_fields

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def surroundings(step_fn: Callable[..., object], watched: Collection[int], kinds: Collection[type]) -> Iterator[tuple[str, Hashable]]:
    """Yield the plain values and tensors that the code of a step and of the user's modules names, with what it is called.

    Looked at are outer variables, globals, what partial functions and methods hold, all of these of functions and methods that the code
    names, and of objects the attributes that it names. Code of Python's and PyTorch's own is not looked into.

    Args:
        step_fn: the user's step.
        watched: identities of modules and other objects that are looked at elsewhere.
        kinds: classes of the modules. The methods of those that are not installed as part of a package are code of the step.
    """
    found = _Found()
    found.look(step_fn, "")
    for kind in dict.fromkeys(base for each in dict.fromkeys(kinds) for base in each.mro()):
        if is_foreign(kind.__module__) and not is_installed(kind.__module__):
            for method in vars(kind).values():
                found.look(method, f"{kind.__qualname__}: ")
    for name, value in found.values.items():
        if id(value) in watched:
            continue
        if isinstance(value, nn.Module):
            yield from _module(name, value)
            continue
        kept = Same(value) if isinstance(value, Tensor) else keep(value, found.records(watched), names=found.names)
        if kept is not None:
            yield f"variable {name}", kept


def _module(name: str, module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    for path, part in module.named_modules():
        held = tuple(Same(tensor) for tensor in (*part._parameters.values(), *part._buffers.values()))
        fields = tuple(item for item in keep_fields(part, {}) if item[0] not in _OF_EVERY_MODULE)
        yield f"variable {name}{'.' if path else ''}{path}", (type(part), (*fields, ("tensors", held)))


class _Found:
    """What was found so far.

    Attributes:
        values: what the code names, by name.
        names: all names of attributes, methods and globals in the code.
    """

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.names: set[str] = set()
        self._codes: set[int] = set()

    def records(self, watched: Collection[int]) -> dict[int, Any]:
        """Return what `keep` shall take as looked at."""
        return dict.fromkeys(watched)

    def look(self, function: Any, label: str) -> None:
        """Look at a function, a method or a partial one; `label` stands before the names of what is found."""
        while isinstance(function, functools.partial):
            self._add({f"{label}argument {name}": value for name, value in function.keywords.items()}, ())
            self._add({f"{label}argument {number}": value for number, value in enumerate(function.args)}, ())
            function = function.func
        owner = getattr(function, "__self__", None)
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if not isinstance(code, types.CodeType) or id(code) in self._codes or not is_foreign(function.__module__):
            return
        self._codes.add(id(code))
        names = set(_names(code))
        self.names |= names
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        values = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        values |= {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
        if owner is not None and not isinstance(owner, types.ModuleType):
            values["self"] = owner
        self._add({f"{label}{name}": value for name, value in values.items()}, names)

    def _add(self, values: Mapping[str, object], names: Collection[str]) -> None:
        for name, value in values.items():
            self.values.setdefault(name, value)
            if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
                self.look(value, f"{name}: ")
            elif isinstance(value, types.ModuleType) and is_foreign(value.__name__) and not is_installed(value.__name__):
                for key in sorted(set(names).intersection(vars(value))):
                    self.look(getattr(value, key), f"{name}.{key}: ")
            elif is_foreign(type(value).__module__) and not isinstance(value, type | nn.Module):
                methods = ((key, getattr(type(value), key, None)) for key in (*sorted(names), "__call__"))
                for key, method in methods:
                    if isinstance(method, types.FunctionType):
                        self.look(method, f"{name}.{key}: ")


def is_installed(name: str) -> bool:
    """Return whether a Python module is part of an installed package, whose variables are taken to stay as they are."""
    return "-packages" in str(getattr(sys.modules.get(name), "__file__", ""))  # site-packages, dist-packages


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code and in functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # what a cell without contents raises
        return False
