"""Batches and results of other classes than torch's pytrees know: dataclasses, namespaces, mappings and objects of the user's classes.

Such a record is replaced by `Opened`, of which torch's pytrees know the parts; putting the parts together makes a record of its class.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch.utils._pytree as pytree

from maniple.capture.torch.plain import LOOKED_AT_ELSEWHERE, is_foreign, is_record, keep
from maniple.capture.torch.surroundings import is_installed

Part = tuple[str, Any]
"""How a record holds something: `item` and its key, or `attribute` and its name."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A record as a class and its parts."""

    kind: type
    parts: dict[Part, object]


def opened(tree: object) -> object:
    """Return `tree` with all records in it opened, however deep."""
    return pytree.tree_map(lambda leaf: Opened(type(leaf), dict(_parts(leaf))) if _is_open(leaf) else leaf, tree)


def _is_open(value: object) -> bool:
    kind = type(value)
    if isinstance(value, dict | UserDict) or is_record(value):
        return True
    is_other = isinstance(value, (*LOOKED_AT_ELSEWHERE, enum.Enum, BaseException, type)) or callable(value)
    return is_foreign(kind.__module__) and not is_installed(kind.__module__) and hasattr(value, "__dict__") and not is_other


def _parts(record: Any) -> Iterator[tuple[Part, object]]:
    """Yield the parts of a record, opened; what a mapping keeps beside its items is left out if it is no plain value."""
    is_mapping = isinstance(record, dict | UserDict)
    if is_mapping:
        items = record.data if isinstance(record, UserDict) else record
        yield from ((("item", key), opened(value)) for key, value in dict.items(items))
    fields = [field.name for field in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else []
    for name in dict.fromkeys((*fields, *vars(record))) if hasattr(record, "__dict__") else fields:
        value = getattr(record, name, None)
        if name == "data" and isinstance(record, UserDict):
            continue
        yield ("attribute", name), opened(value if not is_mapping or keep(value) is not None else None)


def _closed(parts: Any, context: tuple[type, tuple[Part, ...]]) -> Any:
    kind, places = context
    make: Any = kind  # its own __new__: object's is not for dicts and namespaces
    record = make.__new__(kind)
    items = record if issubclass(kind, dict) else {}
    if issubclass(kind, UserDict):
        object.__setattr__(record, "data", items)
    for (how, key), value in zip(places, parts, strict=True):
        if how == "item":
            dict.__setitem__(items, key, value)
        else:
            object.__setattr__(record, key, value)
    return record


def _named(record: Opened) -> tuple[list[tuple[pytree.KeyEntry, object]], tuple[type, tuple[Part, ...]]]:
    return [(_key(place), part) for place, part in record.parts.items()], (record.kind, tuple(record.parts))


def _key(place: Part) -> pytree.KeyEntry:
    how, key = place
    return pytree.MappingKey(key) if how == "item" else pytree.GetAttrKey(key)


pytree.register_pytree_node(
    Opened,
    lambda record: (list(record.parts.values()), (record.kind, tuple(record.parts))),
    _closed,
    flatten_with_keys_fn=_named,
)
