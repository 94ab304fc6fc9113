"""Data that every machine has: the source of Python's standard library, and made-up images, rows and clicks.

Each function returns a function from the number of a step to its batch. The same seed and number give the same batch.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from maniple.base.errors import ModelError
from maniple.models.workload import Batch

CORPUS_BYTES: Final = 1 << 20
"""Characters of text that are read at most."""

NUM_CHARACTERS: Final = 128
"""Token ids of text: one per ASCII character."""

MASK_TOKEN: Final = 1
"""A control character that no source file holds; stands for a masked token. 0 is padding."""

IGNORED_LABEL: Final = -100
"""Label of the positions that do not count in the loss."""

MASKED_SHARE: Final = 0.15
"""Share of the tokens that a masked language model predicts (Devlin et al. 2018, 3.1)."""


def read_corpus(limit: int = CORPUS_BYTES) -> Tensor:
    """Return the first `limit` characters of the standard library's source as i64 ids, others than ASCII as `?`.

    Raises:
        ModelError: if this Python comes without its source.
    """
    pieces, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace").encode("ascii", errors="replace")
        pieces.append(text)
        size += len(text)
        if size >= limit:
            break
    corpus = b"".join(pieces)[:limit]
    if not corpus:
        raise ModelError(
            "this Python comes without the source of its standard library", hint="use a Python that python -c 'import this' works in"
        )
    return torch.frombuffer(bytearray(corpus), dtype=torch.uint8).long()


def _generator(seed: int, step: int) -> torch.Generator:
    """Return a generator that no other seed and step share (up to a million steps); torch's looks at 32 bits only."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**32)


def _windows(corpus: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Return `batch` runs of `length` characters, [batch, length]; the corpus repeats if it is shorter."""
    starts = torch.randint(len(corpus), (batch, 1), generator=generator)
    return corpus[(starts + torch.arange(length)) % len(corpus)]


def next_character(batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `x`, `y`: i64[batch, seq] each, `y` one character on from `x`."""
    corpus = read_corpus()

    def make(step: int) -> Batch:
        tokens = _windows(corpus, batch, seq + 1, _generator(seed, step))
        return {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()}

    return make


def next_text(batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `x`, `y`: i64[batch, seq] each, `y` the text that follows `x`."""
    corpus = read_corpus()

    def make(step: int) -> Batch:
        tokens = _windows(corpus, batch, 2 * seq, _generator(seed, step))
        return {"x": tokens[:, :seq].contiguous(), "y": tokens[:, seq:].contiguous()}

    return make


def masked_characters(batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `input_ids`, `token_type_ids`, `labels`: i64[batch, seq] each.

    Of the tokens chosen to be predicted 80 % are masked, 10 % replaced and 10 % left (Devlin et al. 2018, 3.1). The second half of each
    row is of token type 1.
    """
    corpus = read_corpus()

    def make(step: int) -> Batch:
        generator = _generator(seed, step)
        tokens = _windows(corpus, batch, seq, generator)
        chosen = torch.rand((batch, seq), generator=generator) < MASKED_SHARE
        how = torch.rand((batch, seq), generator=generator)
        other = torch.randint(NUM_CHARACTERS, (batch, seq), generator=generator)
        ids = torch.where(chosen & (how < 0.8), torch.full_like(tokens, MASK_TOKEN), tokens)
        ids = torch.where(chosen & (how >= 0.9), other, ids)
        types = (torch.arange(seq) >= seq // 2).long().expand(batch, seq).contiguous()
        return {"input_ids": ids, "token_type_ids": types, "labels": torch.where(chosen, tokens, torch.full_like(tokens, IGNORED_LABEL))}

    return make


def classified(batch: int, shape: tuple[int, ...], classes: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `x`: f32[batch, *shape] and `y`: i64[batch]; each class is a fixed pattern under noise."""

    def make(step: int) -> Batch:
        generator = _generator(seed, step)
        labels = torch.randint(classes, (batch,), generator=generator)
        positions = torch.arange(shape[-1], dtype=torch.float32)
        pattern = torch.sin((labels[:, None] + 1) * (positions + 1) * 0.37)
        pattern = pattern.reshape(batch, *(1,) * (len(shape) - 1), shape[-1])
        return {"x": pattern + 0.5 * torch.randn((batch, *shape), generator=generator), "y": labels}

    return make


def segmented(batch: int, channels: int, pixels: int, labelled: int, classes: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `x`: f32[batch, channels, pixels, pixels] and `y`: i64[batch, labelled, labelled], the classes of the middle.

    The classes lie in stripes of another direction in each image, and each is a brightness under noise.
    """

    def make(step: int) -> Batch:
        generator = _generator(seed, step)
        angle = 3.1416 * torch.rand((batch, 1, 1), generator=generator)
        at = torch.linspace(0, 1, pixels)
        across = at[None, :, None] * angle.sin() + at[None, None, :] * angle.cos()
        kinds = ((across + 1) * 4).long() % classes
        noise = 0.3 * torch.randn((batch, channels, pixels, pixels), generator=generator)
        edge = (pixels - labelled) // 2
        inside = slice(edge, edge + labelled)
        return {"x": kinds[:, None].float() + noise, "y": kinds[:, inside, inside].contiguous()}

    return make


def clicks(batch: int, dense: int, tables: Sequence[int], lookups: int, seed: int) -> Callable[[int], Batch]:
    """Return batches `dense`: f32[batch, dense], `categories`: i64[batch, tables, lookups] and `y`: f32[batch], 0 or 1."""

    def make(step: int) -> Batch:
        generator = _generator(seed, step)
        x = torch.randn((batch, dense), generator=generator)
        found = [torch.randint(rows, (batch, lookups), generator=generator) for rows in tables]
        liked = x.sum(1) + sum((ids % 3 - 1).sum(1) for ids in found)
        return {"dense": x, "categories": torch.stack(found, dim=1), "y": (liked > 0).float()}

    return make
