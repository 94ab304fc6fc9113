"""What propagation starts from: layouts of inputs, choices already made, and the rules of ZeRO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.mesh import AxisPart, Sharding
from maniple.shard.options import Option


@dataclass(frozen=True, slots=True)
class Layouts:
    """Decisions that a strategy makes before propagation.

    Attributes:
        inputs: layout of each input, by name; replicated where nothing is said. State created by the program finds its layout here too.
        options: for each axis the choices of a solver; ops without one follow their operands.
        gradients: dim and part that split a parameter's gradient in the update (`zero=1` and up), by parameter name.
        splits_gradients_at_once: whether they are split from the moment they are made (`zero=2` and up).
        gathered: parameters stored split along `gather_axis` and gathered for each use outside the update (`zero=3`).
        gather_axis: the axis of the above.
        pins: layouts of values, by value name, that the user fixed.
        order: axes from major to minor, for dims that several axes split.
    """

    inputs: Mapping[str, Sharding]
    order: tuple[str, ...]
    options: Mapping[str, Mapping[Op, Option]] = field(default_factory=dict)
    gradients: Mapping[str, tuple[int, AxisPart]] = field(default_factory=dict)
    splits_gradients_at_once: bool = False
    gathered: frozenset[str] = frozenset()
    gather_axis: str = ""
    pins: Mapping[str, Sharding] = field(default_factory=dict)


def parameter_of(state: str, kind: TensorType, parameters: Mapping[str, TensorType]) -> str:
    """Return the parameter that optimizer state belongs to and is laid out like; empty if none.

    The state's name ends with the parameter's, and it has the parameter's shape. What the step returns is no state, whatever it is called.

    Args:
        state: name of an input or output, e.g. `optimizer.exp_avg.fc.weight`.
        kind: its type.
        parameters: type of each parameter.
    """
    words = state.split(".")
    tails = (".".join(words[at:]) for at in range(2, len(words))) if words[0] != "result" else ()
    found = next((tail for tail in tails if tail in parameters), "")
    return found if found and kind.shape == parameters[found].shape else ""
