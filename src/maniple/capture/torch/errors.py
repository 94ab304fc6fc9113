"""Turns what torch raises while a step is traced into errors that say what to do."""

from __future__ import annotations

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from maniple.base.errors import CaptureError
from maniple.capture.torch.locations import error_location

_BRANCH = (
    "the step's Python code depends on a number that is known only when it runs",
    "use torch.where or a mask instead of `if` on a tensor; return the tensor instead of float(), int() or .item() of it",
)
_SHAPE = (
    "a shape depends on the numbers in a tensor",
    "keep shapes fixed: multiply by a mask or use torch.where instead of selecting with a boolean mask or nonzero",
)


def explained(error: Exception) -> CaptureError:
    """Return what `error`, raised while a step was traced, means to the user, with their line."""
    where = error_location(error.__traceback__)
    if isinstance(error, CaptureError):
        return error if error.where is not None else CaptureError(error.what, where=where, hint=error.hint)
    chain = _chain(error)
    if any(isinstance(item, DynamicOutputShapeException) for item in chain):
        return CaptureError(_SHAPE[0], where=where, hint=_SHAPE[1])
    if any(isinstance(item, GuardOnDataDependentSymNode | DataDependentOutputException) for item in chain):
        return CaptureError(_BRANCH[0], where=where, hint=_BRANCH[1])
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    what = f"the step cannot be traced: {type(error).__name__}: {text}"
    return CaptureError(what, where=where, hint="see whether the step runs on its own")


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
