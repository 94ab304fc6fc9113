"""Reads a config.json: plain data of bounded size, of which nothing is run or fetched."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from torch import nn

from maniple.base.errors import ModelError

MAX_BYTES: Final = 4 << 20
"""Size of the largest config.json that is read; published ones, with the names of 21,841 classes, stay below 2 MB."""

FILE: Final = "config.json"

_IGNORED: Final = frozenset({
    "auto_map", "custom_pipelines", "quantization_config", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "_experts_implementation_internal", "use_kernels", "use_pretrained_backbone",
})  # fmt: skip
"""Entries that would have code or weights fetched, or that choose kernels."""


def read_config(path: Path) -> dict[str, Any]:
    """Return what a config.json says, without the entries that would have code or weights fetched.

    Args:
        path: the file, or the folder that holds it.

    Raises:
        ModelError: if there is no such file, or it is no JSON object, or too large.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"there is no file {str(file)!r}", hint="hf:PATH, where PATH is a config.json or the folder that holds one")
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ModelError(f"{file} has {size:,} bytes; a config.json has less than {MAX_BYTES:,}", hint="name the config.json, not weights")
    try:
        found = orjson.loads(file.read_bytes())
    except (orjson.JSONDecodeError, OSError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}", hint="the config.json of a model on the Hugging Face Hub") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds a JSON {type(found).__name__}, not an object", hint='{"architectures": [...], ...}')
    return _without_ignored(found)


def _without_ignored(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _without_ignored(value) if isinstance(value, dict) else value for key, value in entries.items() if key not in _IGNORED}


def import_transformers() -> Any:
    """Return the transformers library.

    Raises:
        ModelError: if it is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise ModelError("hf: needs the transformers library, which is not installed", hint="pip install 'maniple[hf]'") from error


def model_class(entries: Mapping[str, Any], where: Path) -> type[nn.Module]:
    """Return the class of the transformers library that the config's `architectures` names.

    Raises:
        ModelError: if it names none, or none that can be trained.
    """
    transformers = import_transformers()
    names = entries.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(
            f"{where} does not say which class its model is of", hint='add "architectures": ["NAME"], NAME a class of transformers'
        )
    name = names[0]
    found: Any = getattr(transformers, name, None) if name.isidentifier() and not name.startswith("_") else None
    if found is None:
        close = difflib.get_close_matches(name, [known for known in dir(transformers) if known[:2] == name[:2]], n=1)
        hint = f"did you mean {close[0]}?" if close else "models whose code comes with the weights are not run"
        raise ModelError(f"transformers {transformers.__version__} has no class {name!r}, which {where} asks for", hint=hint)
    if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)):
        raise ModelError(f"{name!r}, which {where} asks for, is not a model", hint="name a class such as the ...ForCausalLM of the model")
    kind: Any = found
    if kind.forward is nn.Module.forward or kind.config_class is None:
        raise ModelError(f"{name!r}, which {where} asks for, has no forward pass", hint="name the class of a whole model")
    model: type[nn.Module] = kind
    return model


def make_config(kind: Any, entries: Mapping[str, Any], where: Path, dropout: float) -> Any:
    """Return the config object of a model class, set for training in one graph.

    Args:
        kind: the model's class.
        entries: what the file says.
        where: the file, for messages.
        dropout: what every rate of dropping becomes; layers that are dropped whole would be a branch, and are kept.

    Raises:
        ModelError: if the class's config does not take the entries.
    """
    try:
        config = kind.config_class.from_dict(dict(entries))
    except Exception as error:  # whatever its validation raises
        raise ModelError(f"{where}: {_first_line(error)}", hint=f"what {kind.config_class.__name__} takes") from error
    for part in configs(config):
        for key, value in list(vars(part).items()):
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0 if "layer" in key else dropout)
        for key, setting in (("use_cache", False), ("return_dict", True), ("apply_spec_augment", False)):
            if hasattr(part, key):
                setattr(part, key, setting)
    return config


def configs(config: Any) -> Iterator[Any]:
    """Yield a config and the configs of its parts, outermost first."""
    base = import_transformers().PretrainedConfig
    yield config
    for key in vars(config):
        part = getattr(config, key, None)
        if isinstance(part, base):
            yield from configs(part)


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
