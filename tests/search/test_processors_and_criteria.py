"""Logits processors and stopping criteria act in beam search as in transformers' own."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiny import SRC, endless, pad

from .common import SOURCES, WatchedSearch, by_sentence, close, compare, lengths
from .rules import CRITERIA, PROCESSORS
from .samples import MODELS, likes_to_end


@pytest.mark.parametrize("settings", PROCESSORS, ids=", ".join)
def test_logits_processors(settings: dict[str, Any], searches: list[WatchedSearch]) -> None:
    """A processor sees the rows that it sees in transformers' own search; so finished sentences stay in the batch."""
    changed = []
    for seed, (factor, bias) in enumerate([(1.5, 2.0), (3.0, 5.0), (6.0, 16.0)]):
        model = likes_to_end(seed, bias, factor, **MODELS[seed])
        ids, mask = pad(SOURCES, "left" if seed == 1 else "right")
        early_stopping: Any = (False, True, "never")[seed]
        call: dict[str, Any] = {"inputs": ids, "attention_mask": mask, "early_stopping": early_stopping, **settings}
        output = compare(model, searches, max_new_tokens=9, num_return_sequences=3, **call)
        assert set(searches[-1].sizes) == {5}
        without = model.generate(ids, attention_mask=mask, max_new_tokens=9, num_return_sequences=3)
        changed.append(output.sequences.tolist() != without.tolist())
    assert any(changed) == ("remove_invalid_values" not in settings)


@pytest.mark.parametrize("padding", [0, 49])
@pytest.mark.parametrize("name", CRITERIA)
def test_stopping_criteria(name: str, padding: int, searches: list[WatchedSearch]) -> None:
    """A criterion of the user's ends hypotheses as in transformers' own search; only padding follows."""
    settings = CRITERIA[name]
    ids, mask = pad(SOURCES, value=padding)
    for seed, (factor, bias) in enumerate([(1.5, 3.0), (3.0, 3.0), (4.0, -1e4)]):
        model = likes_to_end(seed, bias, factor, pad_token_id=padding)
        call = {"attention_mask": mask, "max_new_tokens": 9, "num_return_sequences": 2, **settings}
        call["return_dict_in_generate"] = True
        ours, theirs = model.generate(ids, **call), model.generate(ids, **call, output_scores=True)
        search = searches[-1]
        assert len(searches) == seed + 1
        assert search.new == len(theirs.scores)
        assert set(search.sizes) == {5} or "length" in name
        # Behind a hypothesis that ends without an end token transformers' search may write one.
        assert by_sentence(ours, 5, 4) == by_sentence(theirs, 5, 4)
        close(ours.sequences_scores, theirs.sequences_scores)
        for row, length in zip(ours.sequences, lengths(ours), strict=True):
            assert (row[1 + length :] == padding).all()


def test_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_time` over, the step is the last; here a second passes whenever somebody looks at the clock."""
    clock = SimpleNamespace(time=itertools.count(1.0).__next__)
    monkeypatch.setattr("transformers.generation.stopping_criteria.time", clock)
    model = endless(1)
    assert model.generate(SRC, max_time=0.0).shape == (1, 2)
    assert model.generate(SRC, max_time=4.5).shape == (1, 6)
    assert model.generate(SRC, max_time=1000.0, max_new_tokens=30).shape == (1, 31)


def test_no_padding_token(searches: list[WatchedSearch]) -> None:
    """Without a padding token the end token fills the rows, as in transformers' own search."""
    ids, mask = pad(SOURCES)
    compare(
        likes_to_end(0, 3.0, 1.5, pad_token_id=None),
        searches,
        inputs=ids,
        attention_mask=mask,
        max_new_tokens=9,
        num_return_sequences=3,
    )
