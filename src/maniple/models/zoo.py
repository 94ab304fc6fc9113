"""The zoo: architectures by name, each in several sizes."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.optim import SGD, AdamW, Optimizer

from maniple.base.errors import ModelError
from maniple.models import bert, data, dlrm, gpt2, llama, lstm, mixtral, mlp, resnet, steps, t5, unet, vit
from maniple.models.workload import Batch, Size, Step, Workload

DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
)
"""Names of the dtypes that a model can be made in."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Attributes:
        description: one line.
        sizes: size name -> size; `tiny` is what the bare name means.
        build: (size, dropout rate) -> model, initialised.
        optimizer: (model, learning rate) -> optimizer.
        step: training step.
        batches: (size, batch, seq, seed) -> function from step number to batch.
        unit: what a batch holds.
    """

    description: str
    sizes: Mapping[str, Size]
    build: Callable[[Any, float], nn.Module]
    optimizer: Callable[[nn.Module, float], Optimizer]
    step: Step
    batches: Callable[[Any, int, int, int], Callable[[int], Batch]]
    unit: str


def _adamw(model: nn.Module, lr: float) -> Optimizer:
    return AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


def _adamw_matrices_decay(model: nn.Module, lr: float) -> Optimizer:
    """Decay matrices only, as the published GPT models do: two parameter groups."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, 0.95))


def _sgd(model: nn.Module, lr: float) -> Optimizer:
    return SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)


def _plain_sgd(model: nn.Module, lr: float) -> Optimizer:
    return SGD(model.parameters(), lr=lr)


def _heavy_sgd(model: nn.Module, lr: float) -> Optimizer:
    return SGD(model.parameters(), lr=lr, momentum=0.99)


def _rows(size: mlp.MLPSize, batch: int, _seq: int, seed: int) -> Callable[[int], Batch]:
    return data.classified(batch, (size.inputs,), size.classes, seed)


def _images(size: resnet.ResNetSize | vit.ViTSize, batch: int, _seq: int, seed: int) -> Callable[[int], Batch]:
    return data.classified(batch, (3, size.pixels, size.pixels), size.classes, seed)


def _text(_size: Size, batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    return data.next_character(batch, seq, seed)


def _next_text(_size: Size, batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    return data.next_text(batch, seq, seed)


def _segments(size: unet.UNetSize, batch: int, _seq: int, seed: int) -> Callable[[int], Batch]:
    return data.segmented(batch, size.inputs, size.pixels, size.labelled, size.classes, seed)


def _clicks(size: dlrm.DLRMSize, batch: int, _seq: int, seed: int) -> Callable[[int], Batch]:
    return data.clicks(batch, size.dense, size.tables, size.lookups, seed)


def _masked_text(_size: Size, batch: int, seq: int, seed: int) -> Callable[[int], Batch]:
    return data.masked_characters(batch, seq, seed)


ZOO: Final[Mapping[str, Family]] = MappingProxyType({
    "mlp": Family("multilayer perceptron", mlp.SIZES, mlp.MLP, _adamw, steps.train_classifier, _rows, "rows"),
    "gpt2": Family(
        "GPT-2: fused attention matrix, learned positions, tied head",
        gpt2.SIZES, gpt2.GPT2, _adamw_matrices_decay, steps.train_language_model, _text, "tokens",
    ),
    "llama": Family(
        "Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention",
        llama.SIZES, llama.Llama, _adamw, steps.train_language_model, _text, "tokens",
    ),
    "bert": Family(
        "BERT: post-norm, token types, masked language model with tied decoder",
        bert.SIZES, bert.Bert, _adamw, steps.train_masked_language_model, _masked_text, "tokens",
    ),
    "resnet": Family(
        "ResNet: convolutions around shortcuts, batch norm",
        resnet.SIZES, resnet.ResNet, _sgd, steps.train_classifier, _images, "images",
    ),
    "mixtral": Family(
        "Mixtral: Llama with experts, of which each token takes two",
        mixtral.SIZES, mixtral.Mixtral, _adamw, steps.train_mixture, _text, "tokens",
    ),
    "vit": Family(
        "vision transformer: patches, class token, learned positions",
        vit.SIZES, vit.ViT, _adamw, steps.train_classifier, _images, "images",
    ),
    "t5": Family(
        "T5: encoder and decoder, scores with learned distances, RMSNorm",
        t5.SIZES, t5.T5, _adamw, steps.train_sequence_to_sequence, _next_text, "tokens",
    ),
    "lstm": Family(
        "LSTM language model, gradients clipped by norm",
        lstm.SIZES, lstm.LSTM, _plain_sgd, steps.train_recurrent, _text, "tokens",
    ),
    "dlrm": Family(
        "DLRM: embedding tables, dot products of pairs, two perceptrons",
        dlrm.SIZES, dlrm.DLRM, _plain_sgd, steps.train_recommender, _clicks, "rows",
    ),
    "unet": Family(
        "U-Net: contracting and expanding convolutions, a class for each pixel",
        unet.SIZES, unet.UNet, _heavy_sgd, steps.train_classifier, _segments, "images",
    ),
})  # fmt: skip
"""Every architecture by name."""


def make(
    name: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str = "float32",
    dropout: float = 0.0,
    seed: int = 0,
    fake: bool = False,
) -> Workload:
    """Return a workload of the zoo.

    Args:
        name: architecture, or architecture and size: `gpt2`, `gpt2:small`.
        batch: rows of a batch, the size's own by default.
        seq: tokens per row, the size's own by default.
        dtype: of parameters, buffers and batch: a key of `DTYPES`.
        dropout: rate; published models that have dropout say 0.1.
        seed: of weights and data.
        fake: make fake tensors, which have no storage, so that any size can be captured on any machine.

    Raises:
        ModelError: if there is no such model, or it cannot be made so.
    """
    family, size = _find(name)
    rows = size.batch if batch is None else batch
    tokens = _sequence(name, size, seq)
    kind = dtype_named(dtype)
    if rows < 1:
        raise ModelError(f"{name} needs at least one row in its batch, got batch={rows}")
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout={dropout} is not a rate", hint="a number from 0 on, below 1")
    with world(seed, fake=fake):
        model = family.build(size, dropout)
        optimizer = family.optimizer(model, size.lr)
        cast(model, optimizer, kind)
        batches = _converted(family.batches(size, rows, tokens, seed), kind)
        first = batches(0)
    if fake:  # data would mix real with fake
        batches = _always(first)
    samples = rows * (tokens or 1)
    return Workload(name, family.description, family.step, model, optimizer, first, batches, samples, family.unit)


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype called `name`.

    Raises:
        ModelError: if a model cannot be made in it.
    """
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {name!r}", hint=", ".join(DTYPES))
    return DTYPES[name]


def cast(model: nn.Module, optimizer: Optimizer, dtype: torch.dtype) -> None:
    """Convert floating-point parameters and buffers, in place where torch can: fake parameters are replaced, in the optimizer as well."""
    if not any(isinstance(x, FakeTensor) for x in model.parameters()):
        model.to(dtype)
        return
    new = {p: nn.Parameter(p.detach().to(dtype), p.requires_grad) if p.is_floating_point() else p for p in model.parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, new[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(dtype))
    for group in optimizer.param_groups:
        group["params"] = [new.get(p, p) for p in group["params"]]


def _find(name: str) -> tuple[Family, Size]:
    architecture, _, size = name.partition(":")
    if architecture not in ZOO:
        close = difflib.get_close_matches(architecture, list(ZOO), n=1)
        hint = (f"did you mean {close[0]}? " if close else "") + f"known are {', '.join(ZOO)}, hf:PATH, or FILE.py:FUNCTION"
        raise ModelError(f"unknown model {architecture!r}", hint=hint)
    sizes = ZOO[architecture].sizes
    if (size or "tiny") not in sizes:
        raise ModelError(f"{architecture} has no size {size!r}", hint="one of " + ", ".join(f"{architecture}:{s}" for s in sizes))
    return ZOO[architecture], sizes[size or "tiny"]


def _sequence(name: str, size: Size, seq: int | None) -> int:
    if seq is None:
        return size.seq
    if not size.positions:
        raise ModelError(f"{name} has no sequence, but seq={seq} was asked for", hint="leave out --seq")
    if not 1 <= seq <= size.positions:
        raise ModelError(f"{name} takes sequences of 1 to {size.positions} tokens, got seq={seq}", hint=f"--seq {size.positions}")
    return seq


@contextlib.contextmanager
def world(seed: int, *, fake: bool) -> Iterator[None]:
    """Seed torch inside, leave its random state as it was outside; make fake tensors if asked to."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) if fake else contextlib.nullcontext()
    with torch.random.fork_rng(devices=[]), mode:
        torch.manual_seed(seed)
        yield


def _always(batch: Batch) -> Callable[[int], Batch]:
    return lambda _step: batch


def _converted(batches: Callable[[int], Batch], dtype: torch.dtype) -> Callable[[int], Batch]:
    def make_one(step: int) -> Batch:
        return {key: x.to(dtype) if x.is_floating_point() else x for key, x in batches(step).items()}

    return make_one
