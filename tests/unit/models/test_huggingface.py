from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from maniple.base.errors import ModelError
from maniple.models import load
from maniple.models.huggingface import config
from maniple.models.huggingface import workload as workload_of_configs

GPT2 = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
BERT = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 16,
}  # fmt: skip
VIT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}


def written(folder: Path, entries: Any) -> str:
    (folder / "config.json").write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    return f"hf:{folder}"


@pytest.mark.parametrize("fake", [False, True])
def test_workload_of_a_config(tmp_path: Path, fake: bool) -> None:
    before = torch.get_rng_state()
    workload = load(written(tmp_path, GPT2), batch=3, seq=5, dtype="float64", fake=fake)
    assert torch.equal(before, torch.get_rng_state())
    assert "GPT2LMHeadModel" in workload.description
    assert workload.batch["input_ids"].shape == workload.batch["labels"].shape == (3, 5)
    assert workload.samples == 15
    assert {p.dtype for p in workload.model.parameters()} == {torch.float64}
    assert {isinstance(x, FakeTensor) for x in [*workload.model.parameters(), *workload.batch.values()]} == {fake}
    assert workload.model.lm_head.weight is workload.model.transformer.wte.weight
    if not fake:
        assert torch.equal(workload.batch["labels"], workload.batches(0)["input_ids"])
        assert not torch.equal(workload.batch["labels"], workload.batches(1)["labels"])
        losses = [float(workload.step(workload.model, workload.optimizer, workload.batch).detach()) for _ in range(8)]
        assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize(
    ("entries", "shapes", "says"),
    [
        ({"architectures": ["BertForTokenClassification"], **BERT}, {"labels": (2, 4)}, "each token"),
        ({"architectures": ["BertForSequenceClassification"], **BERT}, {"labels": (2,)}, "each row"),
        ({"architectures": ["BertForQuestionAnswering"], **BERT}, {"start_positions": (2,), "end_positions": (2,)}, "an answer"),
        ({"architectures": ["BertModel"], **BERT}, {"input_ids": (2, 4)}, "small last_hidden_state, pooler_output: mean squares"),
        ({"architectures": ["ViTForImageClassification"], **VIT}, {"pixel_values": (2, 3, 8, 8), "labels": (2,)}, "each row"),
        ({"architectures": ["ViTForMaskedImageModeling"], **VIT, "encoder_stride": 4}, {"bool_masked_pos": (2, 4)}, "masked patches"),
        (
            {"architectures": ["CLIPModel"], "projection_dim": 8, "text_config": BERT, "vision_config": VIT},
            {"pixel_values": (2, 3, 8, 8), "input_ids": (2, 4)},
            "belongs",
        ),
    ],
)  # fmt: skip
def test_labels_are_what_the_class_takes(tmp_path: Path, entries: dict[str, Any], shapes: dict[str, tuple[int, ...]], says: str) -> None:
    workload = load(written(tmp_path, entries), batch=2, seq=4, fake=True)
    assert says in workload.description
    assert {key: tuple(workload.batch[key].shape) for key in shapes} == shapes


def test_dropout_is_what_was_asked_for(tmp_path: Path) -> None:
    def losses(rate: float) -> set[float]:
        found = set()
        for seed in (1, 2):
            workload = load(written(tmp_path, GPT2), batch=3, seq=5, dropout=rate)
            torch.manual_seed(seed)
            found.add(float(workload.step(workload.model, workload.optimizer, workload.batch).detach()))
        return found

    assert len(losses(0.0)) == 1
    assert len(losses(0.5)) == 2


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "a JSON list, not an object"),
        ("\x00\x01", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ({}, "does not say which class"),
        ({"architectures": []}, "does not say which class"),
        ({"architectures": "GPT2LMHeadModel"}, "does not say which class"),
        ({"architectures": ["GPT2LMHeadModle"]}, "no class 'GPT2LMHeadModle'[^!]*did you mean GPT2LMHeadModel"),
        ({"architectures": ["__class__"]}, "no class"),
        ({"architectures": ["os.system"], "auto_map": {"AutoModel": "evil.Model"}}, "no class"),
        ({"architectures": ["GPT2Config"]}, "is not a model"),
        ({"architectures": ["AutoModel"]}, "is not a model"),
        ({"architectures": ["pipeline"]}, "is not a model"),
        ({"architectures": ["GPT2PreTrainedModel"]}, "has no forward pass"),
        ({**GPT2, "n_embd": "wide"}, "n_embd"),
        ({**GPT2, "n_embd": 15}, "cannot be made"),
        ({**GPT2, "n_embd": -16}, "cannot be made"),
        ({**GPT2, "n_layer": 10**9}, "more than 50 modules"),
    ],
)
def test_what_is_refused(tmp_path: Path, entries: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_of_configs, "MOST_MODULES", 50)
    with pytest.raises(ModelError, match=says):
        load(written(tmp_path, entries), batch=2, seq=4, fake=True)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no file"):
        load(f"hf:{tmp_path}")
    path = written(tmp_path, GPT2)
    monkeypatch.setattr(config, "MAX_BYTES", 20)
    with pytest.raises(ModelError, match=r"bytes; a config\.json has less than 20"):
        load(path)


def test_what_would_be_fetched_or_run_is_left_out(tmp_path: Path) -> None:
    entries = {
        **GPT2, "auto_map": {"AutoModel": "evil.Model"}, "attn_implementation": "someone/kernels", "quantization_config": {"bits": 4},
        "_attn_implementation_internal": "someone/kernels", "inner": {"experts_implementation": "someone/kernels", "kept": 1},
    }  # fmt: skip
    written(tmp_path, entries)
    assert config.read_config(tmp_path) == {**GPT2, "inner": {"kept": 1}}
    assert load(f"hf:{tmp_path / 'config.json'}", batch=2, seq=4, fake=True).model.config._attn_implementation == "sdpa"


def test_wrong_batches_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GPT2)
    with pytest.raises(ModelError, match="at least one row"):
        load(path, batch=0)
    with pytest.raises(ModelError, match=r"dropout=1\.5 is not a rate"):
        load(path, dropout=1.5)
    with pytest.raises(ModelError, match="1 to 16 tokens, got seq=17"):
        load(path, seq=17)
    with pytest.raises(ModelError, match="1 to 16 tokens, got seq=0"):
        load(path, seq=0)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GPT2)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"not installed[^!]*maniple\[hf\]"):
        load(path)
