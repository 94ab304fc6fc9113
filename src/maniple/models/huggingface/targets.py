"""What a model is trained to: the labels that its class takes, or else its own outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from maniple.models.huggingface.inputs import KNOWN, Drawn, Sizes, image, tokens

Batch = Mapping[str, Drawn | bool]
"""What `forward` is called with: tensors to draw, and flags."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is added to the inputs so that the model returns a loss, and how to call it."""

    words: str
    batch: Batch


def targets(names: frozenset[str], inputs: Mapping[str, Drawn], sizes: Sizes, logits: tuple[int, ...]) -> Iterator[Target]:
    """Yield what may make the model return a loss, likelier targets first.

    Args:
        names: parameters of the forward signature.
        inputs: what the model reads.
        sizes: of the batch.
        logits: shape of the model's logits, empty if it returns none without labels.
    """
    if {"start_positions", "end_positions"} <= names:
        place = Drawn((sizes.batch,), high=sizes.seq)
        yield Target("start and end of an answer", {"start_positions": place, "end_positions": place})
    if "labels" in names:
        for words, labels in _labels(inputs, sizes, logits):
            found: dict[str, Drawn | bool] = {"labels": labels}
            yield Target(words, found)
            pair: dict[str, Drawn | bool] = {
                key: Drawn((sizes.batch,), high=2) for key in ("next_sentence_label", "sentence_order_label") if key in names
            }
            if pair:
                yield Target(f"{words}, and the order of sentences", {**found, **pair})
    for name in ("future_values", "target_values"):
        if name in names:
            yield from _series_targets(name, names, sizes)
    if "return_loss" in names:
        yield Target("which text belongs to which image", {"return_loss": True})
    if "bool_masked_pos" in names and "bool_masked_pos" not in inputs:
        for mask in KNOWN["bool_masked_pos"](sizes):
            yield Target("masked patches", {"bool_masked_pos": mask})
    yield Target("its own loss", {})


def _labels(inputs: Mapping[str, Drawn], sizes: Sizes, logits: tuple[int, ...]) -> Iterator[tuple[str, Drawn]]:
    classes = (logits[1] if len(logits) == 4 else logits[-1]) if logits else int(sizes.find("num_labels") or 2)
    ids = inputs.get("input_ids")
    vocab = getattr(sizes.text(decoder=True), "vocab_size", None)
    reads_text = ids is not None and len(logits) == 3 and logits[1] == sizes.seq
    if reads_text and vocab is not None and classes >= vocab and "decoder_input_ids" not in inputs:
        yield "the text itself", replace(ids, like="input_ids") if ids is not None else tokens(sizes)
    if len(logits) == 3 and logits[:2] == (sizes.batch, sizes.seq):
        yield "a class of each token", Drawn(logits[:2], high=classes)
    if len(logits) == 4:
        _, height, width = image(sizes)
        yield "a class of each pixel", Drawn((sizes.batch, height, width), high=classes)
    if len(logits) == 2 and classes > 1:
        yield "a class of each row", Drawn((sizes.batch,), high=classes)
    if vocab is not None:
        yield "a text", replace(tokens(sizes, decoder=True), low=1, shape=(sizes.batch, max(sizes.seq // 2, 1)))
    yield "numbers of each row", Drawn((sizes.batch, *logits[1:]) if logits else (sizes.batch,))
    yield "a class of each row", Drawn((sizes.batch,), high=max(classes, 2))
    if len(logits) == 3:
        yield "a depth of each pixel", Drawn((sizes.batch, *logits[1:]))


def _series_targets(name: str, names: frozenset[str], sizes: Sizes) -> Iterator[Target]:
    features = {key: item for key in ("future_time_features",) if key in names for item in KNOWN[key](sizes)}
    for future in KNOWN["future_values"](sizes):
        yield Target("what comes next", {name: future, **features})
    yield Target("a class of each row", {name: Drawn((sizes.batch,), high=int(sizes.find("num_targets", "num_labels") or 2))})
    count = int(sizes.find("num_targets") or 1)
    yield Target("numbers of each row", {name: Drawn((sizes.batch, count))})


def tensors_of(outputs: Any) -> dict[str, Tensor]:
    """Return the floating-point tensors with a gradient among what a model returns, by name."""
    items = outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs if isinstance(outputs, tuple | list) else [outputs])
    return {str(key): value for key, value in items if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad}
