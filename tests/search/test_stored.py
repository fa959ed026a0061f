"""Keys and values: what is stored, where, and how much room it has."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MaxLengthCriteria

from tests.tiny import endless, pad
from vanilla_transformer import beam_search_vanilla_transformer as engine
from vanilla_transformer import incremental_decoder_vanilla_transformer as decoder

from .common import SOURCES, WatchedDecoder, WatchedSearch


class Stored(WatchedSearch):
    """A search that keeps, step by step, where keys and values are, and what is in them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.source: list[list[Tensor]] = []
        self.target: list[list[Tensor]] = []
        self.written: list[list[Tensor]] = []

    def _continue(self, *args: Any) -> Any:
        layers = self.decoder.layers
        self.source.append([part for layer in layers for part in layer.source])
        self.target.append([part for layer in layers for part in layer.target])
        self.written.append([part[:, :, : layer.columns].clone() for layer in layers for part in layer.target])
        return super()._continue(*args)


@pytest.mark.parametrize("at_first", [1, 3, 32, 1000])
@pytest.mark.parametrize("prompt", [1, 3])
def test_keys_and_values(at_first: int, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's exist once a sentence, and nothing that is written moves but to a larger place, a few times."""
    monkeypatch.setattr(decoder, "STEPS_AT_FIRST", at_first)
    monkeypatch.setattr(engine, "LEAVE_AT", 0.0)
    made: list[Stored] = []

    def search(*args: Any, **kwargs: Any) -> Stored:
        made.append(Stored(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(engine, "BeamSearch", search)
    model = endless(1, d_k=5, d_v=3, decoder_layers=3).double()
    ids, mask = pad(SOURCES)
    call: dict[str, Any] = {
        "inputs": ids,
        "attention_mask": mask,
        "decoder_input_ids": torch.tensor([[1, 9, 8][:prompt]] * 5),
        "num_beams": 6,
        "max_new_tokens": 40,
    }
    output = model.generate(**call)
    assert len(made) == 1
    search_done, steps = made[0], 40
    assert search_done.new == steps
    for parts in search_done.source:
        assert [tuple(part.shape) for part in parts] == [(5, 2, 7, 5), (5, 2, 7, 3)] * 3
        assert all(part is first for part, first in zip(parts, search_done.source[0], strict=True))
    for step, parts in enumerate(search_done.written):
        columns = prompt + 6 * step
        assert [tuple(part.shape) for part in parts] == [(5, 2, columns, 5), (5, 2, columns, 3)] * 3
        for part, last in zip(parts, search_done.written[-1], strict=True):
            assert part.equal(last[:, :, :columns])
    places = [parts[0] for parts in search_done.target]
    moves = sum(one is not other for one, other in itertools.pairwise(places))
    assert moves <= math.log2(1 + 6 * steps / min(at_first, prompt))
    assert moves == 0 or at_first < 1000
    assert output.equal(model.generate(**call, return_dict_in_generate=True, output_scores=True).sequences)


# Settings, and the longest limit that they give a sentence.
LIMITS: list[tuple[dict[str, Any], int]] = [
    ({"max_new_tokens": 11}, 11),
    ({"max_length_margin": 2}, 9),
    ({"max_new_tokens": 30, "stopping_criteria": [MaxLengthCriteria(8)]}, 5),
]


@pytest.mark.parametrize("at_first", [1, 2, 1000])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("settings", "longest"), LIMITS, ids=["all alike", "margin", "criterion"])
def test_no_more_room_than_can_be_needed(
    settings: dict[str, Any],
    longest: int,
    beams: int,
    at_first: int,
    searches: list[WatchedSearch],
    greedy: list[WatchedDecoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is room for the prompt and each hypothesis' longest text at most, however much there is at first."""
    monkeypatch.setattr(decoder, "STEPS_AT_FIRST", at_first)
    ids, mask = pad(SOURCES)
    prompt = torch.tensor([[1, 9, 8]] * 5)
    output = endless(1).generate(ids, attention_mask=mask, decoder_input_ids=prompt, num_beams=beams, **settings)
    assert output.shape[1] == 3 + longest
    used = greedy[0] if beams == 1 else searches[0].decoder
    assert len(greedy) + len(searches) == 1
    for layer in used.layers:
        assert layer.columns == 3 + beams * (longest - 1)  # the last token is not fed back
        for part in layer.target:
            assert layer.columns <= part.shape[2] <= 3 + beams * longest
            assert at_first < 1000 or part.shape[2] == 3 + beams * longest
