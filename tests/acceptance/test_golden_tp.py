"""Acceptance: tensor parallelism without annotations is what people derived by hand for transformers."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Final

import pytest

from maniple.api import Plan, compile_program
from maniple.api.frontends import frontend
from maniple.ir.program import Program
from maniple.mesh import Strategy
from maniple.models import load
from maniple.ops import definition
from maniple.shard.summary import Communication, communication, saved_bytes

BATCH, SEQ, HIDDEN, VOCAB, LAYERS = 6, 20, 64, 128, 4  # no two products of these agree
EMBEDDING: Final = {"gpt2": "wte.weight", "bert": "embeddings.word.weight", "llama": "embed.weight"}
HEAD: Final = {"gpt2": "wte.weight", "bert": "embeddings.word.weight", "llama": "lm_head.weight"}
BLOCK: Final = re.compile(r"(?:blocks|layers)\.(\d+)(?:\.|$)")


@cache
def captured(model: str) -> Program:
    workload = load(model, batch=BATCH, seq=SEQ, fake=True)
    program: Program = frontend("torch").capture(workload.step, (workload.model, workload.optimizer), (workload.batch,)).program
    return program


@cache
def plan(model: str, strategy: str) -> Plan:
    return compile_program(captured(model), Strategy.parse(strategy))


def along_tp(model: str, strategy: str) -> list[Communication]:
    made = plan(model, strategy).sharded
    return [item for item in communication(made.program, made.mesh) if item.axis == "tp"]


def elements(item: Communication) -> int:
    total = 1
    for n in item.shape:
        total *= n
    return total


def is_of_the_embedding(model: str, strategy: str, item: Communication) -> bool:
    """Return whether a collective moves what the embedding makes, wherever it is first needed whole."""
    ops = plan(model, strategy).sharded.program.ops
    return any(op.name == "embedding" and item.tensor == f"%{op.results[0].name}" for op in ops)


def block_of(item: Communication) -> int | None:
    match = BLOCK.search(item.location.scope if item.location else "")
    return int(match[1]) if match else None


def check_two_all_reduces_per_block_forward_and_two_backward(model: str, strategy: str) -> None:
    large = [
        item for item in along_tp(model, strategy)
        if block_of(item) is not None and elements(item) >= BATCH * SEQ and not is_of_the_embedding(model, strategy, item)
    ]  # fmt: skip
    assert {(item.kind, elements(item)) for item in large} == {("all_reduce", BATCH * SEQ * HIDDEN)}, large
    counts = Counter((block_of(item), item.phase) for item in large)
    assert counts == {(block, phase): 2 for block in range(LAYERS) for phase in ("forward", "backward")}


def check_all_reduces_of_activations_outside_of_the_blocks(model: str, strategy: str) -> None:
    """After an embedding by vocabulary; before what the head was computed from, and before BERT's dense layer in the head."""
    found = [item for item in along_tp(model, strategy) if block_of(item) is None and elements(item) == BATCH * SEQ * HIDDEN]
    counts = Counter(item.phase for item in found if item.kind == "all_reduce")
    assert counts == {"gpt2": {"forward": 1, "backward": 1}, "llama": {"backward": 1}, "bert": {"forward": 1, "backward": 2}}[model]


def check_the_loss_is_taken_by_vocabulary(model: str, strategy: str) -> None:
    assert not [item for item in along_tp(model, strategy) if elements(item) >= BATCH * SEQ * VOCAB]
    program = plan(model, strategy).sharded.program
    logits = [
        value for op in program.ops if definition(op.name).flops(op) for value in op.results
        if value.type.num_elements == BATCH * SEQ * VOCAB and value.type.is_float
    ]  # fmt: skip
    assert logits
    assert all(v.sharding is not None and "tp" in v.sharding.axes for v in logits)
    (vocab_split,) = {v.type.shape[found[0]] for v in logits if v.sharding and isinstance(found := v.sharding.along("tp"), tuple)}
    assert vocab_split == VOCAB


def check_the_embedding_is_split_by_vocabulary_where_it_is_tied(model: str, strategy: str) -> None:
    program = plan(model, strategy).sharded.program
    for name in {EMBEDDING[model], HEAD[model]}:
        value = program.input_named(name).value
        assert value.sharding is not None
        found = value.sharding.along("tp")
        assert isinstance(found, tuple)
        if name == HEAD[model]:
            assert found[0] == 0
            assert value.type.shape == (VOCAB, HIDDEN)


def check_matrices_and_their_state_are_divided(model: str, strategy: str) -> None:
    program = plan(model, strategy).sharded.program
    others = {item.name for item in program.inputs if item.kind == "buffer"} | {"result"}
    state = [item for item in program.outputs if item.name not in others and item.value.type.rank >= 2]
    assert len(state) >= 3 * 2 * LAYERS  # parameters and Adam's two moments
    whole = [item.name for item in state if item.value.sharding is None or "tp" not in item.value.sharding.axes]
    assert whole == []


def check_sp(model: str, strategy: str) -> None:
    """Check that two reduce-scatters and two all-gathers per block stand for two all-reduces, and that less is kept."""
    blocks = [item for item in along_tp(model, strategy) if block_of(item) is not None and elements(item) >= BATCH * SEQ * HIDDEN]
    stem = [item for item in blocks if not is_of_the_embedding(model, strategy, item)]
    counts = Counter((block_of(item), item.phase, item.kind) for item in stem)
    each = {
        ("forward", "reduce_scatter"): 2,
        ("forward", "all_gather"): 2,
        ("backward", "reduce_scatter"): 2,
        ("backward", "all_gather"): 4,
    }
    assert counts == {(block, phase, kind): n for block in range(LAYERS) for (phase, kind), n in each.items()}
    ways = dict(plan(model, strategy).sharded.mesh.axes).get("dp", 1)
    assert {item.num_bytes for item in stem} == {4 * BATCH * SEQ * HIDDEN // ways}
    without, sharded = plan(model, strategy.removesuffix(" sp")).sharded, plan(model, strategy).sharded
    assert saved_bytes(sharded.program, sharded.mesh) < 0.85 * saved_bytes(without.program, without.mesh)
    assert not plan(model, strategy).problems()
    added = [op.results[0] for op in sharded.program.ops if op.name == "add" and BLOCK.search(op.location.scope if op.location else "")]
    stream = [value for value in added if value.type.shape == (BATCH, SEQ, HIDDEN)]
    assert len(stream) >= 2 * 2 * LAYERS - 2
    assert all("tp" in value.layout.axes for value in stream)


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert"])
def test_layouts(model: str) -> None:
    """In one test per model: the capture takes most of the time, and workers would each do it."""
    for strategy in ("tp=2", "dp=2 tp=2"):
        check_two_all_reduces_per_block_forward_and_two_backward(model, strategy)
        check_all_reduces_of_activations_outside_of_the_blocks(model, strategy)
        check_the_loss_is_taken_by_vocabulary(model, strategy)
        check_the_embedding_is_split_by_vocabulary_where_it_is_tied(model, strategy)
        check_matrices_and_their_state_are_divided(model, strategy)
        check_sp(model, f"{strategy} sp")
