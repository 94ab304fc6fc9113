"""Workloads from a user's own file: `FILE.py:FUNCTION`."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from maniple.base.errors import ManipleError, ModelError
from maniple.base.location import Location
from maniple.models.workload import Workload
from maniple.models.zoo import cast, dtype_named, world

_RETURNS = "return step, model, optimizer, batch"


def is_user_file(text: str) -> bool:
    """Return whether `text` names a function in a file, or a file, rather than a model of the zoo.

    >>> is_user_file("train.py:make"), is_user_file("gpt2:small")
    (True, False)
    """
    return text.partition(":")[0].endswith(".py") or ".py:" in text


def load_file(text: str, *, dtype: str = "float32", seed: int = 0, fake: bool = False) -> Workload:
    """Return the workload that a user's function makes.

    Args:
        text: `FILE.py:FUNCTION`; FUNCTION takes nothing and returns the step, the model, the optimizer and an example batch.
        dtype: that the model's and the batch's floating-point tensors are converted to.
        seed: of torch's random numbers while FUNCTION runs.
        fake: run FUNCTION under fake tensors, which have no storage.

    Raises:
        ModelError: if there is no such file or function, if it fails, or returns something else.
    """
    file, _, name = text.rpartition(":")
    if not file or not name:
        raise ModelError(f"{text!r} does not name a function", hint=f"{text.rstrip(':')}:FUNCTION")
    path = Path(file)
    if not path.is_file():
        raise ModelError(f"there is no file {file!r}", hint="check the path; models of the zoo: maniple models")
    with _own_directory(path), world(seed, fake=fake):
        module = _import(path)
        found = getattr(module, name, None)
        if not callable(found):
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
            close = difflib.get_close_matches(name, functions, n=1) or functions
            raise ModelError(f"{file} has no function {name!r}", hint=f"{file}:{close[0]}" if close else f"def {name}(): ... {_RETURNS}")
        step, model, optimizer, batch = _parts(_guarded(path, f"{name}()", found), text, _where(found))
        cast(model, optimizer, dtype_named(dtype))
        batch = pytree.tree_map(lambda x: x.to(dtype_named(dtype)) if _is_floating(x) else x, batch)
    return Workload(text, f"{name} of {file}", step, model, optimizer, batch, lambda _step: batch, _rows(batch), "rows")


def _is_floating(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _rows(batch: object) -> int:
    """Return the size of the first dim of the first tensor."""
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    return tensors[0].shape[0] if tensors else 0


@contextlib.contextmanager
def _own_directory(path: Path) -> Iterator[None]:
    """Let the file import its neighbours, as if it were run."""
    directory = str(path.resolve().parent)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"cannot import {path}", hint="a file of Python code")
    module = importlib.util.module_from_spec(spec)
    earlier = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and pickle look their module up
    loader = spec.loader
    try:
        _guarded(path, "the file", lambda: loader.exec_module(module))
    except ModelError:
        del sys.modules[path.stem]
        raise
    finally:
        if earlier is not None:
            sys.modules[path.stem] = earlier
    return module


def _guarded(path: Path, what: str, call: Callable[[], Any]) -> Any:
    """Return what `call` returns; say at which line of the user's file it failed, if it does."""
    try:
        return call()
    except ManipleError:
        raise
    except (Exception, SystemExit) as error:
        line = 0
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename) == path.resolve():
                line = frame.lineno or 0
        if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
            line = error.lineno or 0
        raise ModelError(f"{what} failed: {type(error).__name__}: {error}", where=Location(str(path), line)) from error


def _where(function: object) -> Location | None:
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code is not None else None


def _parts(returned: object, text: str, where: Location | None) -> tuple[Callable[..., Any], nn.Module, Optimizer, Any]:
    if not isinstance(returned, tuple | list) or len(returned) != 4:
        size = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise ModelError(f"{text} returned a {type(returned).__name__}{size}, not four things", where=where, hint=_RETURNS)
    step, model, optimizer, batch = returned
    for what, value, good in (
        ("step, a function", step, callable(step) and not isinstance(step, nn.Module)),
        ("model, an nn.Module", model, isinstance(model, nn.Module)),
        ("optimizer, a torch Optimizer", optimizer, isinstance(optimizer, Optimizer)),
    ):
        if not good:
            raise ModelError(f"{text} returned a {type(value).__name__} in the place of the {what}", where=where, hint=_RETURNS)
    return step, model, optimizer, batch
