"""The user's step, parallelized: captured when first called, compiled, and run on an engine from then on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from maniple.api.compile import Plan, compile_program
from maniple.api.frontends import detect, frontend, make_engine
from maniple.base.errors import StrategyError
from maniple.mesh import Strategy

_LOG = logging.getLogger("maniple")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a step keeps for one signature of its arguments and state.

    Attributes:
        binding: the captured program's ties to the user's objects.
        plan: the program, sharded and as tasks.
        capture_s: seconds that tracing took.
        compile_s: seconds that sharding and lowering took.
    """

    binding: Any
    plan: Plan
    capture_s: float
    compile_s: float


class Step:
    """A training step on several devices; call it with what the user's step takes after the bound arguments.

    State lives where the user put it: the module's parameters and buffers and the optimizer's state are up to date when a call returns,
    and what is loaded into them is used by the next one. A call that fails leaves them as they were.

    Attributes:
        num_steps: calls that finished.
    """

    def __init__(
        self, function: Callable[..., Any], bound: Sequence[Any], strategy: Strategy, engine: str, *, promote_float64: bool = False
    ) -> None:
        """Bind a step; see `parallelize`."""
        self.function, self.bound, self.strategy = function, tuple(bound), strategy
        self.framework = detect(bound)
        self.engine = make_engine(engine, self.framework)
        self.num_steps = 0
        self._frontend = frontend(self.framework)
        self._promote = promote_float64
        self._compiled: dict[Hashable, Compiled] = {}
        self._last: Hashable = None

    def __call__(self, *args: Any) -> Any:
        """Run one step.

        Args:
            args: the global batch, as the user's step takes it.

        Returns:
            What the user's step returns.

        Raises:
            CaptureError: if the step cannot be captured.
            StrategyError: if the strategy does not fit.
            EngineError: if the step fails while it runs.
        """
        compiled = self.compile(*args)
        binding = compiled.binding
        outputs = self.engine.run(compiled.plan.graph, binding.inputs(args, self.num_steps))
        binding.commit(outputs)
        self.num_steps += 1
        return binding.result(outputs)

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """Everything compiled so far, the last one used last."""
        return (*(c for key, c in self._compiled.items() if key != self._last), self.last)

    @property
    def last(self) -> Compiled:
        """What the last call used."""
        return self._compiled[self._last]

    def compile(self, *args: Any) -> Compiled:
        """Return the plan for these arguments and the present state, compiling it if there is none.

        Shapes, dtypes, plain values, training mode and all numbers of the parameter groups but lr, betas and momentum are part of the
        plan; when one changes the step is compiled again, and the log says what changed.
        """
        key = self._frontend.signature(self.function, self.bound, args)
        known = self._compiled.get(key)
        if known is not None and known.binding.holds():
            self._last = key
            return known
        if self._last is not None and self._last != key:
            _LOG.info("compiling again: %s", self._frontend.describe_change(self._last, key))
        start = time.perf_counter()
        captured = self._frontend.capture(self.function, self.bound, args, promote_float64=self._promote)
        middle = time.perf_counter()
        plan = compile_program(captured.program, self.strategy, self.engine.shared_axes(self.strategy.mesh))
        done = Compiled(self._frontend.Binding(captured), plan, middle - start, time.perf_counter() - middle)
        self._compiled[key], self._last = done, key
        return done


def parallelize(function: Callable[..., Any], *bound: Any, strategy: str | Strategy = "", engine: str = "reference") -> Step:
    """Return `function` run on the devices of `strategy`.

    Args:
        function: the training step, `function(*bound, *batch)`, as it is: forward, loss, backward, optimizer step, zero_grad.
        bound: its leading arguments that stay the same: model, optimizer.
        strategy: words such as `"dp=2 tp=2 zero=3"`, a path that ends in `.toml`, or a `Strategy`.
        engine: what runs the tasks.

    Raises:
        StrategyError: if the strategy does not parse.
        CaptureError: if the framework is not known.
    """
    if isinstance(strategy, str):
        strategy = Strategy.load(strategy)
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"strategy is a {type(strategy).__name__}", hint='a text such as "dp=2 tp=2"')
    return Step(function, bound, strategy, engine)
