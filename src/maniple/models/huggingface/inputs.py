"""Example inputs of a model: what a forward signature asks for, in the sizes that the config gives.

A parameter of `forward` is known by its name, which the library uses alike for all models: `input_ids`, `pixel_values`,
`past_values`. Where a name stands for several layouts (a waveform or a spectrogram), there is a candidate for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from maniple.models.huggingface.config import configs


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor to draw.

    Attributes:
        shape: its shape.
        high: integers are drawn from [0, high); 0 stands for normal floats, 2 with `bits` for booleans.
        low: integers are drawn from here on.
        avoid: integers that stand for something else than text, not drawn.
        bits: whether booleans are drawn.
        like: name of the tensor that this one equals, if not empty.
        ones: whether it is all ones.
    """

    shape: tuple[int, ...]
    high: int = 0
    low: int = 0
    avoid: frozenset[int] = frozenset()
    bits: bool = False
    like: str = ""
    ones: bool = False

    def draw(self, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Return the tensor; floats in `dtype`."""
        if self.ones:
            return torch.ones(self.shape, dtype=torch.int64 if self.high else dtype)
        if self.bits:
            return torch.rand(self.shape, generator=generator) < 0.5
        if not self.high:
            return torch.randn(self.shape, generator=generator).to(dtype)
        found = torch.randint(self.low, max(self.high, self.low + 1), self.shape, generator=generator)
        plain = next((i for i in range(self.low, self.high) if i not in self.avoid), self.low)
        for special in sorted(self.avoid):
            found = torch.where(found == special, torch.full_like(found, plain), found)
        return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a batch is made from.

    Attributes:
        config: of the model.
        batch: rows.
        seq: tokens or frames per row.
    """

    config: Any
    batch: int
    seq: int

    def find(self, *names: str, near: Sequence[str] = ()) -> Any:
        """Return the first entry of these names that the config has, None if there is none.

        Args:
            names: in the order of preference.
            near: words; parts of the config under such a name are looked into first.
        """
        for part in _ordered(self.config, near):
            for name in names:
                value = getattr(part, name, None)
                if value is not None:
                    return value
        return None

    def text(self, *, decoder: bool = False) -> Any:
        """Return the config of the part that reads text."""
        found = self.config.get_text_config(decoder=True) if decoder else self.config.get_text_config()
        return found if getattr(found, "vocab_size", None) is not None else next(
            (part for part in configs(self.config) if getattr(part, "vocab_size", None) is not None), found
        )  # fmt: skip

    def special(self) -> frozenset[int]:
        """Return the ids that the config gives a meaning to."""
        found: set[int] = set()
        for part in configs(self.config):
            for key, value in vars(part).items():
                if key.endswith(("_token_id", "_token_index")) and isinstance(value, int):
                    found.add(value)
        return frozenset(found)


def _ordered(config: Any, near: Sequence[str]) -> Iterator[Any]:
    """Yield the parts of a config, those under a name with a word of `near` first."""
    named = [getattr(config, key) for key in vars(config) if any(word in key for word in near)]
    for part in named:
        if hasattr(part, "to_dict"):
            yield from configs(part)
    yield from configs(config)


def tokens(sizes: Sizes, *, decoder: bool = False) -> Drawn:
    """Return ids of text."""
    vocab = getattr(sizes.text(decoder=decoder), "vocab_size", None) or 2
    return Drawn((sizes.batch, sizes.seq), high=int(vocab), avoid=sizes.special())


def _tokens(sizes: Sizes) -> list[Drawn]:
    return [tokens(sizes)]


def _decoder_tokens(sizes: Sizes) -> list[Drawn]:
    return [tokens(sizes, decoder=True)]


def _types(sizes: Sizes) -> list[Drawn]:
    return [Drawn((sizes.batch, sizes.seq), high=int(sizes.find("type_vocab_size") or 1))]


def _mask(sizes: Sizes) -> list[Drawn]:
    return [Drawn((sizes.batch, sizes.seq), high=2, ones=True)]


def _boxes(sizes: Sizes) -> list[Drawn]:
    return [Drawn((sizes.batch, sizes.seq, 4), high=2, ones=True)]


_IMAGE: Final = ("vision", "image", "encoder", "backbone")


def image(sizes: Sizes) -> tuple[int, int, int]:
    """Return channels, height and width of an image."""
    channels = int(sizes.find("num_channels", "in_channels", "in_chans", near=_IMAGE) or 3)
    size = sizes.find("image_size", "img_size", "input_size", near=_IMAGE) or 224
    if isinstance(size, Mapping):
        size = (size.get("height", 224), size.get("width", 224))
    height, width = (int(n) for n in size[-2:]) if isinstance(size, list | tuple) else (int(size), int(size))
    return channels, height, width


def _images(sizes: Sizes) -> list[Drawn]:
    shape = image(sizes)
    frames = int(sizes.find("num_frames", near=_IMAGE) or 2)
    return [Drawn((sizes.batch, *shape)), Drawn((sizes.batch, frames, *shape)), Drawn((sizes.batch, 1, *shape))]


def _patches_masked(sizes: Sizes) -> list[Drawn]:
    _, height, width = image(sizes)
    patch = sizes.find("patch_size", near=_IMAGE) or 16
    high, wide = (patch, patch) if isinstance(patch, int) else tuple(patch)[-2:]
    count = (height // high) * (width // wide)
    frames = int(sizes.find("num_frames", near=_IMAGE) or 1) // int(sizes.find("tubelet_size", near=_IMAGE) or 1)
    found = [Drawn((sizes.batch, count), bits=True), Drawn((sizes.batch, max(frames, 1) * count), bits=True)]
    return found if frames > 1 else found[:1]


def _waves(sizes: Sizes) -> list[Drawn]:
    """Return a waveform long enough for `seq` frames, and a spectrogram."""
    strides = sizes.find("conv_stride", near=("audio", "speech")) or (320,)
    samples = math.prod(int(n) for n in strides) * (sizes.seq + 1)
    return [Drawn((sizes.batch, samples)), *_spectrograms(sizes)]


def _spectrograms(sizes: Sizes) -> list[Drawn]:
    """Return a spectrogram, time before and after its bins, of fixed length where the config has one."""
    near = ("audio", "speech", "encoder")
    bins = int(sizes.find("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", near=near) or 80)
    positions = sizes.find("max_source_positions", near=near)
    length = sizes.find("max_length", "spec_size", near=near)
    lengths = [int(length)] if isinstance(length, int) and length > bins // 2 and positions is None else []
    lengths += [2 * int(positions)] if positions else []
    lengths += [4 * sizes.seq]
    shapes = [shape for n in lengths for shape in ((sizes.batch, n, bins), (sizes.batch, bins, n), (sizes.batch, 1, n, bins))]
    return [Drawn(shape) for shape in shapes]


def _series(sizes: Sizes, length: int) -> list[Drawn]:
    channels = int(sizes.find("num_input_channels", "input_size") or 1)
    rows, columns = Drawn((sizes.batch, length)), Drawn((sizes.batch, length, channels))
    return [columns, rows] if channels > 1 or sizes.find("num_input_channels") else [rows, columns]


def _past_length(sizes: Sizes) -> int:
    """Return how many numbers of a series the model reads: its context, and the largest lag before it."""
    lags = sizes.find("lags_sequence") or (0,)
    return int(sizes.find("context_length") or sizes.find("prediction_length") or sizes.seq) + max(int(n) for n in lags)


def _future_length(sizes: Sizes) -> int:
    return int(sizes.find("prediction_length", "horizon_length") or 1)


def _past(sizes: Sizes) -> list[Drawn]:
    return _series(sizes, _past_length(sizes))


def _observed(sizes: Sizes) -> list[Drawn]:
    return [Drawn(item.shape, ones=True) for item in _past(sizes)]


def _past_features(sizes: Sizes) -> list[Drawn]:
    return [Drawn((sizes.batch, _past_length(sizes), int(sizes.find("num_time_features") or 1)))]


def _future(sizes: Sizes) -> list[Drawn]:
    return _series(sizes, _future_length(sizes))


def _future_features(sizes: Sizes) -> list[Drawn]:
    return [Drawn((sizes.batch, _future_length(sizes), int(sizes.find("num_time_features") or 1)))]


KNOWN: Final[Mapping[str, Callable[[Sizes], list[Drawn]]]] = MappingProxyType(
    {
        "input_ids": _tokens,
        "decoder_input_ids": _decoder_tokens,
        "token_type_ids": _types,
        "attention_mask": _mask,
        "decoder_attention_mask": _mask,
        "bbox": _boxes,
        "pixel_values": _images,
        "bool_masked_pos": _patches_masked,
        "input_values": _waves,
        "input_features": _spectrograms,
        "past_values": _past,
        "past_observed_mask": _observed,
        "past_time_features": _past_features,
        "future_values": _future,
        "future_time_features": _future_features,
    }
)
"""For each parameter of a forward signature the tensors that it may be, likelier ones first."""

MODALITIES: Final = ("input_ids", "pixel_values", "input_values", "input_features", "past_values")
"""What a model may read; a model of pairs needs several, whatever its signature says."""
