"""Families of the transformers library, in tiny sizes: what the tests write as config.json, and `benchmarks/check_table.py` measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROWS: Final = 4
TOKENS: Final = 8

_LLAMA: Final = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
_BERT: Final = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 36, "type_vocab_size": 2,
}  # fmt: skip
_BART: Final = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
_VIT: Final = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
}  # fmt: skip
_WAV: Final = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "conv_dim": [16, 16], "conv_stride": [4, 2], "conv_kernel": [8, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
}  # fmt: skip
_MAMBA: Final = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 8, "time_step_rank": 4}
_SERIES: Final = {
    "context_length": 16,
    "prediction_length": 4,
    "num_input_channels": 2,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
}
_PAIR_TEXT: Final = {**_BERT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}

FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    # text decoders
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32},
    "llama": {"architectures": ["LlamaForCausalLM"], **_LLAMA},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], **_LLAMA},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], **_LLAMA, "head_dim": 8},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], **_LLAMA, "head_dim": 8, "sliding_window": 8},
    "phi": {"architectures": ["PhiForCausalLM"], **_LLAMA, "num_key_value_heads": 4},
    "gpt_neox": {"architectures": ["GPTNeoXForCausalLM"], **_BERT},
    "bloom": {"architectures": ["BloomForCausalLM"], "vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4},
    "opt": {
        "architectures": ["OPTForCausalLM"], "vocab_size": 64, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 32,
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    },
    # experts
    "mixtral": {"architectures": ["MixtralForCausalLM"], **_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], **_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "olmoe": {"architectures": ["OlmoeForCausalLM"], **_LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"], **_LLAMA, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1,
    },
    # state spaces, recurrences
    "mamba": {"architectures": ["MambaForCausalLM"], **_MAMBA},
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 8,
        "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8,
    },
    "rwkv": {
        "architectures": ["RwkvForCausalLM"], "vocab_size": 64, "hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "context_length": 32,
    },
    # encoders of text
    "bert": {"architectures": ["BertForMaskedLM"], **_BERT},
    "bert_pretraining": {"architectures": ["BertForPreTraining"], **_BERT},
    "roberta_tokens": {"architectures": ["RobertaForTokenClassification"], **_BERT, "pad_token_id": 1},
    "distilbert_qa": {
        "architectures": ["DistilBertForQuestionAnswering"], "vocab_size": 64, "dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 4,
        "max_position_embeddings": 32,
    },
    "albert_rows": {"architectures": ["AlbertForSequenceClassification"], **_BERT, "embedding_size": 16},
    "deberta_v2": {
        "architectures": ["DebertaV2ForMaskedLM"], **_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
    },
    # encoder and decoder
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1,
        "num_heads": 4, "decoder_start_token_id": 0,
    },
    "bart": {"architectures": ["BartForConditionalGeneration"], **_BART},
    # images
    "vit": {"architectures": ["ViTForImageClassification"], **_VIT},
    "vit_masked": {"architectures": ["ViTForMaskedImageModeling"], **_VIT, "encoder_stride": 4},
    "deit": {"architectures": ["DeiTForImageClassification"], **_VIT},
    "convnext": {
        "architectures": ["ConvNextForImageClassification"], "image_size": 32, "num_stages": 2, "depths": [1, 1], "hidden_sizes": [8, 16],
    },
    "resnet": {
        "architectures": ["ResNetForImageClassification"], "image_size": 32, "embedding_size": 8, "hidden_sizes": [16, 32],
        "depths": [1, 1],
    },
    "swin": {
        "architectures": ["SwinForImageClassification"], "image_size": 16, "patch_size": 4, "embed_dim": 16, "depths": [1],
        "num_heads": [2], "window_size": 2,
    },
    "segformer": {
        "architectures": ["SegformerForSemanticSegmentation"], "image_size": 32, "num_encoder_blocks": 2, "depths": [1, 1],
        "hidden_sizes": [8, 16], "num_attention_heads": [1, 2], "decoder_hidden_size": 16, "sr_ratios": [2, 1], "patch_sizes": [7, 3],
        "strides": [4, 2], "mlp_ratios": [2, 2],
    },
    "yolos": {"architectures": ["YolosForObjectDetection"], **_VIT, "image_size": [16, 16], "num_detection_tokens": 4},
    # speech
    "wav2vec2": {"architectures": ["Wav2Vec2ForCTC"], **_WAV},
    "hubert_rows": {"architectures": ["HubertForSequenceClassification"], **_WAV},
    "whisper": {
        "architectures": ["WhisperForConditionalGeneration"], "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
        "max_source_positions": 16, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 3,
    },
    "ast": {"architectures": ["ASTForAudioClassification"], **_VIT, "num_mel_bins": 16, "max_length": 32},
    # series
    "patchtst": {
        "architectures": ["PatchTSTForPrediction"], **_SERIES, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    },
    "patchtsmixer": {"architectures": ["PatchTSMixerForPrediction"], **_SERIES, "num_layers": 1, "expansion_factor": 2},
    "time_series_transformer": {
        "architectures": ["TimeSeriesTransformerForPrediction"], "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3],
        "num_time_features": 2, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    },
    # text and images
    "clip": {
        "architectures": ["CLIPModel"], "projection_dim": 16, "text_config": _PAIR_TEXT, "vision_config": _VIT,
    },
    "siglip": {"architectures": ["SiglipModel"], "text_config": _PAIR_TEXT, "vision_config": _VIT},
    "blip": {
        "architectures": ["BlipForConditionalGeneration"], "text_config": {**_PAIR_TEXT, "encoder_hidden_size": 32},
        "vision_config": _VIT,
    },
    "dual_encoder": {
        "architectures": ["VisionTextDualEncoderModel"], "projection_dim": 16, "text_config": {**_BERT, "model_type": "bert"},
        "vision_config": {**_VIT, "model_type": "vit"},
    },
    "vision_encoder_decoder": {
        "architectures": ["VisionEncoderDecoderModel"], "encoder": {**_VIT, "model_type": "vit"},
        "decoder": {**_BERT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
}  # fmt: skip
"""Name -> what config.json says."""

SUITE: Final = (
    "gpt2", "llama", "gpt_neox", "opt", "bloom", "mixtral", "deepseek_v3", "mamba", "bert_pretraining", "roberta_tokens", "distilbert_qa",
    "albert_rows", "t5", "vit_masked", "deit", "swin", "hubert_rows", "whisper", "ast", "patchtst", "patchtsmixer", "clip", "siglip",
    "blip",
)  # fmt: skip
"""What the tests check; the benchmark checks all."""


def write(folder: Path, name: str) -> str:
    """Write the config.json of a family into a folder of its own; return what the command line calls it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "config.json").write_text(json.dumps(FAMILIES[name]), encoding="utf-8")
    return f"hf:{folder / name}"
