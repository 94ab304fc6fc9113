"""`hf:PATH`: the training step of a model that a config.json describes."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim import AdamW, Optimizer

from maniple.base.errors import ManipleError, ModelError
from maniple.models.huggingface.config import configs, import_transformers, make_config, model_class, read_config
from maniple.models.huggingface.inputs import Drawn, Sizes
from maniple.models.huggingface.targets import tensors_of
from maniple.models.huggingface.trial import Found, draw, find_batch
from maniple.models.workload import Step, Workload
from maniple.models.zoo import cast, dtype_named

PREFIX: Final = "hf:"

ROWS: Final = 8
"""Rows of a batch, if the user does not say otherwise."""

TOKENS: Final = 128
"""Tokens per row, if the user does not say otherwise and the model takes twice as many."""

MOST_MODULES: Final = 20_000
"""Modules of a model; the largest published ones have some 5,000."""

LEARNING_RATE: Final = 1e-3


def is_config(text: str) -> bool:
    """Return whether `text` names a config.json.

    >>> is_config("hf:models/gpt2"), is_config("gpt2")
    (True, False)
    """
    return text.startswith(PREFIX)


def load_config(
    text: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str = "float32",
    dropout: float = 0.0,
    seed: int = 0,
    fake: bool = False,
) -> Workload:
    """Return the workload that `hf:PATH` names.

    Weights are random, the batch is drawn from what the class's forward signature and the config say, and the loss is the model's own
    where its class takes labels. Nothing is fetched and no code of the file is run.

    Args:
        text: `hf:PATH`; PATH is a config.json or the folder that holds it.
        batch: rows of a batch, 8 by default.
        seq: tokens or frames per row; by default 128, or half of the positions that the model has.
        dtype: of parameters, buffers and batch.
        dropout: every rate of dropping that the config has becomes this; layers are never dropped whole.
        seed: of weights and data.
        fake: make fake tensors, which have no storage.

    Raises:
        ModelError: if there is no such file, or its model cannot be trained.
    """
    path = Path(text.removeprefix(PREFIX))
    entries = read_config(path)
    if batch is not None and batch < 1:
        raise ModelError(f"{text} needs at least one row in its batch, got batch={batch}")
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout={dropout} is not a rate", hint="a number from 0 on, below 1")
    kind, precision = model_class(entries, path), dtype_named(dtype)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) if fake else None
    with torch.random.fork_rng(devices=[]), _quiet_and_offline():
        torch.manual_seed(seed)
        config = make_config(kind, entries, path, dropout)
        model = _build(kind, config, path, mode)
        sizes = Sizes(config, batch or ROWS, _sequence(text, config, seq))
        with mode or contextlib.nullcontext():
            optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=0.01)
        found = find_batch(model, sizes, mode)
        cast(model, optimizer, precision)
    batches = _batches(found, seed, precision, mode)
    description = f"{kind.__name__}, learning {found.words}"
    is_text = any(isinstance(item, Drawn) and item.high and len(item.shape) == 2 for item in found.batch.values())
    samples, unit = (sizes.batch * sizes.seq, "tokens") if is_text else (sizes.batch, "rows")
    step: Step = _train_with_loss if found.has_loss else _train_on_outputs
    return Workload(text, description, step, model, optimizer, batches(0), batches, samples, unit)


def _train_with_loss(model: nn.Module, optimizer: Optimizer, batch: dict[str, Any]) -> Tensor:
    """Follow the loss that the model returns; return it, rank 0."""
    loss: Tensor = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _train_on_outputs(model: nn.Module, optimizer: Optimizer, batch: dict[str, Any]) -> Tensor:
    """Bring the mean squares of all outputs down; return their sum, rank 0."""
    squares = [x.square().mean() for x in tensors_of(model(**batch)).values()]
    loss = torch.stack(squares).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _batches(found: Found, seed: int, dtype: torch.dtype, mode: FakeTensorMode | None) -> Callable[[int], dict[str, Any]]:
    def make(step: int) -> dict[str, Any]:
        with mode or contextlib.nullcontext():
            return draw(found.batch, (seed * 1_000_003 + step) % 2**32, dtype)

    return make


def _sequence(text: str, config: Any, seq: int | None) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length")
    known = [int(value) for part in configs(config) for name in names if isinstance(value := getattr(part, name, None), int) and value > 0]
    if seq is None:
        return max(min([TOKENS, *(n // 2 for n in known)]), 1)
    if seq < 1 or (known and seq > min(known)):
        raise ModelError(f"{text} takes sequences of 1 to {min(known, default='any')} tokens, got seq={seq}", hint="leave out --seq")
    return seq


def _build(kind: Any, config: Any, path: Path, mode: FakeTensorMode | None) -> nn.Module:
    """Return the model, with random weights or, under `mode`, with fake ones."""
    count = 0

    def counted(_module: object, _name: object, _child: object) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise ModelError(f"{path} describes a model of more than {MOST_MODULES:,} modules", hint="fewer layers")

    handle = register_module_module_registration_hook(counted)
    try:
        with torch.device("meta") if mode is not None else contextlib.nullcontext():
            model: nn.Module = kind(_one_graph(config))
    except ManipleError:
        raise
    except Exception as error:  # whatever the model's code makes of the config
        told = " ".join(str(error).split())[:300]
        raise ModelError(f"{kind.__name__} cannot be made from {path}: {type(error).__name__}: {told}", hint="check the config") from error
    finally:
        handle.remove()
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError(f"{kind.__name__} has no parameter to train", hint="name the class of a model with weights")
    _give_padding(model, config)
    if mode is not None:
        _make_fake(model, mode)
    return model.train()


def _one_graph(config: Any) -> Any:
    """Choose, for experts, the implementation that has one graph whatever the routing, in every dtype."""
    config._experts_implementation = "batched_mm"  # noqa: SLF001  # how the library's own constructor is told
    return config


def _give_padding(model: nn.Module, config: Any) -> None:
    """Name a padding and a starting token where the config has none; heads over whole rows ask for them."""
    for part in configs(config):
        if getattr(part, "pad_token_id", 0) is None:
            end = getattr(part, "eos_token_id", None)
            part.pad_token_id = end if isinstance(end, int) else 0
        if getattr(part, "decoder_start_token_id", 0) is None:
            part.decoder_start_token_id = getattr(part, "pad_token_id", 0)
    model.config = config


def _make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    """Replace every tensor of the model, which is on the meta device, by a fake one on the CPU."""
    known: dict[int, Tensor] = {}

    def fake(x: Tensor) -> Tensor:
        if id(x) not in known:
            with mode:
                made: Tensor = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
            known[id(x)] = nn.Parameter(made, x.requires_grad) if isinstance(x, nn.Parameter) else made
        return known[id(x)]

    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:  # noqa: SLF001  # tied ones too
            if tensor is not None:
                setattr(module, name, fake(tensor))
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                setattr(module, name, fake(value))


@contextlib.contextmanager
def _quiet_and_offline() -> Iterator[None]:
    """Let the library say nothing, and reach nothing."""
    hub: Any = importlib.import_module("huggingface_hub.constants")
    log = import_transformers().utils.logging
    level, offline = log.get_verbosity(), hub.HF_HUB_OFFLINE
    tracing = logging.getLogger("torch._subclasses.fake_tensor")  # tells each failed trial with its traceback
    tracing_level = tracing.level
    log.set_verbosity_error()
    tracing.setLevel(logging.CRITICAL)
    hub.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.HF_HUB_OFFLINE = offline
        tracing.setLevel(tracing_level)
        log.set_verbosity(level)
