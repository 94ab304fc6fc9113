"""The step's example arguments and what it returns, as trees of tensors and Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer

from maniple.base.errors import CaptureError
from maniple.capture.torch.patches import UNKNOWN
from maniple.capture.torch.plain import keep
from maniple.capture.torch.records import opened

_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


def _path_text(path: Sequence[object]) -> str:
    words = []
    for key in path:
        if isinstance(key, pytree.SequenceKey):
            words.append(str(key.idx))
        elif isinstance(key, pytree.MappingKey):
            words.append(str(key.key))
        else:
            words.append(str(getattr(key, "name", key)).strip("."))
    return ".".join(words)


@dataclass(frozen=True, slots=True)
class BatchStructure:
    """How the arguments are built.

    Attributes:
        spec: torch's tree spec of the tuple of arguments.
        names: name of each leaf, e.g. `batch.x`; a single argument adds nothing to the path.
        is_tensor: which leaves are tensors.
    """

    spec: pytree.TreeSpec
    names: tuple[str, ...]
    is_tensor: tuple[bool, ...]

    def tensors(self, args: Sequence[object]) -> dict[str, Tensor]:
        """Return the tensors in `args`, which must have this structure, under their inputs' names.

        Raises:
            CaptureError: if the structure differs.
        """
        leaves, spec = pytree.tree_flatten(opened(tuple(args)))
        if spec != self.spec:
            raise CaptureError("the batch has another structure than the one that was captured", hint="pass the same keys and lengths")
        return {name: leaf for name, leaf, keep in zip(self.names, leaves, self.is_tensor, strict=True) if keep}


def batch_structure(args: Sequence[object]) -> tuple[BatchStructure, list[object]]:
    """Return the structure of `args` and its leaves.

    Raises:
        CaptureError: if a leaf is neither a tensor nor a plain Python value.
    """
    flat, spec = pytree.tree_flatten_with_path(opened(tuple(args)))
    names, leaves = [], []
    for path, leaf in flat:
        text = _path_text(path[1:] if len(args) == 1 else path)
        names.append(f"batch.{text}" if text else "batch")
        leaves.append(leaf)
        if not isinstance(leaf, (Tensor, *_CONSTANTS)):
            raise CaptureError(
                f"{names[-1]!r} is a {type(leaf).__name__}",
                hint="pass tensors and plain Python values in containers, dataclasses or objects of your own; make arrays tensors first",
            )
    return BatchStructure(spec, tuple(names), tuple(isinstance(leaf, Tensor) for leaf in leaves)), leaves


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """A leaf of the step's result that the program computes.

    Attributes:
        is_number: whether the step returned a Python number (`loss.item()`), not a tensor.
    """

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class ResultStructure:
    """How the step's result is built from outputs of the program and constants."""

    spec: pytree.TreeSpec
    leaves: tuple[object, ...]

    def rebuild(self, outputs: Mapping[str, Tensor]) -> object:
        """Return what the step returns, given the tensor of each output by name."""
        made: list[object] = []
        for leaf in self.leaves:
            if isinstance(leaf, OutputLeaf):
                made.append(outputs[leaf.name].item() if leaf.is_number else outputs[leaf.name])
            else:
                made.append(leaf)
        return pytree.tree_unflatten(made, self.spec)


def result_structure(result: object) -> tuple[ResultStructure, list[tuple[str, object]]]:
    """Return the structure of what a step returned, and the leaves to compute with their outputs' names.

    Raises:
        CaptureError: if nothing in it is computed, or something in it would not be computed anew: a text of a number, an object that may
            hold tensors.
    """
    flat, spec = pytree.tree_flatten_with_path(opened(result))
    leaves: list[object] = []
    computed = []
    for path, leaf in flat:
        text = _path_text(path)
        name = f"result.{text}" if text else "result"
        is_number = isinstance(leaf, torch.SymFloat | torch.SymInt | torch.SymBool)
        if isinstance(leaf, Tensor) or is_number:
            leaves.append(OutputLeaf(name, is_number))
            computed.append((name, leaf))
        else:
            _check_constant(name, leaf, path)
            leaves.append(leaf)
    if not computed:
        raise CaptureError("the step returns no tensor", hint="return the loss (or a dict or tuple that holds it)")
    return ResultStructure(spec, tuple(leaves)), computed


def _check_constant(name: str, leaf: object, path: Sequence[object]) -> None:
    """Raise unless a part of the result, which will be the same at each step, may be so."""
    if any(UNKNOWN in text for text in (_path_text(path), leaf) if isinstance(text, str)):
        raise CaptureError(f"the step returns a text of a computed number in {name!r}", hint="return the number and format it outside")
    if not isinstance(leaf, (nn.Module, Optimizer)) and keep(leaf) is None:
        raise CaptureError(
            f"the step returns a {type(leaf).__name__} in {name!r}",
            hint="return tensors and plain Python values in containers, dataclasses or objects of your own",
        )
