"""Whether tensors that a step changes lie apart from all others that it looks at: in a program every input has memory of its own.

PyTorch lets a parameter be made of another's data; what is written to one is then read of the other. A program would read the old value,
or, where state is updated in place, whichever was there first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from maniple.base.errors import CaptureError
from maniple.ir.program import Program

_HINT: Final = "give one of them memory of its own: .clone(); let modules that share a parameter hold the same object"


def unchanged_inputs(program: Program) -> frozenset[str]:
    """Return the names of inputs that the program gives back as they are."""
    values = {item.name: item.value for item in program.inputs}
    return frozenset(item.name for item in program.outputs if values.get(item.name) is item.value)


class Apart:
    """Looks at the memory of a program's inputs, as often as it is another."""

    def __init__(self, program: Program) -> None:
        """Find out which inputs `program` changes, and which of the others it looks at."""
        inputs, unchanged = {item.name: item.value for item in program.inputs}, unchanged_inputs(program)
        looked_at = {value for op in program.ops for value in op.operands}
        looked_at |= {item.value for item in program.outputs if item.name not in unchanged}
        self._changed = [item.name for item in program.outputs if item.name in inputs and item.name not in unchanged]
        self._read = [name for name, value in inputs.items() if value in looked_at and name not in set(self._changed)]
        self._seen: tuple[int, ...] = ()
        self._storages: frozenset[int] = frozenset()

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Check the inputs of a step.

        Args:
            tensors: all inputs, by name.

        Raises:
            CaptureError: if one that is changed has elements in common with itself or with another that the step changes or reads.
        """
        changed = [tensors[name] for name in self._changed]
        addresses = tuple([tensor.data_ptr() for tensor in changed])
        if addresses != self._seen:
            self._storages = frozenset(_storage(tensor) for tensor in changed)
            for name, tensor in zip(self._changed, changed, strict=True):
                if _overlaps_itself(tensor):
                    raise CaptureError(f"elements of `{name}`, which the step changes, share memory", hint="make it whole: .contiguous()")
            self._check_storages({name: tensors[name] for name in self._changed}, {})
            self._seen = addresses
        read = {name: tensors[name] for name in self._read if _storage(tensors[name]) in self._storages}
        if read:
            self._check_storages({name: tensors[name] for name in self._changed}, read)

    def _check_storages(self, changed: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
        groups: dict[int, list[str]] = {}
        for name, tensor in (*changed.items(), *read.items()):
            groups.setdefault(_storage(tensor), []).append(name)
        tensors = {**changed, **read}
        for names in groups.values():
            if len(names) > 1 and _may_overlap([tensors[name] for name in names]):
                found = _common([name for name in names if name in changed], [name for name in names if name in read], tensors)
                if found is not None:
                    raise CaptureError(f"the step changes `{found[0]}`, which shares memory with `{found[1]}`", hint=_HINT)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses where the elements of `tensor` begin and end; equal if it has none."""
    start, size = tensor.data_ptr(), tensor.element_size()
    if not tensor.numel():
        return start, start
    return start, start + size * (1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)))


def _may_overlap(tensors: Iterable[Tensor]) -> bool:
    spans = sorted(span for span in map(_span, tensors) if span[0] < span[1])
    return any(one[1] > other[0] for one, other in pairwise(spans))


def _overlaps_itself(tensor: Tensor) -> bool:
    reach = 0  # how far dims of smaller strides lead
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and stride <= reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    if not tensor.numel():
        return False
    start, end = _span(tensor)
    marks = torch.zeros(end - start, dtype=torch.bool)
    _bytes(marks, tensor, start).fill_(value=True)
    return int(marks.sum()) != tensor.numel() * tensor.element_size()


def _bytes(marks: Tensor, tensor: Tensor, start: int) -> Tensor:
    """Return the view of `marks`, one for each byte from address `start` on, that `tensor` covers; dims of stride 0 count once."""
    size = tensor.element_size()
    shape = [n if stride else min(n, 1) for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return marks.as_strided([*shape, size], [*(stride * size for stride in tensor.stride()), 1], tensor.data_ptr() - start)


def _common(changed: Sequence[str], read: Sequence[str], tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Return the names of a tensor that is changed and of another that has an element in common with it; None if there are none."""
    spans = [_span(tensors[name]) for name in (*changed, *read) if tensors[name].numel()]
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    marks = torch.zeros(end - start, dtype=torch.int32)  # of each byte the number of the tensor that owns it, from 1 on
    for number, name in enumerate((*changed, *read), 1):
        if not tensors[name].numel():
            continue
        view = _bytes(marks, tensors[name], start)
        owner = int(view.max())
        if owner:
            return changed[owner - 1], name
        if number <= len(changed):
            view.fill_(number)
    return None
