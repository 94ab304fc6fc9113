"""The tensor-parallel solver, on steps written by hand; what it decides is propagated, proven and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
import torch
from tape import Tape, mlp, transformer

from maniple.engine.reference import ReferenceEngine
from maniple.ir.program import Program
from maniple.kernels.torch import compile_program
from maniple.kernels.torch.emit import TORCH_DTYPES
from maniple.lower import lower
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.shard.classes import BatchRegions
from maniple.shard.cost import CostModel
from maniple.shard.layouts import Layouts
from maniple.shard.options import Along, Split
from maniple.shard.propagate import propagate
from maniple.shard.regather import regather
from maniple.shard.solve import Solution, solve
from maniple.shard.summary import communication
from maniple.transform.dce import dce
from maniple.verify.sharded import verify_sharded


def sharded(program: Program, ways: int, pins: Mapping[str, Along] | None = None, *, sp: bool = False) -> tuple[Solution, Program]:
    """Return the solution and the program propagated from it, proven right."""
    solution = solve(program, "tp", ways, CostModel(), pins=pins, sp=sp)
    mesh = Mesh((("tp", ways),))
    inputs = {}
    for item in program.inputs:
        layout = solution.inputs.get(item.name)
        if isinstance(layout, Split):
            whole = Sharding.replicated(item.value.type.rank)
            inputs[item.name] = whole.split(layout.dim, AxisPart("tp", layout.blocks, layout.unit))
    result = dce(propagate(program, mesh, Layouts(inputs, ("tp",), options={"tp": solution.options}), CostModel()))
    result = regather(result, "tp") if sp else result
    verify_sharded(result, mesh)
    return solution, result


def collectives(program: Program, ways: int) -> Counter[tuple[str, str, int]]:
    """Count the collectives by phase, kind and number of elements."""
    found: Counter[tuple[str, str, int]] = Counter()
    for item in communication(program, Mesh((("tp", ways),))):
        found[item.phase, item.kind, int(torch.Size(item.shape).numel())] += 1
    return found


def run(program: Program, mesh: Mesh, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return ReferenceEngine(compile_program).run(lower(program, mesh, ()), inputs)


@pytest.mark.parametrize("ways", [2, 4])
def test_megatron(ways: int) -> None:
    layers, stream, rows = 3, 8 * 32 * 64, 8 * 32
    solution, result = sharded(transformer(layers=layers), ways)
    assert solution.is_proven
    assert collectives(result, ways) == {
        ("forward", "all_reduce", stream): 2 * layers + 1,  # two per block, one for the embeddings
        ("backward", "all_reduce", stream): 2 * layers + 1,  # two per block, one for the logits
        ("forward", "all_reduce", rows): 2,  # maximum and sum of the softmax over the vocabulary
        ("forward", "all_reduce", 1): 1,  # the loss
        ("backward", "all_reduce", rows): 1,
    }
    assert solution.inputs["wte.weight"] == Split(0)
    assert solution.inputs["h.1.attn.c_attn.weight"] == Split(0, blocks=3)
    assert solution.inputs["h.1.attn.c_attn.bias"] == Split(0, blocks=3)
    assert solution.inputs["h.1.attn.c_proj.weight"] == Split(1)
    assert solution.inputs["h.1.mlp.c_fc.weight"] == Split(0)
    assert solution.inputs["h.1.mlp.c_proj.weight"] == Split(1)
    assert solution.inputs["h.1.mlp.c_proj.bias"] is None
    assert solution.inputs["h.1.ln_1.weight"] is None


def test_sp() -> None:
    """What tp reduces whole is scattered, and gathered before products: in backward once more, for the gradient of the weight."""
    layers, stream, ways = 3, 8 * 32 * 64, 2
    solution, result = sharded(transformer(layers=layers), ways, sp=True)
    found = collectives(result, ways)
    assert found["forward", "reduce_scatter", stream] == found["backward", "reduce_scatter", stream] == 2 * layers + 1
    assert found["forward", "all_gather", stream] == 2 * layers + 1
    assert found["backward", "all_gather", stream] == 2 * (2 * layers + 1)
    assert not any(kind == "all_reduce" and size >= stream for _, kind, size in found)
    norms = [op.results[0].layout for op in result.ops if op.name == "layer_norm"]
    assert {str(layout) for layout in norms} == {"{_,tp,_}"}
    made = {value for op in result.ops if op.phase == "forward" for value in op.results}
    gathered = {op.results[0] for op in result.ops if op.name == "all_gather" and op.results[0] in made}
    assert not [op for op in result.ops if op.phase == "backward" and not gathered.isdisjoint(op.operands)]
    without = solve(transformer(layers=layers), "tp", ways, CostModel()).inputs
    assert {name for name in without if without[name] != solution.inputs[name]} <= {"wpe.weight"}


def test_sp_finds_nothing_in_a_product_alone() -> None:
    t = Tape()
    x, labels = t.input("batch.x", 8, 4, kind="batch"), t.input("batch.y", 8, kind="batch", dtype="i64")
    solution, _ = sharded(t.finish(t.cross_entropy(t.linear(x, t.input("weight", 6, 4)), labels)), 2, sp=True)
    assert solution.num_changes("reduce_scatter") == 0


def test_untied_and_unfused() -> None:
    solution, result = sharded(transformer(layers=2, tied=False, fused=False, causal=False), 2)
    found = collectives(result, 2)
    assert found["backward", "all_reduce", 8 * 32 * 64] == 2 * 2 + 1
    assert found["forward", "all_reduce", 8 * 32 * 64] + found["forward", "all_gather", 8 * 32 * 64] == 2 * 2 + 1
    assert not any(size == 8 * 32 * 128 for _, _, size in found)
    assert solution.inputs["head.weight"] == Split(0)
    assert [solution.inputs[f"h.0.attn.{name}.weight"] for name in "qkv"] == [Split(0)] * 3


def test_heads_that_do_not_divide_stay_whole() -> None:
    program = transformer(heads=12, head=8, layers=2)
    solution, eight = sharded(program, 8)
    assert solution.inputs["h.0.attn.c_attn.weight"] == Split(0, blocks=3, unit=8)
    assert solution.inputs["h.0.attn.c_proj.weight"] == Split(1, unit=8)
    assert len(eight.ops) == len(sharded(program, 2)[1].ops)


def test_batch_does_not_matter() -> None:
    few, many = (solve(transformer(batch=batch), "tp", 2, CostModel()) for batch in (1, 64))
    assert few.inputs == many.inputs
    assert [option.divides for option in few.options.values()] == [option.divides for option in many.options.values()]
    assert [kind for kind, _ in few.changes] == [kind for kind, _ in many.changes]


@pytest.mark.parametrize(
    ("program", "ways", "sp"),
    [
        (transformer(dtype="f64"), 2, False),
        (transformer(dtype="f64", heads=3, head=8, vocab=101, tied=False), 2, False),
        (transformer(dtype="f64", heads=4, fused=False, layers=1), 3, False),
        (mlp(layers=2, dtype="f64"), 3, False),
        (transformer(dtype="f64", seq=7, layers=1, batch=2), 2, True),
        (transformer(dtype="f64", seq=7, layers=1, batch=2, fused=False, tied=False), 3, True),
        (mlp(layers=2, dtype="f64"), 3, True),
    ],
    ids=["even", "uneven", "idle device", "mlp", "seven tokens", "seven tokens in three", "sp of an mlp"],
)
def test_equals_one_device(program: Program, ways: int, *, sp: bool) -> None:
    torch.manual_seed(0)
    inputs = {
        item.name: torch.randn(item.value.type.shape, dtype=TORCH_DTYPES[item.value.type.dtype])
        if item.value.type.is_float
        else torch.randint(0, 16, item.value.type.shape)
        for item in program.inputs
    }
    single = Mesh((("tp", 1),))
    want = run(propagate(program, single, Layouts({}, ("tp",)), CostModel()), single, inputs)
    got = run(sharded(program, ways, sp=sp)[1], Mesh((("tp", ways),)), inputs)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-9)


def test_pairs_the_layers_of_an_mlp() -> None:
    solution, result = sharded(mlp(layers=2), 2)
    assert collectives(result, 2) == {
        ("forward", "all_reduce", 8 * 64): 1,
        ("forward", "all_reduce", 8 * 16): 1,
        ("backward", "all_reduce", 8 * 64): 1,
    }
    assert [solution.inputs[f"1.{name}.weight"] for name in ("up", "down")] == [Split(0), Split(1)]


def test_pins_hold() -> None:
    pins: dict[str, Along] = {"0.up.weight": Split(1), "1.down.weight": None}
    solution, _ = sharded(mlp(layers=2), 2, pins)
    assert solution.inputs["0.up.weight"] == Split(1)
    assert solution.inputs["1.down.weight"] is None


def test_summary_tells_what_is_split() -> None:
    summary = solve(transformer(layers=1), "tp", 2, CostModel()).summary
    assert "proven the cheapest" in summary
    assert "h.0.attn.c_attn.weight: dim 0/3" in summary.splitlines()


def test_what_cannot_be_divided_is_computed_whole_and_named() -> None:
    t = Tape()
    x, labels = t.input("batch.x", 8, 1, kind="batch"), t.input("batch.y", 8, kind="batch", dtype="i64")
    t.at(7, "head")
    x = t.linear(x, t.input("head.weight", 1, 1))
    solution, _ = sharded(t.finish(t.cross_entropy(x, labels)), 2)
    assert "dot_general computed whole, model.py:7 (head)" in solution.gathered


def test_a_weight_that_is_taken_otherwise_is_moved_and_named() -> None:
    t = Tape()
    x, labels = t.input("batch.x", 8, 4, kind="batch"), t.input("batch.y", 8, kind="batch", dtype="i64")
    t.at(7, "first")
    w = t.input("weight", 2, 3, 4)
    x = t.linear(x, t.reshape(w, 6, 4))
    program = t.finish(t.cross_entropy(x, labels))
    assert solve(program, "tp", 3, CostModel()).inputs["weight"] in (Split(2), Split(1), Split(0))
    solution, _ = sharded(program, 3, {"weight": Split(2), program.ops[0].results[0].name: Split(0)})
    assert len(solution.gathered) == 1
    assert solution.gathered[0].startswith("all_to_all of %")
    assert solution.gathered[0].endswith("model.py:7 (first)")


class TestBatchRegions:
    def test_cut_only_where_the_batch_is(self) -> None:
        t = Tape()
        x = t.input("batch.x", 4, 2, 6, kind="batch")
        merged = t.reshape(t.transpose(x, 2, 0, 1), 6 * 4, 2)
        regions = BatchRegions(t.finish(t.b("reduce_sum", merged, dims=(0, 1))))
        assert not regions.is_cut(merged, Split(0), 2)
        assert regions.is_cut(merged, Split(0, blocks=6), 2)
        assert not regions.is_cut(x, Split(2), 2)
        assert regions.is_cut(x, Split(0), 2)
        assert regions.is_cut(x, Split(1), 2)
        assert regions.num_tokens == 8

    def test_merged_with_heads(self) -> None:
        t = Tape()
        x = t.input("batch.x", 4, 6, kind="batch")
        flat = t.reshape(x, 24)
        regions = BatchRegions(t.finish(t.b("reduce_sum", flat, dims=(0,))))
        assert regions.is_cut(flat, Split(0), 2)  # whole rows of the batch
        assert regions.is_cut(flat, Split(0), 3)  # in the middle of a row
        assert not regions.is_cut(flat, Split(0, blocks=4), 2)  # half of the features of every row
        assert regions.is_cut(flat, Split(0, blocks=2), 2)

    def test_integers_are_batch_in_every_dim(self) -> None:
        program = transformer(layers=1)
        regions = BatchRegions(program)
        heads = next(op for op in program.ops if op.name == "attention").operands[0]
        assert [regions.is_cut(heads, Split(dim), 2) for dim in range(4)] == [True, False, True, False]
        weights = [item.value for item in program.inputs if item.kind == "parameter"]
        assert not any(value in regions for value in weights)
