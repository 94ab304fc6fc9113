"""Runs PyTorch's own samples of its ops (OpInfo) through the capture table: an independent source of inputs for the op table.

A sample is traced as a training step is, with its gradients where the op has any; the program is evaluated on one device and compared
with eager PyTorch in float64, then sharded at random and compared again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from maniple.base.errors import ManipleError
from maniple.capture.torch import Captured, capture
from maniple.engine.reference import ReferenceEngine
from maniple.ir.program import Program
from maniple.kernels.torch import compile_program
from maniple.lower import lower
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts
from maniple.shard.propagate import propagate
from maniple.verify.sharded import verify_sharded

TOLERANCE = 1e-8
"""Distance from eager PyTorch, relative to the largest number of a result."""

PLACE_ONLY = frozenset({"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"})
"""Ops whose results hold no certain numbers."""


@dataclass
class Outcome:
    """What became of one sample: `equal`, `random` (types alone compared), `refused`, `wrong`, or `skipped` as eager PyTorch fails."""

    op: str
    number: int
    status: str
    reason: str = ""
    shardings: int = 0


@dataclass
class Case:
    """One sample as a step of one argument, the list of its tensors, then one gradient for each result that has one."""

    name: str
    function: Any  # an OpInfo
    sample: Any  # a SampleInput
    backward: bool
    leaves: list[Any] = field(init=False)
    spec: Any = field(init=False)

    def __post_init__(self) -> None:
        self.leaves, self.spec = pytree.tree_flatten((self.sample.input, self.sample.args, dict(self.sample.kwargs)))

    def tensors(self) -> list[Tensor]:
        """Return the operands; complex ones as pairs of real numbers, as no program takes them."""
        found = [leaf.detach() for leaf in self.leaves if isinstance(leaf, Tensor)]
        return [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in found]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the op's tensor results, and its operands that need gradients."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        wanted = []
        for at, leaf in enumerate(self.leaves):
            if self.backward and isinstance(leaf, Tensor) and leaf.requires_grad:
                leaves[at] = leaves[at].detach().clone().requires_grad_()
                wanted.append(leaves[at])
            if isinstance(leaf, Tensor) and leaf.is_complex():
                leaves[at] = torch.view_as_complex(leaves[at])
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        made = self.function.op(first, *args, **kwargs)
        if self.sample.output_process_fn_grad and self.backward:
            made = self.sample.output_process_fn_grad(made)
        results = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
        results = [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in results]
        return results, wanted

    def step(self, tensors: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
        results, wanted = self.forward(tensors)
        smooth = [result for result in results if result.requires_grad]
        grads = torch.autograd.grad(smooth, wanted, cotangents, allow_unused=True) if smooth and wanted else ()
        return [*(result.detach() for result in results), *(grad for grad in grads if grad is not None)]


def op_infos(names: Sequence[str]) -> list[Any]:
    """Return PyTorch's descriptions of ops, all if no names are given; a variant's name follows the op's after a dot."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    return [info for info in op_db if not names or name_of(info) in names or info.name in names]


def name_of(info: Any) -> str:
    """Return the op's name with that of its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def cases(infos: Sequence[Any], limit: int) -> Iterator[tuple[Case | None, str, int, str]]:
    """Yield samples of each op, at most `limit` evenly spread ones: the case, the op's name, its number, and why there is none."""
    for info in infos:
        name = name_of(info)
        kinds = [kind for kind in (torch.float64, torch.int64, torch.bool, torch.float32, torch.complex128) if kind in info.dtypes]
        if not kinds:
            yield None, name, 0, "no dtype that a program holds"
            continue
        backward = info.supports_autograd and kinds[0] in (torch.float64, torch.complex128)
        try:
            torch.manual_seed(0)
            samples = list(info.sample_inputs("cpu", kinds[0], requires_grad=backward))
        except Exception as error:  # noqa: BLE001  # PyTorch's sample makers fail in any way
            yield None, name, 0, f"no samples: {error}"
            continue
        spread = {round(at * (len(samples) - 1) / max(limit - 1, 1)) for at in range(min(limit, len(samples)))}
        for number in range(len(samples)) if limit >= len(samples) else sorted(spread):
            yield Case(name, info, samples[number], backward), name, number, ""


def run_case(case: Case, number: int, shardings: int, seed: int = 0) -> Outcome:
    """Return what becomes of a sample."""
    outcome = Outcome(case.name, number, "equal")
    tensors = case.tensors()
    try:
        torch.manual_seed(0)
        results, wanted = case.forward(tensors)
        cotangents = [torch.randn_like(result) for result in results if result.requires_grad] if wanted else []
        expected = case.step(tensors, cotangents)
        again = case.step(tensors, cotangents)
    except Exception as error:  # noqa: BLE001  # whatever eager PyTorch raises
        outcome.status, outcome.reason = "skipped", f"{type(error).__name__}: {error}"
        return outcome
    try:
        captured = capture(case.step, [], [tensors, cotangents])
    except ManipleError as error:
        outcome.status, outcome.reason = "refused", f"{error.what}"
        return outcome
    except Exception as error:  # noqa: BLE001  # a finding, to be shown
        outcome.status, outcome.reason = "broke", f"{type(error).__name__}: {error}"
        return outcome
    is_random = any(item.kind == "rng" for item in captured.program.inputs) or not _same(again, expected)[0]
    try:
        outcome.status = "random" if is_random or case.name in PLACE_ONLY else "equal"
        values = _values(captured, tensors, cotangents)
        with torch.no_grad():
            made = compile_program(captured.program)(*(values[item.name] for item in captured.program.inputs))
        whole = {item.name: value for item, value in zip(captured.program.outputs, made, strict=True)}
        got = captured.result.rebuild(whole)
        same, text = _same(got, expected, types_only=outcome.status == "random")
        if not same:
            outcome.status, outcome.reason = "wrong", text
            return outcome
        rng = random.Random(f"{seed} {case.name} {number}")
        for _ in range(shardings):
            mesh, layouts = _random_layouts(captured.program, rng)
            sharded = propagate(captured.program, mesh, layouts, CostModel())
            verify_sharded(sharded, mesh)
            parts = ReferenceEngine(compile_program).run(lower(sharded, mesh), values)
            same, text = _same([parts[name] for name in whole], list(whole.values()))
            outcome.shardings += 1
            if not same:
                outcome.status, outcome.reason = "wrong", f"sharded {mesh} {layouts.inputs}: {text}"
                return outcome
    except Exception as error:  # noqa: BLE001  # a finding, to be shown
        outcome.status, outcome.reason = "broke", f"{type(error).__name__}: {error}"
    return outcome


def _values(captured: Captured, tensors: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
    found = {**captured.state(), **captured.batch.tensors([tensors, cotangents])}
    return {**found, "seed": torch.tensor(3, dtype=torch.int64)}


def _random_layouts(program: Program, rng: random.Random) -> tuple[Mesh, Layouts]:
    mesh = Mesh((("x", rng.choice([2, 3])),))
    inputs = {}
    for item in program.inputs:
        rank = item.value.type.rank
        layout = Sharding.replicated(rank)
        dims = [d for d, n in enumerate(item.value.type.shape) if n > 1]
        if dims and rng.random() < 0.8:
            layout = layout.split(rng.choice(dims), AxisPart("x"))
        inputs[item.name] = layout
    return mesh, Layouts(inputs=inputs, order=("x",))


def _same(got: Any, expected: Sequence[Tensor], *, types_only: bool = False) -> tuple[bool, str]:
    if len(got) != len(expected):
        return False, f"{len(got)} results, not {len(expected)}"
    for at, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False, f"result {at}: {one.dtype}{list(one.shape)}, not {other.dtype}{list(other.shape)}"
        if types_only or not other.numel():
            continue
        if not other.is_floating_point():
            if not torch.equal(one, other):
                return False, f"result {at}: {int((one != other).sum())} of {other.numel()} differ"
            continue
        finite = other.isfinite()
        if not torch.equal(one.isfinite(), finite) or not torch.equal(one[~finite].nan_to_num(1e300), other[~finite].nan_to_num(1e300)):
            return False, f"result {at}: other elements are finite"
        scale = max(1.0, float(other[finite].abs().max())) if finite.any() else 1.0
        away = float((one[finite] - other[finite]).abs().max()) if finite.any() else 0.0
        if away > (TOLERANCE if other.dtype == torch.float64 else 1e-4) * scale:
            return False, f"result {at}: off by {away:.3g} of {scale:.3g}"
    return True, ""
