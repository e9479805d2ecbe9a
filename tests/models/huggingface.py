"""Models of `transformers` with tiny configurations and random weights, as test cases.

Everything but the sizes is left as the library has it: caches are made, dropout is in the configuration.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from models.case import ModelCase, tokens

VOCABULARY = 96
LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def gpt2() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config)


def llama() -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_SIZES))


def qwen3() -> transformers.Qwen3ForCausalLM:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA_SIZES, head_dim=8))


def bert() -> transformers.BertForMaskedLM:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return transformers.BertForMaskedLM(config)


def t5() -> transformers.T5ForConditionalGeneration:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def vit() -> transformers.ViTForImageClassification:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config)


def whisper() -> transformers.WhisperForConditionalGeneration:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=20,
        max_target_positions=24,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    return transformers.WhisperForConditionalGeneration(config)


def text(other: bool) -> dict[str, Any]:
    return {"input_ids": tokens(VOCABULARY, 2, 11 if other else 8)}


def text_with_labels(other: bool) -> dict[str, Any]:
    ids = text(other)["input_ids"]
    labels = ids.clone()
    labels[:, :2] = -100
    return {"input_ids": ids, "labels": labels}


def two_texts(other: bool) -> dict[str, Any]:
    return {**text(other), "decoder_input_ids": tokens(VOCABULARY, 2, 5)}


def text_to_labels(other: bool) -> dict[str, Any]:
    return {**text(other), "labels": tokens(VOCABULARY, 2, 5)}


def pictures(other: bool) -> dict[str, Any]:
    return {"pixel_values": torch.randn(3 if other else 2, 3, 32, 32)}


def pictures_with_labels(other: bool) -> dict[str, Any]:
    batch = pictures(other)
    return {**batch, "labels": torch.randint(2, (len(batch["pixel_values"]),))}


def speech(other: bool) -> dict[str, Any]:
    batch = 3 if other else 2
    return {"input_features": torch.randn(batch, 16, 40), "decoder_input_ids": tokens(VOCABULARY, batch, 5)}


def speech_with_labels(other: bool) -> dict[str, Any]:
    batch = speech(other)
    return {"input_features": batch["input_features"], "labels": batch["decoder_input_ids"]}


HUGGING_FACE = (
    ModelCase("hf_gpt2", gpt2, text, text_with_labels),
    ModelCase("hf_llama", llama, text, text_with_labels),
    ModelCase("hf_qwen3", qwen3, text, text_with_labels),
    ModelCase("hf_bert", bert, text, text_with_labels),
    ModelCase("hf_t5", t5, two_texts, text_to_labels),
    ModelCase("hf_vit", vit, pictures, pictures_with_labels),
    ModelCase("hf_whisper", whisper, speech, speech_with_labels),
)
