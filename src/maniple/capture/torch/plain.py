"""Python values that a traced step may have read: what guards keep of them, to compare with what they are later."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any, Final

import torch

Kept = tuple[type, Hashable]
"""A value's type, so that 1, 1.0 and True are three, and the value, or what was kept of its items."""

_PLAIN: Final = frozenset({
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
})  # fmt: skip
_FUNCTIONS: Final = frozenset({types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type})
LOOKED_AT_ELSEWHERE: Final = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
"""Classes of which guards look at each instance by name."""
_OWN_MODULES: Final = frozenset({"torch", "numpy", "maniple"})


class _Any(frozenset[str]):
    """Holds every name."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


ANY: Final = _Any()
"""All names."""

_CONTAINERS: Final = (tuple, list, deque, Mapping, set, frozenset)
_RECORDS: Final = (types.SimpleNamespace, argparse.Namespace)


class Same:
    """Stands for one object: equal to what stands for the very same one."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        """Stand for `value`, and keep it alive, so that no other object gets its identity."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Return whether both stand for one object."""
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        """Return a hash of the identity."""
        return hash(id(self.value))

    def __str__(self) -> str:
        """Return the object's name."""
        return str(getattr(self.value, "__name__", type(self.value).__name__))


def keep(value: object, records: dict[int, Kept] | None = None, *, names: Collection[str] = ()) -> Kept | None:
    """Return what to compare of a value: all of a number, text, numpy array or container of them, the identity of a function.

    Of records (dataclasses, namespaces) the fields of which anything is kept. None for everything else, and for what holds it; but of
    models and optimizers among other things the identity.

    >>> keep([1, "a"]) == keep([1, "a"]), keep(1) == keep(True), keep(object())
    (True, False, None)

    Args:
        value: what to compare.
        records: what was kept of records by identity, so that one that many modules hold is looked at once; added to.
        names: fields of objects of other classes to look at: those that code names, or `ANY`; none: such objects are not looked at.
            With names, tensors are kept by identity, and classes and Python modules are looked at as well; not so with `ANY`.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if names and names is not ANY and isinstance(value, type | types.ModuleType) and is_foreign(_module_name(value)):
        return _kept_namespace(value, {} if records is None else records, names)
    by_identity = isinstance(value, torch.Tensor) and names and names is not ANY
    if kind in _FUNCTIONS or isinstance(value, enum.Enum | type) or by_identity:
        return kind, Same(value)
    if isinstance(value, _CONTAINERS) or kind.__module__ == "numpy":
        return _kept_content(value, records, names)
    if is_record(value) or (names and _is_object(value)):
        records = {} if records is None else records
        if id(value) not in records:
            records[id(value)] = kind, ()  # what a record finds that holds itself
            records[id(value)] = kind, keep_fields(value, records, names=names)
        return records[id(value)]
    return None


def _is_object(value: object) -> bool:
    """Return whether `value` is of a class of the user's or a library's, but no part of a model or its training."""
    return is_foreign(type(value).__module__) and not isinstance(value, LOOKED_AT_ELSEWHERE)


def _module_name(value: type | types.ModuleType) -> str:
    return value.__module__ if isinstance(value, type) else value.__name__


def _kept_namespace(value: type | types.ModuleType, records: dict[int, Kept], names: Collection[str]) -> Kept:
    """Return the identity of a class or a Python module, and those of its attributes that code names."""
    if id(value) not in records:
        records[id(value)] = type(value), Same(value)  # what one finds that names itself
        records[id(value)] = type(value), (("is", (type(value), Same(value))), *keep_fields(value, records, names=names))
    return records[id(value)]


def is_foreign(module: object) -> bool:
    """Return whether a module is neither Python's nor PyTorch's own.

    >>> is_foreign("logging.handlers"), is_foreign("torch.nn"), is_foreign("trainer")
    (False, False, True)
    """
    root = str(module).partition(".")[0]
    return root == "__main__" or (root not in _OWN_MODULES and root not in sys.stdlib_module_names)


def is_record(value: object) -> bool:
    """Return whether `value` is a dataclass's instance or a namespace."""
    return isinstance(value, _RECORDS) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _kept_content(value: Any, records: dict[int, Kept] | None, names: Collection[str]) -> Kept | None:
    kind = type(value)
    if kind.__module__ == "numpy":
        content = (
            (str(value.dtype), value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest())
            if hasattr(value, "tobytes")
            else None
        )
        return content and (kind, content)
    if isinstance(value, set | frozenset):
        return (kind, frozenset(value)) if all(type(item) in _PLAIN for item in value) else None
    found = []
    for item in (part for pair in value.items() for part in pair) if isinstance(value, Mapping) else value:
        is_known = isinstance(item, LOOKED_AT_ELSEWHERE) and not isinstance(item, torch.Tensor)
        kept = (type(item), Same(item)) if is_known else keep(item, records, names=names)
        if kept is None:
            return None
        found.append(kept)
    return kind, tuple(found)


def keep_fields(owner: object, records: dict[int, Kept] | None = None, *, names: Collection[str] = ()) -> tuple[tuple[str, Kept], ...]:
    """Return the attributes of an object of which anything is kept, with that; `records` and `names` as for `keep`."""
    found = dict(_attributes(owner, has_classes=bool(names) and names is not ANY))
    if names and not is_record(owner):
        found = {name: value for name, value in found.items() if name in names}
    return tuple((name, kept) for name, value in found.items() if (kept := keep(value, records, names=names)) is not None)


def _attributes(owner: object, *, has_classes: bool) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes, what is more its own last: of its classes if asked for, of slots and fields, of itself."""
    kinds = [kind for kind in type.mro(owner if isinstance(owner, type) else type(owner)) if is_foreign(kind.__module__)]
    for kind in reversed(kinds):
        if has_classes:
            yield from vars(kind).items()
    if isinstance(owner, type):
        return
    for kind in reversed(kinds):
        slots = vars(kind).get("__slots__", ())
        yield from ((name, getattr(owner, name)) for name in ((slots,) if isinstance(slots, str) else slots) if hasattr(owner, name))
    if dataclasses.is_dataclass(owner):
        yield from ((item.name, getattr(owner, item.name, None)) for item in dataclasses.fields(owner))
    yield from getattr(owner, "__dict__", {}).items()


def spelled(kept: object) -> str:
    """Return what was kept of a value in Python's words; None for a value that was not there.

    >>> spelled(keep((1, "a"))), spelled(keep(len))
    ("(1, 'a')", 'len')
    """
    if not isinstance(kept, tuple) or len(kept) != 2 or not isinstance(kept[0], type):
        return str(kept)
    kind, value = kept
    if isinstance(value, Same):
        return str(value)
    if kind in _PLAIN or not isinstance(value, tuple):
        return repr(value)
    if value and isinstance(value[0], tuple) and isinstance(value[0][0], str):
        return f"{kind.__qualname__}({', '.join(f'{name}={spelled(item)}' for name, item in value)})"
    return f"({', '.join(map(spelled, value))})"
