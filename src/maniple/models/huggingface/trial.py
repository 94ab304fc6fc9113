"""Finds the batch that a model trains on, by calling its forward pass on tensors without storage."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from maniple.base.errors import ModelError
from maniple.models.huggingface.inputs import KNOWN, MODALITIES, Drawn, Sizes
from maniple.models.huggingface.targets import Batch, Target, targets, tensors_of

MOST_TRIALS: Final = 60
"""Calls of a forward pass before a model is given up."""


@dataclass(frozen=True, slots=True)
class Found:
    """A batch that a model trains on.

    Attributes:
        batch: what `forward` is called with.
        words: what the model learns.
        has_loss: whether the model returns its loss itself.
    """

    batch: Batch
    words: str
    has_loss: bool


class _Trials:
    """Calls of one model's forward pass under fake tensors; remembers what went wrong first."""

    def __init__(self, model: nn.Module, mode: FakeTensorMode | None) -> None:
        self.model = model
        self.mode = mode or FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.problem: Exception | None = None
        self.count = 0

    def call(self, batch: Batch) -> dict[str, Tensor] | None:
        """Return what the model computes from a batch of this form, None if it fails."""
        self.count += 1
        if self.count > MOST_TRIALS:
            return None
        with self.mode, torch.random.fork_rng(devices=[]):
            generator = torch.Generator()
            dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
            made = {key: item.draw(generator, dtype) if isinstance(item, Drawn) else item for key, item in batch.items()}
            try:
                return tensors_of(self.model(**made))
            except Exception as error:  # noqa: BLE001  # whatever the model's code makes of it
                self.problem = self.problem or error
                return None


def find_batch(model: nn.Module, sizes: Sizes, mode: FakeTensorMode | None) -> Found:
    """Return a batch that the model trains on: with labels if its class takes any that make it return a loss.

    Args:
        model: of the transformers library.
        sizes: config, rows and tokens.
        mode: whose fake tensors the parameters are, None if they are real.

    Raises:
        ModelError: if there is none.
    """
    names, required = _signature(model)
    unknown = [name for name in required if name not in KNOWN and name not in ("labels", "target_values")]
    kind = type(model).__name__
    if unknown:
        raise ModelError(f"{kind} must be given {', '.join(unknown)}, which cannot be made from its config", hint="FILE.py:FUNCTION")
    trials = _Trials(model, mode)
    for inputs in _inputs(model, names, required, sizes):
        outputs = trials.call(inputs) or {}
        logits = outputs.get("logits", next(iter(outputs.values()), None)) if outputs else None
        shape = tuple(logits.shape) if logits is not None else ()
        for target in targets(names, inputs, sizes, shape):
            if target.batch or "loss" in outputs:
                found = _with_loss(trials, inputs, target)
                if found is not None:
                    return found
    for inputs in _inputs(model, names, required, sizes):
        trials.count = 0
        outputs = trials.call(inputs) or {}
        if outputs:
            return Found(inputs, f"small {', '.join(outputs)}: mean squares, for want of labels that can be made", has_loss=False)
    told = " ".join(str(trials.problem).split())[:300] if trials.problem else "it returns no tensor that depends on a parameter"
    raise ModelError(f"{kind} does not run on a batch made from its config: {told}", hint="FILE.py:FUNCTION makes its own batch")


def _with_loss(trials: _Trials, inputs: Batch, target: Target) -> Found | None:
    batch = {**inputs, **target.batch}
    outputs = trials.call(batch) or {}
    loss = outputs.get("loss")
    if loss is None or loss.numel() != 1:
        return None
    return Found(batch, target.words, has_loss=True)


def _signature(model: nn.Module) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of the parameters of `forward`, and of those among them that must be given."""
    parameters = inspect.signature(model.forward).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return frozenset(p.name for p in named), tuple(p.name for p in named if p.default is p.empty)


def _inputs(model: nn.Module, names: frozenset[str], required: tuple[str, ...], sizes: Sizes) -> Iterator[dict[str, Drawn]]:
    """Yield what the model may read: what it must be given, then ever more of what it may be given."""
    main = str(getattr(model, "main_input_name", "input_ids"))
    needed = [name for name in required if name in KNOWN]
    first = [*needed, *([main] if main in names and main in KNOWN and not needed else [])]
    pairs = [*first, *(name for name in MODALITIES if name in names)]
    decoded = [*pairs, *(name for name in ("decoder_input_ids",) if name in names)]
    futures = [*pairs, *(name for name in ("future_values", "future_time_features") if name in names)]
    told = [*decoded, *(name for name in ("attention_mask", "token_type_ids", "bbox") if name in names)]
    seen: set[tuple[str, ...]] = set()
    for chosen in (first, pairs, decoded, futures, told):
        key = tuple(dict.fromkeys(chosen))
        if not key or key in seen:
            continue
        seen.add(key)
        for made in itertools.islice(itertools.product(*(KNOWN[name](sizes) for name in key)), 12):
            yield dict(zip(key, made, strict=True))


def draw(batch: Batch, seed: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return a batch of random tensors; the same seed gives the same."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {key: item.draw(generator, dtype) if isinstance(item, Drawn) else item for key, item in batch.items()}
    copies: Mapping[str, str] = {key: item.like for key, item in batch.items() if isinstance(item, Drawn) and item.like}
    return {key: made[copies[key]].clone() if key in copies else value for key, value in made.items()}
