"""`translate()`: order, empty lines, independence of neighbours (B41)."""

import random

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from tests.tiny import scale, tiny
from training.tokenizer import train_tokenizer
from vanilla_transformer import VanillaTransformerForConditionalGeneration, translate

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([" ".join(WORDS)] * 5, 320)


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerForConditionalGeneration:
    """Random, so that many of its hypotheses are nearly equal: float64 tells them apart whatever the batch."""
    torch.manual_seed(3)
    return scale(tiny(vocab_size=len(tokenizer))).double()


def sentences(n: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(n)]


def test_order_and_independence_of_the_batch(
    model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Every budget gives what one sentence at a time gives, in input order."""
    lines = sentences(20)
    alone = [next(translate(model, tokenizer, [line], num_beams=2)) for line in lines]
    assert len(set(alone)) > 10
    for budget in (1, 64, 8192):
        assert list(translate(model, tokenizer, lines, max_batch_tokens=budget, num_beams=2)) == alone


def test_empty_lines_give_empty_lines(
    model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    lines = ["", " ", "alpha", " ".join(WORDS * 50), "", "beta"]
    translated = list(translate(model, tokenizer, lines, max_batch_tokens=20, num_beams=1))
    assert [bool(text) for text in translated] == [False, False, True, True, False, True]
    assert list(translate(model, tokenizer, [])) == []
    assert list(translate(model, tokenizer, ["", "\t\u2028"])) == ["", ""]


def test_several_translations_of_each(
    model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    lines = ["", *sentences(5)]
    best = list(translate(model, tokenizer, lines, num_beams=4))
    several = list(translate(model, tokenizer, iter(lines), num_beams=4, num_return_sequences=3))
    assert several[0] == ["", "", ""]
    assert [group[0] for group in several] == best
    assert all(len(group) == 3 for group in several)


def test_bad_numbers_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="`max_batch_tokens` must be 1 or more, got 0"):
        translate(None, None, ["a"], max_batch_tokens=0)
    with pytest.raises(ValueError, match="`num_return_sequences` must be 1 or more"):
        translate(None, None, ["a"], num_return_sequences=0)
