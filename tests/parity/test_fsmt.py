"""The model against FSMT in transformers, fairseq's translation models: same weights, same numbers, same words."""

import inspect
from typing import Any

import pytest
from torch import Tensor
from transformers import FSMTConfig, FSMTForConditionalGeneration
from transformers.models.fsmt.modeling_fsmt import SinusoidalPositionalEmbedding

from vanilla_transformer import VanillaTransformerForConditionalGeneration

from .common import SMALL, assert_close, assert_gradients_close, model_with, random_batch, run
from .translators import assert_same_translations, copy_weights, translate

SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
APART: dict[str, Any] = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
RENAMED = {"lm_head.weight": "model.decoder.output_projection.weight"}


def pair(
    seed: int, attention: str = "sdpa", **fields: Any
) -> tuple[VanillaTransformerForConditionalGeneration, FSMTForConditionalGeneration]:
    """The model and an FSMT model of the same weights."""
    model = model_with(
        seed,
        attention,
        **{
            "position_encoding": "sinusoidal_tensor2tensor",
            "position_offset": 2,
            "layer_norm_eps": 1e-5,
            **SPECIAL,
            **fields,
        },
    )
    alike = set(SMALL) - {"vocab_size"} | set(SPECIAL) | {"scale_embedding", "tie_word_embeddings"}
    config = FSMTConfig(
        **{name: getattr(model.config, name) for name in alike},
        src_vocab_size=model.config.vocab_size,
        tgt_vocab_size=model.config.target_vocab_size,
        activation_function="relu",
        forced_eos_token_id=None,
    )
    fsmt = FSMTForConditionalGeneration(config).eval()
    shared = {"model.shared.weight": "model.encoder.embed_tokens.weight"}  # FSMT has no name for what is shared
    copy_weights(model, fsmt, {**RENAMED, **shared})
    return model, fsmt


def fsmt_gradients(fsmt: FSMTForConditionalGeneration, found: dict[str, Tensor], shared: bool) -> dict[str, Tensor]:
    """FSMT's gradients under this project's names, without that of the table of positions, which is no weight."""
    names = {new: old for old, new in RENAMED.items()}
    gradients = {names.get(name, name): grad for name, grad in found.items() if "embed_positions" not in name}
    if shared:
        gradients["model.shared.weight"] = gradients["model.encoder.embed_tokens.weight"]
    return gradients


CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "one matrix": ({}, (4, 7, 6)),
    "three matrices": (APART, (4, 7, 6)),
    "a larger target vocabulary": ({**APART, "decoder_vocab_size": 31}, (3, 9, 5)),
    "a smaller target vocabulary": ({**APART, "decoder_vocab_size": 11}, (3, 5, 9)),
    "embeddings as they are": ({"scale_embedding": False}, (2, 6, 6)),
    "one head, one layer": (
        {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 1,
            "decoder_attention_heads": 1,
        },
        (5, 4, 11),
    ),
    "one and three layers, eight and four heads": (
        {
            **APART,
            "encoder_layers": 1,
            "decoder_layers": 3,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 4,
        },
        (2, 12, 3),
    ),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "right", "both"])
@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_gradients(name: str, padding: str, attention: str) -> None:
    """With padding on any side of source and target: both models count positions over real tokens."""
    fields, shape = CASES[name]
    model, fsmt = pair(1, attention, **fields)
    batch = random_batch(
        2,
        shape,
        target_ids=range(3, model.config.target_vocab_size),
        pad=SPECIAL["pad_token_id"],
        start=SPECIAL["decoder_start_token_id"],
        source_padding=padding,
        target_padding=padding,
    )
    inputs = {**batch.inputs(), "decoder_attention_mask": batch.target_mask}
    logits, loss, gradients = run(model, inputs)
    expected_logits, expected_loss, expected_gradients = run(fsmt, inputs)

    real = batch.target_mask.bool()
    assert_close(logits[real], expected_logits[real], "logits", 2e-5)
    assert_close(loss, expected_loss, "loss", 1e-5)
    shared = model.config.share_encoder_decoder_embeddings
    assert_gradients_close(gradients, fsmt_gradients(fsmt, expected_gradients, shared))


@pytest.mark.parametrize("width", [4, 64, 512])
def test_position_table(width: int) -> None:
    """The layout called `sinusoidal_tensor2tensor` is FSMT's table, but for its row of zeros at the padding id.

    FSMT's angles are rounded to fp32, so that it is itself off by some 1e-5 towards the end of the table.
    """
    fields: dict[str, Any] = {
        "d_model": width,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "max_position_embeddings": 254,
    }
    model, fsmt = pair(0, **fields)
    for ours, theirs in ((model.model.encoder, fsmt.model.encoder), (model.model.decoder, fsmt.model.decoder)):
        assert len(ours.embed_positions.weight) == len(theirs.embed_positions.weight) == 256
        assert_close(ours.embed_positions.weight[2:], theirs.embed_positions.weight[2:], "positions", 5e-5)


DECODINGS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": 0.6},
    {"num_beams": 5, "length_penalty": 1.0, "early_stopping": True},
    {"num_beams": 3, "length_penalty": 1.0, "num_return_sequences": 3},
]


@pytest.fixture
def counted_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSMT of transformers 5.17 gives every token that it decodes with a cache the first position: here it counts.

    Newer releases are told `cache_length` and count themselves.
    """
    forward = SinusoidalPositionalEmbedding.forward
    if "cache_length" in inspect.signature(forward).parameters:
        return
    steps = 0

    def counted(self: Any, tokens: Tensor) -> Tensor:
        nonlocal steps
        if tokens.shape[1] > 1:  # a source: a new translation begins
            steps = 0
            return forward(self, tokens)
        steps += 1
        return forward(self, tokens.new_full((len(tokens), steps), SPECIAL["eos_token_id"]))[:, -1:]

    monkeypatch.setattr(SinusoidalPositionalEmbedding, "forward", counted)


@pytest.mark.usefixtures("counted_positions")
@pytest.mark.parametrize("settings", DECODINGS, ids=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()))
def test_same_translations(settings: dict[str, Any]) -> None:
    """Greedy and beam search, token by token, where the end token also starts a translation."""
    end, pad = SPECIAL["eos_token_id"], SPECIAL["pad_token_id"]
    translations = set()
    for seed in range(4):
        model, fsmt = pair(seed, **APART)
        batch = random_batch(10 + seed, (5, 8, 1), pad=pad)
        settings = {"max_new_tokens": 12, "suppress_tokens": [pad], **settings}
        ours = translate(model, batch.source, batch.source_mask, end, pad, **settings)
        theirs = translate(fsmt, batch.source, batch.source_mask, end, pad, **settings)
        assert_same_translations(ours, theirs, pad)
        translations |= {tuple(row) for row in ours.tolist()}
    assert len(translations) > 4
