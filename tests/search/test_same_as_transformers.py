"""Beam search finds what transformers' own finds, whatever the model, the input and the settings."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import SRC, endless, pad
from vanilla_transformer import beam_search_vanilla_transformer as engine

from .common import ROUNDING, SOURCES, WatchedSearch, by_sentence, compare, lengths
from .rules import FinishedAtAMultiple
from .samples import chain, likes_to_end, sample, sample_chain, several, uneven_chain


@pytest.mark.parametrize("seed", range(100))
def test_random_models_and_settings(seed: int, searches: list[WatchedSearch]) -> None:
    """Token ids, scores, beam indices and the number of steps are those of transformers' own search."""
    model, call = sample(seed)
    compare(model, searches, **call)


@pytest.mark.parametrize("seed", range(80))
def test_random_chains_and_settings(seed: int, searches: list[WatchedSearch]) -> None:
    """As transformers' own search, with texts that end at many lengths."""
    model, call = sample_chain(seed)
    compare(model, searches, **call)


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_several_likely_end_tokens(seed: int, beams: int, searches: list[WatchedSearch]) -> None:
    """With end tokens likely and long texts favoured, enough continuations are looked at to go on with."""
    logits = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed))
    logits[:, [2, 3, 4]] += 3.0
    call = several(num_beams=beams, num_return_sequences=beams, eos_token_id=[2, 3, 4], length_penalty=4.0)
    compare(chain(logits, 0.1), searches, **call, early_stopping="never")


def test_the_samples_are_not_all_alike(searches: list[WatchedSearch]) -> None:
    """Hypotheses end early and at the limit, searches stop early, sentences leave, few scores are nearly equal."""
    ended, stopped, left, certain = [], [], [], []
    for seed in range(30):
        model, call = sample_chain(seed)
        found = lengths(model.generate(**call, return_dict_in_generate=True))
        ended += [length < call["max_new_tokens"] for length in found]
        stopped.append(searches[-1].new < call["max_new_tokens"])
        left.append(searches[-1].sizes[-1] < searches[-1].sizes[0])
        certain += searches[-1].gaps.gt(ROUNDING).tolist()
    assert min(sum(ended), len(ended) - sum(ended)) > 10
    assert min(sum(stopped), len(stopped) - sum(stopped)) > 3
    assert sum(left) > 3
    assert sum(certain) > 0.8 * len(certain)


@pytest.mark.parametrize("changes", [{}, {"position_offset": 3}, {"position_encoding": "learned"}], ids=str)
def test_positions_up_to_the_table_and_beyond(changes: dict[str, Any], searches: list[WatchedSearch]) -> None:
    """Learned positions serve to their last, sinusoids beyond their table (B11, B15)."""
    model = likes_to_end(0, -1e4, 3.0, max_position_embeddings=12, **changes)
    ids, mask = pad(SOURCES)
    for new in (11, 12) if "position_encoding" in changes else (8, 9, 10, 11, 12, 13, 14, 20):
        compare(model, searches, inputs=ids, attention_mask=mask, max_new_tokens=new)


def test_nothing_to_gain(searches: list[WatchedSearch]) -> None:
    """A running hypothesis that can just reach the worst finished one is no reason to go on."""
    p = torch.full((8, 8), 1e-40, dtype=torch.float64)
    p[1, [2, 3, 4]] = torch.tensor([0.4, 0.3, 0.3], dtype=torch.float64)
    p[3, 2] = p[4, 5] = p[5, 2] = 1.0
    call: dict[str, Any] = {
        "inputs": SRC % 8,
        "num_beams": 2,
        "num_return_sequences": 2,
        "return_dict_in_generate": True,
    }
    for early_stopping in (False, "never"):
        settings: dict[str, Any] = {"length_penalty": 0.0, "early_stopping": early_stopping, "max_new_tokens": 6}
        output = chain(p.log()).generate(**call, **settings)
        assert output.sequences.tolist() == [[1, 2, 0], [1, 3, 2]]
        assert searches[-1].new == 2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(attention: str, searches: list[WatchedSearch]) -> None:
    """The attention that a model was loaded with makes no difference."""
    model = likes_to_end(1, 4.0, 3.0, attention=attention)
    ids, mask = pad(SOURCES, "left")
    compare(model, searches, inputs=ids, attention_mask=mask, max_new_tokens=9)


def test_a_start_token_for_each_sentence(searches: list[WatchedSearch]) -> None:
    """Sentences may begin with different tokens."""
    ids, mask = pad(SOURCES)
    starts = [5, 6, 7, 8, 9]
    output = compare(
        endless(1).double(), searches, inputs=ids, attention_mask=mask, decoder_start_token_id=starts, max_new_tokens=5
    )
    assert output.sequences[:, 0].tolist() == starts


def test_a_source_without_tokens(searches: list[WatchedSearch]) -> None:
    """A source that is all padding has a result, and the others theirs (B06)."""
    model = endless(1).double()
    ids, mask = pad(SOURCES[:4])
    mask[1] = 0
    output = compare(model, searches, inputs=ids, attention_mask=mask, max_new_tokens=5)
    others = [0, 2, 3]
    assert model.generate(ids[others], attention_mask=mask[others], max_new_tokens=5).equal(output.sequences[others])


def test_no_end_token(searches: list[WatchedSearch]) -> None:
    """Without an end token all hypotheses go on to the limit, or to where a criterion ends them."""
    for seed in range(4):
        model = uneven_chain(seed)
        model.generation_config.eos_token_id = None
        call = several(length_penalty=4.0, early_stopping="never", max_new_tokens=6)
        assert set(lengths(compare(model, searches, **call))) == {6}
        call["stopping_criteria"] = [FinishedAtAMultiple(2)]
        ours, theirs = model.generate(**call), model.generate(**call, output_scores=True)
        assert by_sentence(ours, 8, 3, prompt=2) == by_sentence(theirs, 8, 3, prompt=2)


@pytest.mark.parametrize("seed", range(10))
def test_blocks_of_the_vocabulary(seed: int, searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch) -> None:
    """With more blocks of the vocabulary than are looked into, and a sentence or two at a time, nothing changes."""
    model, call = sample(seed)
    call |= {"num_beams": 2, "num_return_sequences": 2}
    monkeypatch.setattr(engine, "BLOCK", 3)
    monkeypatch.setattr(engine, "LOGITS_AT_ONCE", 250)
    looked_into = []

    def largest(scores: Tensor, n: int, largest: Any = engine.largest) -> Any:
        vocabulary = scores.shape[-1]
        looked_into.append(vocabulary // 3 > n and len(scores) <= 250 // (2 * vocabulary))
        return largest(scores, n)

    monkeypatch.setattr(engine, "largest", largest)
    compare(model, searches, **call)
    assert set(looked_into) == {True}
