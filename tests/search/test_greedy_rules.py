"""Greedy search heeds processors, criteria and the limits of each sentence as transformers' own does."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationMixin

from tests.tiny import SRC, endless, pad

from .common import SOURCES, WatchedDecoder, compare_greedy
from .rules import CRITERIA, PROCESSORS, FinishedAtAMultiple, FinishedByRow
from .samples import MODELS, likes_to_end

# Processors and criteria


@pytest.mark.parametrize("settings", PROCESSORS, ids=", ".join)
def test_logits_processors(settings: dict[str, Any], greedy: list[WatchedDecoder]) -> None:
    """A processor sees the rows that it sees in transformers' own search; so finished sentences stay in the batch."""
    changed = []
    for seed, (factor, bias) in enumerate([(1.5, 2.0), (3.0, 5.0)]):
        model = likes_to_end(seed, bias, factor, **MODELS[seed])
        ids, mask = pad(SOURCES, "left" if seed == 1 else "right")
        call: dict[str, Any] = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 9}
        output = compare_greedy(model, greedy, **call, **settings)
        assert set(greedy[-1].sizes) == {5}
        changed.append(output.tolist() != model.generate(**call, num_beams=1).tolist())
    assert any(changed) == ("remove_invalid_values" not in settings)


@pytest.mark.parametrize("end", [2, [2, 40], None], ids=str)
@pytest.mark.parametrize("padding", [0, 49])
def test_what_processors_and_criteria_see(padding: int, end: Any, greedy: list[WatchedDecoder]) -> None:
    """They see the tokens that they see in transformers' own search, of sentences that have ended too."""
    model = likes_to_end(1, 2.0, 1.5, pad_token_id=padding)
    model.generation_config.eos_token_id = end
    ids, mask = pad(SOURCES, value=padding)
    seen: list[list[list[int]]] = []

    def processor(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids.tolist())
        return scores

    def criterion(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        seen.append(input_ids.tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool)

    call = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 9}
    compare_greedy(model, greedy, **call, logits_processor=[processor], stopping_criteria=[criterion])
    assert len(seen) == 36
    assert seen[:18] == seen[18:]
    assert any(2 in row[:5] for row in seen[17])


@pytest.mark.parametrize("padding", [0, 49])
@pytest.mark.parametrize("name", CRITERIA)
def test_stopping_criteria(name: str, padding: int, greedy: list[WatchedDecoder]) -> None:
    """A criterion of the user's ends sentences as in transformers' own search, after as many steps."""
    ids, mask = pad(SOURCES, value=padding)
    earlier = []
    for seed, (factor, bias) in enumerate([(2.5, 4.0), (1.5, 2.0), (4.0, -1e4)]):
        model = likes_to_end(seed, bias, factor, pad_token_id=padding)
        call: dict[str, Any] = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 9}
        output = compare_greedy(model, greedy, **call, **CRITERIA[name])
        assert set(greedy[-1].sizes) == {5} or "length" in name
        earlier.append(output.tolist() != model.generate(**call, num_beams=1).tolist())
    assert any(earlier) == (name != "much time")


def test_criteria_without_an_end_token(greedy: list[WatchedDecoder]) -> None:
    """Where no end token is known, a criterion ends its sentence, and padding follows; in between all is as ever."""
    model = likes_to_end(0, 3.0, 1.5, pad_token_id=49)
    model.generation_config.eos_token_id = None
    ids, mask = pad(SOURCES, value=49)
    call: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 9, "num_beams": 1}
    text = model.generate(ids, **call)
    seen: list[list[list[int]]] = []

    def processor(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids.tolist())
        return scores

    output = model.generate(ids, **call, stopping_criteria=[FinishedByRow()], logits_processor=[processor])
    assert seen == [text[:, :length].tolist() for length in range(1, 8)]
    assert len(greedy) == 2
    for row, length in enumerate([4, 5, 6, 7, 8]):
        assert output[row].tolist() == [*text[row, :length], *[49] * (8 - length)]
    call["stopping_criteria"] = [FinishedAtAMultiple(3)]
    for row, full in zip(model.generate(ids, **call).tolist(), text.tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(full) if i and token % 3 == 2), len(full))
        assert row == full[:length] + [49] * (len(row) - length)


def test_no_time_left(greedy: list[WatchedDecoder], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_time` over, the step is the last; here a second passes whenever somebody looks at the clock."""
    clock = SimpleNamespace(time=itertools.count(1.0).__next__)
    monkeypatch.setattr("transformers.generation.stopping_criteria.time", clock)
    model = endless(1)
    assert model.generate(SRC, num_beams=1, max_time=0.0).shape == (1, 2)
    assert model.generate(SRC, num_beams=1, max_time=4.5).shape == (1, 6)
    assert model.generate(SRC, num_beams=1, max_time=1000.0, max_new_tokens=30).shape == (1, 31)
    assert len(greedy) == 3


# Limits of each sentence


def alone(model: Any, source: list[int], **settings: Any) -> list[int]:
    """The text that transformers' `generate`, without what this model adds to it, finds for one sentence."""
    output: Any = GenerationMixin.generate(model, torch.tensor([source]), num_beams=1, **settings)
    return output[0].tolist()


@pytest.mark.parametrize("prompt", [[1], [1, 9, 8]], ids=str)
def test_each_sentence_has_its_own_limit(prompt: list[int], greedy: list[WatchedDecoder]) -> None:
    """In a batch a sentence has the text that transformers' own search gives it alone; then it leaves (B18)."""
    ids, mask = pad(SOURCES)
    reached = []
    for seed in range(3):
        model = likes_to_end(seed, 4.0, 1.5 + seed)
        prompts = torch.tensor([prompt] * 5)
        call = {"inputs": ids, "attention_mask": mask, "decoder_input_ids": prompts, "max_length_margin": 4}
        output = compare_greedy(model, greedy, **call)
        texts = [
            alone(model, source, decoder_input_ids=prompts[:1], max_new_tokens=len(source) + 4) for source in SOURCES
        ]
        new = [len(text) - len(prompt) for text in texts]
        assert output.tolist() == [text + [0] * (max(new) - length) for text, length in zip(texts, new, strict=True)]
        assert greedy[-1].sizes == [sum(length > step for length in new) for step in range(max(new))]
        reached += [length == len(source) + 4 for length, source in zip(new, SOURCES, strict=True)]
    assert 0 < sum(reached) < len(reached)


@pytest.mark.parametrize("end", [2, [2, 31]], ids=str)
@pytest.mark.parametrize("ratio", [0.5, 1.5, 2.0])
def test_each_sentence_has_its_own_minimum(ratio: float, end: Any, greedy: list[WatchedDecoder]) -> None:
    """No text has fewer new tokens, end token counted, than the ratio times its source, end token counted."""
    minimums = {0.5: [2, 4, 1, 3, 2], 1.5: [6, 11, 2, 8, 5], 2.0: [8, 14, 2, 10, 6]}[ratio]
    ids, mask = pad(SOURCES)
    exactly = 0
    for seed in range(2):
        model = likes_to_end(seed, 20.0, 1.5, eos_token_id=end)
        for settings in ({"max_length_margin": 5}, {"max_new_tokens": 9}):
            call = {"inputs": ids, "attention_mask": mask, "min_length_ratio": ratio, **settings}
            output = compare_greedy(model, greedy, **call)
            for row, source, minimum in zip(output.tolist(), SOURCES, minimums, strict=True):
                limit = settings.get("max_new_tokens", len(source) + 5)
                # transformers' minimum does not count the end token.
                text = alone(model, source, max_new_tokens=limit, min_new_tokens=min(minimum - 1, limit))
                assert row == text + [0] * (len(row) - len(text))
                assert len(text) - 1 >= min(minimum, limit)
                exactly += len(text) - 1 == minimum
    assert exactly > 10


def test_a_minimum_without_an_end_token(greedy: list[WatchedDecoder]) -> None:
    """Where no end token is known there is none to bar."""
    model = endless(1, eos_token_id=None).double()
    for beams in (1, 2):
        for theirs in ({}, {"use_cache": False}):
            output = model.generate(SRC, num_beams=beams, min_length_ratio=1.5, max_new_tokens=5, **theirs)
            assert output.shape == (1, 6)
    assert len(greedy) == 1
