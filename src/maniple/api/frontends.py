"""Frameworks and engines by name, loaded when used, so that `import maniple` needs none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from maniple.base.errors import CaptureError, EngineError

FRONTENDS: Final = {"torch": "maniple.capture.torch"}
"""Framework name -> module that captures its steps."""

KERNELS: Final = {"torch": "maniple.kernels.torch"}
"""Framework name -> module that compiles segments."""

VERIFIERS: Final = {"torch": "maniple.verify.torch"}
"""Framework name -> module that runs its steps for comparison."""

ENGINES: Final = {
    "reference": ("maniple.engine.reference", "ReferenceEngine"),
    "realm": ("maniple.engine.realm", "RealmEngine"),
}
"""Engine name -> module and class."""


def detect(bound: Sequence[object]) -> str:
    """Return the framework that the step's arguments come from.

    Raises:
        CaptureError: if none is known.
    """
    for item in _leaves(bound):
        for cls in type(item).__mro__:
            name = cls.__module__.partition(".")[0]
            if name in FRONTENDS:
                return name
    shown = ", ".join(type(item).__name__ for item in bound) or "nothing"
    raise CaptureError(
        f"cannot tell the framework of the step from its arguments: {shown}",
        hint="parallelize(train_step, model, optimizer, strategy=...)",
    )


def _leaves(item: object) -> Iterator[object]:
    """Yield what stands in nested lists, tuples and dicts."""
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple):
        for part in item:
            yield from _leaves(part)
    else:
        yield item


def frontend(name: str) -> Any:
    """Return the module that captures steps of framework `name`."""
    return import_module(FRONTENDS[name])


def kernels(name: str) -> Any:
    """Return the module that compiles segments for framework `name`."""
    return import_module(KERNELS[name])


def verifier(name: str) -> Any:
    """Return the module that runs steps of framework `name` for comparison."""
    return import_module(VERIFIERS[name])


def engine_or_default(name: str | None) -> str:
    """Return `name`, or for None the default: `realm` where legate is installed, which carries the Realm runtime, else `reference`."""
    return name or ("realm" if find_spec("legate") else "reference")


def make_engine(name: str, framework: str) -> Any:
    """Return a new engine.

    Args:
        name: of the engine; for `realm` also with a number of processors, `realm:4`.
        framework: whose kernels run the segments.

    Raises:
        EngineError: if there is no engine of that name.
    """
    kind, colon, processors = name.partition(":")
    if kind not in ENGINES or (colon and (kind != "realm" or not processors.isdecimal())):
        raise EngineError(f"unknown engine {name!r}", hint="one of " + ", ".join(ENGINES) + ", or realm:4 for 4 processors")
    module, cls = ENGINES[kind]
    options = {"num_processors": int(processors)} if processors else {}
    return getattr(import_module(module), cls)(kernels(framework).compile_program, **options)
