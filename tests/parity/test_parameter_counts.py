"""Parameter counts: those of Table 3 in the paper, to the last parameter and as printed, in millions.

They follow from V d + N (attention + feed-forward + 2 norms) + N (2 attentions + feed-forward + 3 norms), with biases
in attention. A vocabulary of 40,960, that of the first public code, explains each count but the big model's.
"""

from typing import Any

import pytest
import torch

from training.table3 import BASE, ROWS, Row
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

FIRST_CODE_VOCABULARY = 40_960
BIG: dict[str, Any] = {
    "d_model": 1024,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "dropout": 0.3,
}


def count(**fields: Any) -> int:
    """Parameters of the model, a tied matrix counted once."""
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**fields))
    total = sum(parameter.numel() for parameter in model.parameters())
    assert model.num_parameters() == total
    return total


def heads(number: int) -> dict[str, Any]:
    return {"encoder_attention_heads": number, "decoder_attention_heads": number}


def layers(number: int) -> dict[str, Any]:
    return {"encoder_layers": number, "decoder_layers": number}


def ffn(width: int) -> dict[str, Any]:
    return {"encoder_ffn_dim": width, "decoder_ffn_dim": width}


BASE_COUNT = 65_110_016
# At 40,960 entries, of the rows that have not as many as the base model.
COUNTS = {
    "B1": 58_018_304,
    "B2": 60_382_208,
    "C1": 35_684_352,
    "C2": 50_397_184,
    "C3": 79_822_848,
    "C4": 27_848_704,
    "C5": 167_944_192,
    "C6": 52_514_816,
    "C7": 90_300_416,
    "E": BASE_COUNT + 2 * 1024 * 512,
}


@pytest.mark.parametrize("row", (BASE, *ROWS), ids=lambda row: row.name)
def test_table_3(row: Row) -> None:
    expected = COUNTS.get(row.name, BASE_COUNT)
    assert count(vocab_size=FIRST_CODE_VOCABULARY, **row.config) == expected
    assert row.millions is None or round(expected / 1e6) == row.millions


def test_heads_share_the_width() -> None:
    """Without d_k and d_v more heads are narrower ones (§3.2.2), as in rows A."""
    assert count(vocab_size=FIRST_CODE_VOCABULARY, **heads(32)) == BASE_COUNT


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, 63_082_496),
        (BIG, 214_245_376),
        ({"attention_bias": False}, 63_045_632),
        ({"vocab_size": FIRST_CODE_VOCABULARY, "attention_bias": False}, 65_073_152),
        ({"vocab_size": 32_768}, 60_915_712),
        ({"vocab_size": 36_546, **BIG}, 213_780_480),
        ({"vocab_size": FIRST_CODE_VOCABULARY, **BIG}, 218_300_416),
    ],
)
def test_other_vocabularies(fields: dict[str, Any], expected: int) -> None:
    """The default vocabulary of about 37,000 (§5.1); attention without biases; the 36,546 entries of a public BPE."""
    assert count(**fields) == expected


@pytest.mark.parametrize(
    "fields, millions",
    [
        ({"d_k": 16}, 55.99),
        ({"d_k": 32}, 58.35),
        (layers(2), 33.66),
        (layers(4), 48.37),
        (layers(8), 77.80),
        ({"d_model": 256}, 26.83),
        ({"d_model": 1024}, 163.89),
        (ffn(1024), 50.49),
        (ffn(4096), 88.27),
    ],
)
def test_rows_at_the_default_vocabulary(fields: dict[str, Any], millions: float) -> None:
    assert round(count(**fields) / 1e6, 2) == millions


def test_a_published_small_model() -> None:
    """4 layers of width 128, d_ff 256, 4 heads and 9,712 joint entries, as fairseq builds it for Multi30k."""
    fields = {"d_model": 128, "vocab_size": 9_712, **layers(4), **ffn(256), **heads(4)}
    assert count(**fields) == 2_568_192


def test_what_is_untied_or_added_counts() -> None:
    """A matrix of its own for what a flag unties; the output's bias; the final norm of each stack under pre-LN."""
    vocabulary, width = FIRST_CODE_VOCABULARY, 512
    apart = {"share_encoder_decoder_embeddings": False}
    assert count(vocab_size=vocabulary, tie_word_embeddings=False) == BASE_COUNT + vocabulary * width
    assert count(vocab_size=vocabulary, **apart) == BASE_COUNT + vocabulary * width
    assert count(vocab_size=vocabulary, tie_word_embeddings=False, **apart) == BASE_COUNT + 2 * vocabulary * width
    assert count(vocab_size=vocabulary, decoder_vocab_size=1000, **apart) == BASE_COUNT + 1000 * width
    assert count(vocab_size=vocabulary, final_logits_bias=True) == BASE_COUNT + vocabulary
    assert count(vocab_size=vocabulary, norm_position="pre") == BASE_COUNT + 2 * 2 * width
