from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from maniple.base.errors import ModelError
from maniple.models import ZOO, load, make
from maniple.models.data import IGNORED_LABEL, MASK_TOKEN, read_corpus

# number of parameters as published: GPT-2 (Radford et al. 2019; small and medium as released), Llama and Mixtral (model cards), ResNet
# and ViT as in torchvision, BERT and T5 as in transformers; LSTM (Zaremba et al. 2014 say 66 million of the large one) with both biases
# of torch's, DLRM by the rows of its tables, U-Net as implementations count it
PUBLISHED = {
    "gpt2:14m": 14_067_712 + 128 * 128,  # Pythia-14M, which has no table of positions
    "gpt2:small": 124_439_808,
    "gpt2:medium": 354_823_168,
    "gpt2:large": 774_030_080,
    "gpt2:xl": 1_557_611_200,
    "llama:7b": 6_738_415_616,
    "llama:13b": 13_015_864_320,
    "llama:8b": 8_030_261_248,
    "llama:70b": 70_553_706_496,
    "bert:base": 109_514_298,
    "bert:large": 335_174_458,
    "resnet:18": 11_689_512,
    "resnet:34": 21_797_672,
    "resnet:50": 25_557_032,
    "resnet:101": 44_549_160,
    "resnet:152": 60_192_808,
    "llama:33b": 32_528_943_616,
    "llama:65b": 65_285_660_672,
    "llama:405b": 405_853_388_800,
    "mixtral:8x7b": 46_702_792_704,
    "mixtral:8x22b": 140_630_071_296,
    "vit:b16": 86_567_656,
    "vit:b32": 88_224_232,
    "vit:l16": 304_326_632,
    "vit:l32": 306_535_400,
    "vit:h14": 632_045_800,
    "t5:small": 60_506_624,
    "t5:base": 222_903_552,
    "t5:large": 737_668_096,
    "t5:3b": 2_851_598_336,
    "t5:11b": 11_307_321_344,
    "lstm:small": 4_653_200,
    "lstm:medium": 19_780_400,
    "lstm:large": 66_034_000,
    "dlrm:kaggle": 540_201_232 + 155_984 + 320_001,  # 33,762,577 rows of width 16, then the two perceptrons
    "dlrm:terabyte": 24_034_227_072 + 171_392 + 2_197_505,
    "unet:base": 31_030_658,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_sizes_have_the_published_number_of_parameters(name: str) -> None:
    workload = make(name, fake=True)
    assert sum(p.numel() for p in workload.model.parameters()) == PUBLISHED[name]
    tensors = [*workload.model.parameters(), *workload.model.buffers(), *workload.batch.values()]
    assert all(isinstance(x, FakeTensor) for x in tensors)


def test_every_published_size_is_tested() -> None:
    sizes = {f"{name}:{size}" for name, family in ZOO.items() for size in family.sizes if size != "tiny" and name != "mlp"}
    assert sizes == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_loss_falls(name: str) -> None:
    workload = make(name)
    losses = [float(workload.step(workload.model, workload.optimizer, workload.batches(step)).detach()) for step in range(25)]
    assert sum(losses[-5:]) < sum(losses[:5]) - (0.1 if name == "dlrm" else 0.5)  # whose loss begins at log(2)
    if name in {"gpt2", "llama", "bert"}:
        assert losses[0] == pytest.approx(math.log(128), abs=0.2)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_seed_decides_weights_and_data_and_leaves_torch_alone(name: str) -> None:
    before = torch.get_rng_state()
    one, same, other = make(name), make(name), make(name, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    pairs = list(zip(one.model.parameters(), same.model.parameters(), other.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    for key, x in one.batch.items():
        assert torch.equal(x, same.batches(0)[key])
    changing = [key for key in one.batch if key != "token_type_ids"]
    assert not any(torch.equal(one.batch[key], one.batches(1)[key]) for key in changing)
    assert not any(torch.equal(one.batch[key], other.batch[key]) for key in changing)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_dtype_reaches_parameters_buffers_batch_and_optimizer(name: str, fake: bool) -> None:
    workload = make(name, dtype="float64", fake=fake)
    tensors = [*workload.model.parameters(), *workload.model.buffers(), *workload.batches(1).values()]
    assert {x.dtype for x in tensors if x.is_floating_point()} == {torch.float64}
    optimized = {id(p) for group in workload.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in workload.model.parameters()}


@pytest.mark.parametrize("fake", [False, True])
def test_heads_are_tied_in_every_world(fake: bool) -> None:
    gpt2, bert = make("gpt2", dtype="float64", fake=fake).model, make("bert", dtype="float64", fake=fake).model
    assert gpt2.get_parameter("wte.weight") is gpt2.lm_head.weight
    assert bert.get_parameter("embeddings.word.weight") is bert.head.decoder.weight
    llama = make("llama", fake=fake).model
    assert llama.get_parameter("embed.weight") is not llama.lm_head.weight


@pytest.mark.parametrize("name", sorted(ZOO))
def test_dropout_changes_the_loss_only_when_asked_for(name: str) -> None:
    def losses(rate: float) -> set[float]:
        found = set()
        for torch_seed in (1, 2):
            workload = make(name, dropout=rate)
            torch.manual_seed(torch_seed)
            found.add(float(workload.step(workload.model, workload.optimizer, workload.batch).detach()))
        return found

    assert len(losses(0.0)) == 1
    assert len(losses(0.5)) == 2


def test_batch_and_seq() -> None:
    workload = make("gpt2", batch=3, seq=5)
    assert workload.batch["x"].shape == (3, 5)
    assert workload.samples == 15
    assert torch.equal(workload.batch["x"][:, 1:], workload.batch["y"][:, :-1])
    assert make("mlp", batch=3).batch["x"].shape[0] == 3


def test_bert_predicts_masked_tokens_only() -> None:
    batch = make("bert", batch=64).batch
    chosen = batch["labels"] != IGNORED_LABEL
    assert 0.12 < chosen.float().mean() < 0.18
    masked = batch["input_ids"] == MASK_TOKEN
    assert masked[~chosen].sum() == 0
    assert 0.7 < masked[chosen].float().mean() < 0.9
    assert set(batch["token_type_ids"].unique().tolist()) == {0, 1}


def test_llama_positions_are_relative() -> None:
    from maniple.models.llama import rotate

    model = make("llama", dtype="float64").model
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def product(i: int, j: int) -> float:
        at_i, at_j = slice(i, i + 1), slice(j, j + 1)
        return float((rotate(q, model.cos[at_i], model.sin[at_i]) * rotate(k, model.cos[at_j], model.sin[at_j])).sum())

    assert product(3, 1) == pytest.approx(product(10, 8), rel=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-5)


def test_corpus_is_text() -> None:
    text = bytes(read_corpus(50_000).tolist()).decode("ascii")
    assert len(text) == 50_000
    assert "import" in text


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: load("gtp2"), "did you mean gpt2"),
        (lambda: load("gpt2:huge"), "gpt2:small"),
        (lambda: load("gpt2", seq=65), "1 to 64"),
        (lambda: load("gpt2", seq=0), "1 to 64"),
        (lambda: load("gpt2", batch=0), "at least one row"),
        (lambda: load("mlp", seq=4), "no sequence"),
        (lambda: load("mlp", dtype="float8"), "unknown dtype"),
        (lambda: load("mlp", dropout=1.0), "not a rate"),
    ],
)
def test_what_is_refused(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(ModelError, match=says):
        call()
