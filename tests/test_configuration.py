"""The configuration: the paper's defaults, refusal of what cannot be, and a faithful round trip."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from tests.tiny import tiny, tiny_config
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

DEFAULTS: dict[str, Any] = {
    "vocab_size": 37000,
    "decoder_vocab_size": 37000,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "activation_function": "relu",
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "d_k": None,
    "d_v": None,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_bias": True,
    "layer_norm_eps": 1e-6,
    "norm_position": "post",
    "position_encoding": "sinusoidal",
    "position_offset": 0,
    "max_position_embeddings": 1024,
    "scale_embedding": True,
    "final_logits_bias": False,
    "attention_score": "scaled_dot_product",
    "attention_window": None,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

SIZES = [
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "d_k",
    "d_v",
    "max_position_embeddings",
]

BAD: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name in SIZES for value in (0, -1, 16.0, "16", True)),
    ("position_offset", {"position_offset": -1}),
    ("position_offset", {"position_offset": 1.5}),
    *(
        (name, {name: value})
        for name in ("dropout", "attention_dropout", "activation_dropout")
        for value in (-0.1, 1.5, float("nan"), "0.1", None)
    ),
    ("layer_norm_eps", {"layer_norm_eps": "small"}),
    ("layer_norm_eps", {"layer_norm_eps": None}),
    *(
        (name, {name: "yes"})
        for name in (
            "share_encoder_decoder_embeddings",
            "tie_word_embeddings",
            "attention_bias",
            "scale_embedding",
            "final_logits_bias",
        )
    ),
    ("encoder_attention_heads", {"encoder_attention_heads": 3}),
    ("decoder_attention_heads", {"decoder_attention_heads": 3}),
    ("encoder_attention_heads", {"encoder_attention_heads": 3, "d_k": 4}),
    ("decoder_attention_heads", {"decoder_attention_heads": 3, "d_v": 4}),
    *((name, {name: value}) for name in ("norm_position", "position_encoding") for value in ("middle", None, 1)),
    *(("activation_function", {"activation_function": value}) for value in ("rellu", None, 1)),
    *(("attention_score", {"attention_score": value}) for value in ("dot_product", "additive", "other", None)),
    *(("attention_window", {"attention_window": value}) for value in (4, 0, "4", True)),
    *(
        ("d_model", {"d_model": 15, "position_encoding": layout, "d_k": 4, "d_v": 4})
        for layout in ("sinusoidal", "sinusoidal_concat", "sinusoidal_tensor2tensor")
    ),
    ("decoder_vocab_size", {"decoder_vocab_size": 40}),
    ("decoder_vocab_size", {"decoder_vocab_size": 60, "tie_word_embeddings": False}),
    *(
        (name, {name: value})
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        for value in (50, -1, "1", 1.5)
    ),
    ("eos_token_id", {"eos_token_id": [2, 50]}),
    *(
        (name, {name: 45, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40})
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    ),
    (
        "pad_token_id",
        {"pad_token_id": 55, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60},
    ),
]


def test_defaults_are_the_papers() -> None:
    """The table of defaults, and an encoder-decoder for the trainer's count of labels (B21)."""
    config = VanillaTransformerConfig()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    assert config.is_encoder_decoder
    assert config.model_type == "vanilla_transformer"


def test_common_names() -> None:
    """The names by which other programs ask for sizes."""
    config = tiny_config(d_model=32, encoder_layers=3, encoder_attention_heads=4)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 3, 4)


@pytest.mark.parametrize(("field", "changes"), BAD, ids=[f"{field}-{changes}" for field, changes in BAD])
def test_bad_configuration_names_the_field(field: str, changes: dict[str, Any]) -> None:
    """Whatever the model cannot be is a ValueError that names the field."""
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        tiny_config(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_attention_heads": 3, "decoder_attention_heads": 5, "d_k": 4, "d_v": 6},
        {"d_model": 15, "position_encoding": "learned", "encoder_attention_heads": 3, "decoder_attention_heads": 5},
        {"decoder_vocab_size": 50},
        {"decoder_vocab_size": 60, "share_encoder_decoder_embeddings": False, "bos_token_id": 55, "eos_token_id": 56},
        {"dropout": 0, "attention_dropout": 1},
        {"eos_token_id": [2, 3]},
        {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "decoder_start_token_id": None},
    ],
    ids=str,
)
def test_unusual_configuration_is_accepted(changes: dict[str, Any]) -> None:
    """What is possible is allowed."""
    config = tiny_config(**changes)
    assert {name: getattr(config, name) for name in changes} == changes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder_vocab_size": 60, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
        {"d_k": 3, "d_v": 5, "norm_position": "pre", "position_encoding": "learned", "attention_bias": False},
        {"dropout": 0, "eos_token_id": [2, 3], "pad_token_id": 5},
    ],
    ids=str,
)
def test_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    """A configuration comes back from its dictionary, JSON text and file; unknown keywords are kept (B57)."""
    config = tiny_config(**changes, my_note={"a": [1, 2]})
    expected = config.to_dict()
    assert expected["my_note"] == {"a": [1, 2]}
    assert VanillaTransformerConfig.from_dict(config.to_dict()).to_dict() == expected
    assert VanillaTransformerConfig.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == expected
    config.save_pretrained(tmp_path)
    loaded = VanillaTransformerConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in DEFAULTS} == {name: getattr(config, name) for name in DEFAULTS}
    assert loaded.my_note == {"a": [1, 2]}


def test_vocabulary_given_on_loading(tmp_path: Path) -> None:
    """A saved configuration loaded with another vocabulary is whole, and can be saved and loaded again."""
    tiny_config().save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, vocab_size=60)
    assert (config.vocab_size, config.decoder_vocab_size, config.target_vocab_size) == (60, 60, 60)
    config.save_pretrained(tmp_path)
    assert VanillaTransformerConfig.from_pretrained(tmp_path).vocab_size == 60


def test_configurations_share_nothing_mutable() -> None:
    """A change to one configuration never reaches another (B57)."""
    one, other = tiny_config(), tiny_config()
    one.auto_map["AutoConfig"] = "elsewhere.Config"
    assert other.auto_map["AutoConfig"] == "configuration_vanilla_transformer.VanillaTransformerConfig"
    assert tiny_config().auto_map == other.auto_map


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 7),
        ("max_length", 60),
        ("max_new_tokens", 9),
        ("length_penalty", 2.0),
        ("length_penalty_kind", "power"),
        ("max_length_margin", 7),
        ("do_sample", True),
        ("forced_eos_token_id", 2),
    ],
)
def test_decoding_settings_are_never_kept(name: str, value: Any) -> None:
    """A decoding setting given to the model's configuration stays out of it, in memory and in JSON (B29)."""
    config = tiny_config(**{name: value})
    assert not hasattr(config, name)
    assert name not in config.to_dict()
    assert name not in json.loads(config.to_json_string())


def test_decoding_settings_on_the_config_do_not_break_saving(tmp_path: Path) -> None:
    """A model whose configuration was asked for beams can be saved, loaded and asked to generate (B29)."""
    model = VanillaTransformerForConditionalGeneration(tiny_config(num_beams=7, max_length=60))
    model.save_pretrained(tmp_path)
    assert "num_beams" not in json.loads((tmp_path / "config.json").read_text())
    generation_config = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).generation_config
    assert (generation_config.num_beams, generation_config.max_length) == (4, None)


def test_special_ids_are_in_both_configurations(tmp_path: Path) -> None:
    """Start, padding and end are in the model's and in the generation configuration, also when saved (B29)."""
    ids: dict[str, Any] = {"pad_token_id": 5, "bos_token_id": 6, "eos_token_id": 7, "decoder_start_token_id": 8}
    tiny(**ids).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert {name: saved[name] for name in ids} == ids
    generation_config = GenerationConfig.from_pretrained(tmp_path)
    assert {name: getattr(generation_config, name) for name in ids} == ids
