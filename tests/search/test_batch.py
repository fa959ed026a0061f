"""A sentence and its batch: finished sentences leave it, and nobody's text depends on the others."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tiny import pad
from vanilla_transformer import beam_search_vanilla_transformer as engine

from .common import SOURCES, WatchedSearch, by_sentence, close, compare, lengths
from .samples import MODELS, likes_to_end, several, uneven_chain


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("seed", [1, 4, 13])
def test_finished_sentences_leave_the_batch(
    seed: int, early_stopping: bool | str, searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch gets smaller as sentences finish, now, at once or never, and the result is the same."""
    model, call = uneven_chain(seed), several("power", early_stopping=early_stopping, length_penalty=0.0)
    expected = compare(model, searches, **call)
    default = searches[-1].sizes
    found = {}
    for share in (0.0, 1.0):
        monkeypatch.setattr(engine, "LEAVE_AT", share)
        output = model.generate(**call)
        found[share] = searches[-1].sizes
        assert output.sequences.equal(expected.sequences)
        assert output.beam_indices.equal(expected.beam_indices)
        close(output.sequences_scores, expected.sequences_scores)
    steps = len(default)
    assert found[0.0] == [8] * steps
    assert len(found[1.0]) == steps
    assert found[1.0] == sorted(found[1.0], reverse=True)
    assert found[1.0][-1] < 6
    smaller = [8]  # what 0.75 makes of those that are open
    for still_open in found[1.0][1:]:
        smaller.append(still_open if still_open <= 0.75 * smaller[-1] else smaller[-1])
    assert default == smaller


@pytest.mark.parametrize("share", [0.0, 0.75, 1.0])
def test_who_else_is_in_the_batch(
    share: float, searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in another order or in other company, a sentence has the same hypotheses (B06)."""
    monkeypatch.setattr(engine, "LEAVE_AT", share)
    draw = random.Random(0)
    sources = [[draw.randrange(3, 49) for _ in range(length)] + [2] for length in (0, 1, 2, 3, 5, 8, 13)]
    ids, mask = pad(sources)
    settings: dict[str, Any] = {"max_length_margin": 8, "num_return_sequences": 4, "return_dict_in_generate": True}
    sizes = []
    for seed in range(3):
        model = likes_to_end(seed, 4.0, 2.5, **MODELS[seed])

        def found(rows: list[int], extra: int, model: Any = model) -> tuple[list[Any], Tensor]:
            call = {"inputs": F.pad(ids[rows], (0, extra)), "attention_mask": F.pad(mask[rows], (0, extra))}
            output = model.generate(**call, **settings)
            return by_sentence(output, len(rows), 4), output.sequences_scores.view(len(rows), 4)

        alone = [found([row], 0) for row in range(7)]
        for rows, extra in (([0, 1, 2, 3, 4, 5, 6], 0), ([6, 3, 0, 5, 2, 1, 4], 1), ([5, 1, 3], 0), ([2, 2, 6, 2], 2)):
            hypotheses, scores = found(rows, extra)
            assert hypotheses == [alone[row][0][0] for row in rows]
            close(scores, torch.cat([alone[row][1] for row in rows]))
            sizes.append((searches[-1].sizes[0], searches[-1].sizes[-1]))
    assert any(last < first for first, last in sizes) == (share > 0)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_each_sentence_has_its_own_limit(
    kind: str, early_stopping: bool | str, searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch a sentence has what transformers' own search gives it alone, after as many steps (B18)."""
    monkeypatch.setattr(engine, "LEAVE_AT", 1.0)
    settings = {
        "length_penalty_kind": kind,
        "early_stopping": early_stopping,
        "max_length_margin": 4,
        "num_return_sequences": 4,
    }
    ids, mask = pad(SOURCES)
    reached = []
    for seed in range(3):
        model = likes_to_end(seed, 3.0, 1.5 + seed)
        together = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **settings)
        steps = []
        hypotheses, scores = by_sentence(together, len(SOURCES), 4), together.sequences_scores.view(-1, 4)
        for row, source in enumerate(SOURCES):
            alone = compare(model, searches, inputs=torch.tensor([source]), **settings)
            assert by_sentence(alone, 1, 4) == [hypotheses[row]]
            close(scores[row], alone.sequences_scores)
            steps.append(searches[-1].new)
            assert steps[-1] <= len(source) + 4
            reached += [len(tokens) == len(source) + 4 for tokens, _ in hypotheses[row]]
        sizes = searches[-1 - len(SOURCES)].sizes
        assert sizes == [sum(step < end for end in steps) for step in range(max(steps))]
    assert 0 < sum(reached) < len(reached)


@pytest.mark.parametrize("at_once", [1, 2**22])
@pytest.mark.parametrize("ratio", [1.5, 2.0])
def test_each_sentence_has_its_own_minimum(
    ratio: float, at_once: int, searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hypothesis has fewer new tokens, end token counted, than the ratio times its source, end token counted."""
    monkeypatch.setattr(engine, "LOGITS_AT_ONCE", at_once)
    monkeypatch.setattr(engine, "LEAVE_AT", 1.0)
    minimums = {1.5: [6, 11, 2, 8, 5], 2.0: [8, 14, 2, 10, 6]}[ratio]
    ids, mask = pad(SOURCES)
    settings: dict[str, Any] = {"max_length_margin": 5, "num_return_sequences": 4, "return_dict_in_generate": True}
    model = likes_to_end(0, 20.0, 1.5)
    output = compare(model, searches, inputs=ids, attention_mask=mask, min_length_ratio=ratio, **settings)
    exactly = 0
    for row, source in enumerate(SOURCES):
        limit = len(source) + 5
        # transformers' minimum does not count the end token.
        least = {"min_new_tokens": min(minimums[row] - 1, limit)}
        alone = model.generate(torch.tensor([source]), **least, **settings)
        assert by_sentence(alone, 1, 4) == [by_sentence(output, 5, 4)[row]]
        assert min(lengths(alone)) >= min(minimums[row], limit)
        exactly += min(lengths(alone)) == minimums[row]
    assert exactly > 2
