"""The user's step, parallelized: captured when first called, compiled, and run on an engine from then on."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from maniple.api.compile import Plan, compile_program
from maniple.api.frontends import detect, engine_or_default, frontend, kernels, make_engine, verifier
from maniple.base.errors import EngineError, NonFiniteError, StrategyError
from maniple.engine.protocol import Interrupted, uninterrupted
from maniple.ir.program import Input, Op, Output, Program
from maniple.mesh import Strategy
from maniple.trace import Trace, span
from maniple.verify.nonfinite import NonFinite, find_nonfinite

_LOG = logging.getLogger("maniple")

NUM_PLANS: Final = 8
"""Plans that a step keeps: batch shapes that take turns, training and evaluation."""


class _Turn:
    """Held by the thread whose turn it is to step: tracing takes hold of modules and parts of PyTorch, and steps may share state."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)  # another thread of the parent may have held the old one

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_TURN: Final = _Turn()


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """What a step keeps for one signature of its arguments and state.

    Attributes:
        signature: of the arguments and state that it is for.
        binding: the captured program's ties to the user's objects.
        plan: the program, sharded and as tasks.
        capture_s: seconds that tracing took.
        compile_s: seconds that sharding and lowering took.
    """

    signature: Hashable
    binding: Any
    plan: Plan
    capture_s: float
    compile_s: float


class Step:
    """A training step on several devices; call it with what the user's step takes after the bound arguments.

    State lives where the user put it: the module's parameters and buffers and the optimizer's state are up to date when a call returns,
    and what is loaded into them is used by the next one. A call that fails leaves them as they were, unless it fails amid the update: then
    the next calls are refused until all that was being updated has been loaded again. Ctrl-C never does that: an update that has begun
    is finished first. Threads that step at once take turns, also on different steps.

    Attributes:
        num_steps: calls that finished.
    """

    def __init__(
        self, function: Callable[..., Any], bound: Sequence[Any], strategy: Strategy, engine: str | None, *, promote_float64: bool = False
    ) -> None:
        """Bind a step; see `parallelize`."""
        self.function, self.bound, self.strategy = function, tuple(bound), strategy
        self.framework = detect(bound)
        self.engine = make_engine(engine_or_default(engine), self.framework)
        self.num_steps = 0
        self._frontend = frontend(self.framework)
        self._promote = promote_float64
        self._compiled: list[Compiled] = []
        self._trace: Trace | None = None
        self._half_updated: Any = None

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
        trace = self._trace
        with _TURN, nullcontext() if trace is None else trace.step(self.num_steps):
            with span(trace, "find plan"):
                compiled = self.compile(*args)
            binding = compiled.binding
            self._check_state(binding)
            with span(trace, "bind"):
                inputs = binding.inputs(args, self.num_steps)
            interrupted = False
            try:
                outputs = self.engine.run(compiled.plan.graph, inputs, trace)
            except Interrupted as interrupt:
                outputs, interrupted = interrupt.outputs, True
            except BaseException:
                if self.engine.state_changed:
                    self._half_updated = binding.versions(compiled.plan.updated)
                raise
            with span(trace, "commit"):
                _, again = uninterrupted(lambda: binding.commit(outputs))
            self.num_steps += 1
            self._check_passed(compiled, outputs)
            if interrupted or again:
                raise KeyboardInterrupt
            with span(trace, "make result"):
                return binding.result(outputs)

    def _check_state(self, binding: Any) -> None:
        """Refuse state that a step which failed has left half updated, until all of it has been loaded anew.

        Raises:
            EngineError: naming a tensor that has not been.
        """
        if self._half_updated is None:
            return
        left = self._half_updated.unchanged(binding.versions(self._half_updated.of))
        if left:
            what = f"the step that failed had begun to update state: {left[0]} and {len(left) - 1} more may be old or new"
            raise EngineError(
                what,
                hint="load a checkpoint: model.load_state_dict(...), optimizer.load_state_dict(...); writing through .data is not seen",
            )
        self._half_updated = None

    def _check_passed(self, compiled: Compiled, outputs: Any) -> None:
        """Raise what a check in the user's step would have raised, had it run there; until then the step went on.

        Raises:
            EngineError: naming the check.
        """
        where = compiled.binding.failed_check(outputs)
        if where is not None:
            self._half_updated = compiled.binding.versions(compiled.plan.updated)
            what = "a check in the step failed: here it would have raised an error"
            raise EngineError(what, where=where, hint="step.find_nan(batch) tells where numbers that are not finite come from")

    @contextmanager
    def trace(self, trace: Trace | None = None) -> Iterator[Trace]:
        """Record the steps that run inside.

        ```
        with step.trace() as trace:
            step(batch)
        trace.save("trace.json")  # for https://ui.perfetto.dev
        ```

        Args:
            trace: what to append to; a new one by default.
        """
        before, self._trace = self._trace, Trace() if trace is None else trace
        try:
            yield self._trace
        finally:
            self._trace = before

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """What is kept of everything compiled so far, the last one used last."""
        return tuple(self._compiled)

    @property
    def last(self) -> Compiled:
        """What the last call used.

        Raises:
            EngineError: if there was none.
        """
        if not self._compiled:
            raise EngineError("the step has not run yet", hint="call it with a batch first")
        return self._compiled[-1]

    def compile(self, *args: Any) -> Compiled:
        """Return the plan for these arguments and the present state, compiling it if there is none.

        Shapes, dtypes, plain values, training mode and all numbers of the parameter groups but lr, betas and momentum are part of the
        plan, and of those three what the optimizer's Python code asked of them. When one changes the step is compiled again, and the log
        says what changed. The `NUM_PLANS` plans used last are kept.
        """
        with _TURN:
            signature = self._frontend.signature(self.function, self.bound, args)
            known = next((c for c in self._compiled if c.signature == signature and c.binding.holds()), None)
            if known is None:
                self._log_change(signature)
                known = self._compile(signature, args)
            else:
                self._compiled.remove(known)
            self._compiled = [*self._compiled, known][-NUM_PLANS:]
            return known

    def find_nan(self, *args: Any) -> NonFinite | None:
        """Return where the next step would make a number that is not finite; None if all that it returns and all state is finite.

        The step is computed op by op, on one device, and changes nothing. It draws the random numbers that the next call draws.

        Args:
            args: the global batch, as the user's step takes it.
        """
        with _TURN:
            compiled = self.compile(*args)
            inputs = compiled.binding.inputs(args, self.num_steps)
            make = kernels(self.framework).compile_program

            def evaluate(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
                given = tuple(Input(value, "argument", value.name) for value in dict.fromkeys(op.operands))
                one = Program(given, (op,), tuple(Output(value, value.name) for value in op.results))
                tensors = dict(zip(op.operands, operands, strict=True))
                found: Sequence[Any] = make(one)(*tensors.values())
                return found

            return find_nonfinite(compiled.plan.program, inputs, evaluate, verifier(self.framework).look)

    def check_finite(self, *args: Any) -> None:
        """Raise if the next step would make a number that is not finite; see `find_nan`.

        Raises:
            NonFiniteError: naming the op, what it was made of, and the user's line.
        """
        found = self.find_nan(*args)
        if found is not None:
            shown = ", ".join(found.outputs[:3]) + (", ..." if len(found.outputs) > 3 else "")  # enough to see what it is about
            hint = "then not finite: " + shown if found.op else "look at the data, or at the state that was loaded"
            raise NonFiniteError(f"step {self.num_steps}: {found}", where=found.location, hint=hint)

    def _compile(self, signature: Hashable, args: Sequence[Any]) -> Compiled:
        start = time.perf_counter()
        captured = self._frontend.capture(self.function, self.bound, args, promote_float64=self._promote)
        middle = time.perf_counter()
        shared, idle = self.engine.shared_axes(self.strategy.mesh), bool(self._compiled)  # the first batch has rows for all
        plan = compile_program(captured.program, self.strategy, shared, idle=idle)
        return Compiled(signature, self._frontend.Binding(captured), plan, middle - start, time.perf_counter() - middle)

    def _log_change(self, signature: Hashable) -> None:
        """Say why the step is compiled again; that the optimizer has its state now is no surprise."""
        if not self._compiled:
            return
        last = self.last
        changed = self._frontend.describe_change(last.signature, signature)
        if last.signature == signature:
            changed = f"{last.binding.captured.broken_guard()} no longer holds"
        _LOG.log(logging.INFO if last.binding.creates_state else logging.WARNING, "compiling again: %s", changed)


def parallelize(function: Callable[..., Any], *bound: Any, strategy: str | Strategy = "", engine: str | None = None) -> Step:
    """Return `function` run on the devices of `strategy`.

    Args:
        function: the training step, `function(*bound, *batch)`, as it is: forward, loss, backward, optimizer step, zero_grad.
        bound: its leading arguments that stay the same: model, optimizer.
        strategy: words such as `"dp=2 tp=2 zero=3"`, a path that ends in `.toml`, or a `Strategy`.
        engine: what runs the tasks: `realm`, also with a number of processors as in `realm:4`, or `reference`; None is `realm` where legate
            is installed, else `reference`.

    Raises:
        StrategyError: if the strategy does not parse.
        CaptureError: if the framework is not known.
        EngineError: if there is no engine of that name.
    """
    if isinstance(strategy, str):
        strategy = Strategy.load(strategy)
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"strategy is a {type(strategy).__name__}", hint='a text such as "dp=2 tp=2"')
    return Step(function, bound, strategy, engine)
