"""Memory that Realm copies between: instances over memory of ours, and rectangles of them moved from one to another.

Devices of one node share memory, so the engine itself moves nothing by copies; between memories that are apart, this is how.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, Union, byref, c_int, c_longlong, c_size_t, c_void_p, cast, pointer
from dataclasses import dataclass
from typing import Any, Final

from maniple.base.errors import EngineError
from maniple.engine.realm.binding import Handle, Runtime

ALIGNMENT: Final = 64
"""Bytes; PyTorch's CPU tensors are aligned so, views of them need not be."""

_SYSTEM_MEMORY: Final = 1
_FIELD: Final = 0


class _SystemMemory(Structure):
    _fields_ = [("base", c_void_p), ("size", c_size_t), ("read_only", c_int)]


class _CudaMemory(Structure):
    _fields_ = [("device", c_int), ("base", c_void_p), ("size", c_size_t), ("read_only", c_int)]


class _Memory(Union):
    _fields_ = [("cuda", _CudaMemory), ("system", _SystemMemory)]


class _Resource(Structure):
    _fields_ = [("kind", c_int), ("memory", _Memory)]


class _Create(Structure):
    _fields_ = [
        ("memory", Handle), ("lower", c_void_p), ("upper", c_void_p), ("num_dims", c_size_t), ("coordinates", c_int),
        ("sparsity", c_void_p), ("fields", POINTER(c_int)), ("sizes", POINTER(c_size_t)), ("num_fields", c_size_t), ("block", c_size_t),
        ("resource", POINTER(_Resource)),
    ]  # fmt: skip


class _Side(Structure):
    _fields_ = [("instance", Handle), ("field", c_int), ("size", c_size_t)]


class _Copy(Structure):
    _fields_ = [
        ("sources", POINTER(_Side)), ("targets", POINTER(_Side)), ("num_fields", c_size_t), ("lower", c_void_p), ("upper", c_void_p),
        ("num_dims", c_size_t), ("coordinates", c_int), ("sparsity", c_void_p),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instance:
    """A dense array in memory of ours that Realm may copy from and to; whoever made it keeps the memory alive.

    Attributes:
        start: index of its first element in each dim: arrays that are parts of one are instances of one index space.
        item_bytes: bytes of an element.
    """

    runtime: Runtime
    handle: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    item_bytes: int

    @staticmethod
    def over(runtime: Runtime, address: int, item_bytes: int, shape: Sequence[int], start: Sequence[int] = ()) -> Instance:
        """Return an instance over the dense array at `address`.

        Args:
            runtime: whose copies will use it.
            address: a multiple of `ALIGNMENT`.
            item_bytes: bytes of an element.
            shape: at least one dim, none of which is 0.
            start: index of the first element in each dim, 0 by default.

        Raises:
            EngineError: if the address is not aligned, or Realm refuses.
        """
        if address % ALIGNMENT:
            raise EngineError(f"address {address:#x} is not aligned to {ALIGNMENT} bytes", hint="copy the tensor first")
        where = tuple(start) or (0,) * len(shape)
        lower, upper = _bounds(where, shape)
        size = item_bytes
        for n in shape:
            size *= n
        resource = _Resource(_SYSTEM_MEMORY, _Memory(system=_SystemMemory(address, size, 0)))
        memory, handle, made = Handle(), Handle(), Handle()
        runtime.call("realm_external_resource_suggested_memory", runtime.pointer, byref(resource), byref(memory))
        asked = _Create(
            memory.value, cast(lower, c_void_p), cast(upper, c_void_p), len(shape), 0, None, pointer(c_int(_FIELD)),
            pointer(c_size_t(item_bytes)), 1, 0, pointer(resource),
        )  # fmt: skip
        runtime.call("realm_region_instance_create", runtime.pointer, byref(asked), None, 0, byref(handle), byref(made))
        if not handle.value:
            raise EngineError(f"Realm made no instance over the array of shape {list(shape)} at {address:#x}")
        runtime.wait(made.value)
        return Instance(runtime, handle.value, where, tuple(shape), item_bytes)

    def copy_to(self, target: Instance, start: Sequence[int], shape: Sequence[int], after: int = 0) -> int:
        """Copy the rectangle of `shape` at index `start`, which both have, once `after` has triggered; return the event of its end.

        Raises:
            EngineError: if one of the two does not have the rectangle, or elements differ in size.
        """
        for side in (self, target):
            inside = all(lo <= at and at + n <= lo + size for at, n, lo, size in zip(start, shape, side.start, side.shape, strict=True))
            if not inside or side.item_bytes != self.item_bytes:
                raise EngineError(
                    f"cannot copy shape {list(shape)} at {list(start)}: the instance has {list(side.shape)} at {list(side.start)}"
                )
        lower, upper = _bounds(start, shape)
        sides = [pointer(_Side(side.handle, _FIELD, self.item_bytes)) for side in (self, target)]
        asked = _Copy(*sides, 1, cast(lower, c_void_p), cast(upper, c_void_p), len(shape), 0, None)
        done = Handle()
        self.runtime.call("realm_region_instance_copy", self.runtime.pointer, byref(asked), None, after, 0, byref(done))
        return done.value

    def destroy(self, after: int = 0) -> None:
        """Let go of the memory once `after` has triggered."""
        self.runtime.call("realm_region_instance_destroy", self.runtime.pointer, self.handle, after)


def _bounds(start: Sequence[int], shape: Sequence[int]) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
    """Return the first and the last index, dims reversed: Realm's first dim varies fastest."""
    kind = c_longlong * len(shape)
    last = [at + n - 1 for at, n in zip(start, shape, strict=True)]
    return kind(*reversed(list(start))), kind(*reversed(last))
