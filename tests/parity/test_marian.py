"""The model against Marian in transformers, whose layers are the paper's: same weights, same numbers, same words."""

from typing import Any

import pytest
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer import VanillaTransformerForConditionalGeneration

from .common import SMALL, assert_close, assert_gradients_close, model_with, random_batch, run
from .translators import assert_same_translations, copy_weights, translate

VOCABULARY = SMALL["vocab_size"]
# Marian's own: the end first, padding last, which also starts a translation. And those of this project.
MARIAN_SPECIAL: dict[str, Any] = {"pad_token_id": VOCABULARY - 1, "eos_token_id": 0, "bos_token_id": None}
MARIAN_SPECIAL["decoder_start_token_id"] = VOCABULARY - 1
OWN_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "decoder_start_token_id": 1}
SPECIAL = {"Marian's special tokens": MARIAN_SPECIAL, "own special tokens": OWN_SPECIAL}
WORDS = range(3, VOCABULARY - 1)


def pair(
    seed: int, attention: str = "sdpa", **fields: Any
) -> tuple[VanillaTransformerForConditionalGeneration, MarianMTModel]:
    """The model and a Marian model of the same weights."""
    model = model_with(
        seed,
        attention,
        **{
            "position_encoding": "sinusoidal_concat",
            "layer_norm_eps": 1e-5,
            "final_logits_bias": True,
            **MARIAN_SPECIAL,
            **fields,
        },
    )
    shared = {name: getattr(model.config, name) for name in (*SMALL, *MARIAN_SPECIAL, "scale_embedding")}
    ties = {name: getattr(model.config, name) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")}
    config = MarianConfig(
        **shared,
        **ties,
        decoder_vocab_size=model.config.decoder_vocab_size,
        activation_function="relu",
        forced_eos_token_id=None,
        attn_implementation=attention,
    )
    marian = MarianMTModel(config).eval()
    copy_weights(model, marian)
    marian.final_logits_bias.requires_grad_()
    return model, marian


CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "scaled embeddings": ({}, (4, 7, 6)),
    "embeddings as they are": ({"scale_embedding": False}, (3, 9, 5)),
    "one head, one layer": (
        {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 1,
            "decoder_attention_heads": 1,
        },
        (5, 4, 11),
    ),
    "three and one layers, four and eight heads": (
        {
            "encoder_layers": 3,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 8,
        },
        (2, 12, 3),
    ),
    "own special tokens": (OWN_SPECIAL, (4, 7, 6)),
    "output apart": ({"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False}, (4, 7, 6)),
    "a target vocabulary of its own": (
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY + 8},
        (4, 7, 6),
    ),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_gradients(name: str, attention: str) -> None:
    """With padding on the right: Marian counts positions from the left edge, padding or not."""
    fields, shape = CASES[name]
    special = {**MARIAN_SPECIAL, **fields}
    model, marian = pair(1, attention, **fields)
    batch = random_batch(
        2,
        shape,
        ids=WORDS,
        target_ids=range(3, model.config.target_vocab_size) if "decoder_vocab_size" in fields else None,
        pad=special["pad_token_id"],
        start=special["decoder_start_token_id"],
    )
    logits, loss, gradients = run(model, batch.inputs())
    expected_logits, expected_loss, expected_gradients = run(marian, batch.inputs())
    expected_gradients["final_logits_bias"] = marian.final_logits_bias.grad

    real = batch.target_mask.bool()
    assert_close(logits[real], expected_logits[real], "logits", 1e-5)
    assert_close(loss, expected_loss, "loss", 1e-5)
    assert_gradients_close(gradients, expected_gradients)


def test_decoder_input_from_labels() -> None:
    """Marian's shift to the right, on labels with ignored ones among them and at their end."""
    model, marian = pair(3)
    batch = random_batch(4, (4, 7, 6), ids=WORDS, pad=VOCABULARY - 1, start=VOCABULARY - 1)
    arguments = {"input_ids": batch.source, "attention_mask": batch.source_mask, "labels": batch.labels}
    logits, loss, _ = run(model, arguments)
    expected_logits, expected_loss, _ = run(marian, arguments)
    assert_close(logits, expected_logits, "logits", 1e-5)
    assert_close(loss, expected_loss, "loss", 1e-5)


def test_position_table() -> None:
    """The layout called `sinusoidal_concat` is Marian's table, at width 512 and to its last row."""
    model, marian = pair(0, d_model=512, max_position_embeddings=512, encoder_layers=1, decoder_layers=1)
    for ours, theirs in ((model.model.encoder, marian.model.encoder), (model.model.decoder, marian.model.decoder)):
        assert_close(ours.embed_positions.weight, theirs.embed_positions.weight, "positions", 1e-6)


DECODINGS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty": 0.6},
    {"num_beams": 4, "length_penalty": 1.0},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 4, "length_penalty": -1.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": True},
    {"num_beams": 3, "length_penalty": 1.0, "num_return_sequences": 3},
    {"num_beams": 4, "length_penalty": 0.6, "min_new_tokens": 5, "no_repeat_ngram_size": 2},
    {"num_beams": 4, "length_penalty": 0.6, "use_cache": False},
]


def decoding_name(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


@pytest.fixture(scope="module", params=SPECIAL)
def translators(request: pytest.FixtureRequest) -> list[tuple[Any, Any, Tensor, Tensor]]:
    """Models of several weights, and for each a batch with padding on the right: (ours, Marian's, source, mask)."""
    special = SPECIAL[request.param]
    # Tied to its embedding, the output of a random model would say the same word over and over.
    fields = {**special, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    found = []
    for seed in range(5):
        model, marian = pair(seed, **fields)
        for translator in (model, marian):  # a random model seldom ends a sentence by itself
            translator.state_dict()["final_logits_bias"][0, special["eos_token_id"]] += 2.0
        batch = random_batch(10 + seed, (5, 8, 1), ids=WORDS, pad=special["pad_token_id"])
        found.append((model, marian, batch.source, batch.source_mask))
    return found


@pytest.mark.parametrize("settings", DECODINGS, ids=decoding_name)
def test_same_translations(translators: list[tuple[Any, Any, Tensor, Tensor]], settings: dict[str, Any]) -> None:
    """Greedy and beam search, token by token; among the translations are finished and unfinished ones."""
    endings, translations = set(), set()
    for model, marian, source, mask in translators:
        end, pad = model.config.eos_token_id, model.config.pad_token_id
        settings = {"max_new_tokens": 12, **settings}
        ours = translate(model, source, mask, end, pad, **settings)
        theirs = translate(marian, source, mask, end, pad, **settings)
        assert_same_translations(ours, theirs, pad)
        translations |= {tuple(row) for row in ours.tolist()}
        endings |= {row.count(end) for row in ours.tolist()}
    assert endings == {0, 1} and len(translations) > len(translators)
