"""Greedy search computes what transformers' own computes and finds the same ids, whatever the model and the input."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationMixin

from tests.tiny import SRC, endless, pad

from .common import SOURCES, WatchedDecoder, compare_greedy
from .samples import MODELS, greedy_settings, likes_to_end, sample, sample_chain


def lengths(output: Tensor, steps: int, ends: int | list[int]) -> list[int]:
    """New tokens of each row of a search with so many steps, end token counted."""
    is_end = torch.isin(output[:, -steps:], torch.tensor(ends))
    return torch.where(is_end.any(dim=1), is_end.long().argmax(dim=1) + 1, steps).tolist()


@pytest.mark.parametrize("seed", range(60))
def test_random_models_and_inputs(seed: int, greedy: list[WatchedDecoder]) -> None:
    """Token ids, and the logits of each step, are those of transformers' own search."""
    model, call = sample(seed, greedy_settings)
    compare_greedy(model, greedy, **call)


@pytest.mark.parametrize("seed", range(40))
def test_finished_sentences_leave_the_batch(seed: int, greedy: list[WatchedDecoder]) -> None:
    """Each step is made for the sentences that have not ended, and the ids are those of transformers' own search."""
    model, call = sample_chain(seed, greedy_settings)
    output, sizes = compare_greedy(model, greedy, **call), greedy[-1].sizes
    found = lengths(output, len(sizes), call["eos_token_id"])
    assert sizes == [sum(length > step for length in found) for step in range(max(found))]


def test_the_samples_are_not_all_alike(greedy: list[WatchedDecoder]) -> None:
    """Sentences end early and at the limit, and leave."""
    for draw in (sample, sample_chain):
        ended, left = [], 0
        for seed in range(20):
            model, call = draw(seed, greedy_settings)
            output, sizes = model.generate(**call), greedy[-1].sizes
            ends: Any = call.get("eos_token_id", model.config.eos_token_id)
            ended += [length < call["max_new_tokens"] for length in lengths(output, len(sizes), ends)]
            left += 0 < sizes[-1] < sizes[0]
        assert min(sum(ended), len(ended) - sum(ended)) > 10
        assert left > 3


@pytest.mark.parametrize("seed", range(12))
def test_plain_transformers(seed: int, greedy: list[WatchedDecoder]) -> None:
    """The ids are those of transformers' `generate` without anything that this model adds to it."""
    model, call = sample(seed, greedy_settings)
    if "attention_mask" not in call:
        call["attention_mask"] = call["inputs"].ne(model.config.pad_token_id)
    assert model.generate(**call).equal(GenerationMixin.generate(model, **call))
    assert len(greedy) == 1


@pytest.mark.parametrize("changes", [{}, {"position_offset": 3}, {"position_encoding": "learned"}], ids=str)
def test_positions_up_to_the_table_and_beyond(changes: dict[str, Any], greedy: list[WatchedDecoder]) -> None:
    """Learned positions serve to their last, sinusoids beyond their table (B11, B15)."""
    model = likes_to_end(0, -1e4, 3.0, max_position_embeddings=12, **changes)
    ids, mask = pad(SOURCES)
    for new in (11, 12) if "position_encoding" in changes else (9, 12, 20):
        output = compare_greedy(model, greedy, inputs=ids, attention_mask=mask, max_new_tokens=new)
        assert output.shape == (5, 1 + new)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(attention: str, greedy: list[WatchedDecoder]) -> None:
    """The attention that a model was loaded with makes no difference."""
    ids, mask = pad(SOURCES, "left")
    model = likes_to_end(1, 4.0, 3.0, attention=attention)
    compare_greedy(model, greedy, inputs=ids, attention_mask=mask, max_new_tokens=9)


def test_a_start_token_for_each_sentence(greedy: list[WatchedDecoder]) -> None:
    """Sentences may begin with different tokens."""
    ids, mask = pad(SOURCES)
    call = {"inputs": ids, "attention_mask": mask, "decoder_start_token_id": [5, 6, 7, 8, 9], "max_new_tokens": 5}
    output = compare_greedy(endless(1).double(), greedy, **call)
    assert output[:, 0].tolist() == [5, 6, 7, 8, 9]


def test_a_source_without_tokens(greedy: list[WatchedDecoder]) -> None:
    """A source that is all padding has a result, and the others theirs (B06)."""
    model = endless(1).double()
    ids, mask = pad(SOURCES[:4])
    mask[1] = 0
    output = compare_greedy(model, greedy, inputs=ids, attention_mask=mask, max_new_tokens=5)
    others = [0, 2, 3]
    text = model.generate(ids[others], attention_mask=mask[others], max_new_tokens=5, num_beams=1)
    assert text.equal(output[others])


def test_no_end_token(greedy: list[WatchedDecoder]) -> None:
    """Without an end token all sentences go on to the limit."""
    model = likes_to_end(0, 3.0, 1.5)
    model.generation_config.eos_token_id = None
    ids, mask = pad(SOURCES)
    output = compare_greedy(model, greedy, inputs=ids, attention_mask=mask, max_new_tokens=9)
    assert output.eq(2).any()
    assert greedy[-1].sizes == [5] * 9


@pytest.mark.parametrize("padding", [0, 49, None])
@pytest.mark.parametrize("end", [2, [40, 2]], ids=str)
def test_only_padding_follows_the_end(end: int | list[int], padding: int | None, greedy: list[WatchedDecoder]) -> None:
    """What follows an end token is the padding token, or without one the first end token, as in transformers."""
    model = likes_to_end(1, 2.0, 1.5, pad_token_id=padding)
    ids, mask = pad(SOURCES, value=padding or 0)
    output = compare_greedy(model, greedy, inputs=ids, attention_mask=mask, max_new_tokens=9, eos_token_id=end)
    steps = len(greedy[-1].sizes)
    found = lengths(output, steps, end)
    assert len(set(found)) > 1
    for row, length in zip(output.tolist(), found, strict=True):
        filling = (end if isinstance(end, int) else end[0]) if padding is None else padding
        assert row[1 + length :] == [filling] * (steps - length)


def test_who_else_is_in_the_batch(greedy: list[WatchedDecoder]) -> None:
    """Alone, in another order or in other company, a sentence has the same text (B06)."""
    ids, mask = pad(SOURCES)
    for seed in range(3):
        model = likes_to_end(seed, 4.0, 2.5, **MODELS[seed])

        def texts(rows: list[int], side: int = 0, model: Any = model) -> list[list[int]]:
            call = {"inputs": ids[rows], "attention_mask": mask[rows]}
            if side:
                call = {name: torch.nn.functional.pad(part, (side, 1)) for name, part in call.items()}
            output = model.generate(**call, num_beams=1, max_length_margin=8)
            return [row[: row.index(0, 1)] if 0 in row else row for row in output.tolist()]

        alone = [texts([row])[0] for row in range(5)]
        for rows, side in (([0, 1, 2, 3, 4], 0), ([4, 2, 0, 3, 1], 2), ([2, 2, 4, 2], 1)):
            assert texts(rows, side) == [alone[row] for row in rows]
        assert len({*map(len, alone)}) > 1
    assert any(decoder.sizes[-1] < decoder.sizes[0] for decoder in greedy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("automatic", [False, True])
def test_half_precision(automatic: bool, dtype: torch.dtype, greedy: list[WatchedDecoder]) -> None:
    """In half precision, or under autocast, each token is the likeliest after those before it, up to rounding."""
    ids, mask = pad(SOURCES)
    exact, model = likes_to_end(1, -1e4, 1.5), likes_to_end(1, -1e4, 1.5).to(torch.float32 if automatic else dtype)
    for settings in ({}, {"no_repeat_ngram_size": 1}):
        with torch.autocast("cpu", dtype=dtype, enabled=automatic):
            output = model.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=1, **settings)
        logits = exact(input_ids=ids, attention_mask=mask, decoder_input_ids=output[:, :-1]).logits
        if settings:
            for step in range(1, 7):  # what is in the text already may not be chosen
                logits[:, step - 1].scatter_(1, output[:, :step], -torch.inf)
        chosen = logits.gather(2, output[:, 1:, None])[..., 0]
        assert (logits.amax(dim=2) - chosen).max() < 0.1
    assert len(greedy) == 2


def test_gradients_are_not_recorded(greedy: list[WatchedDecoder]) -> None:
    """The search works in inference mode and where gradients are on; the model's weights stay as they are."""
    model = likes_to_end(0, 3.0, 1.5)
    expected = model.generate(SRC, num_beams=1)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for guard in (torch.inference_mode, torch.enable_grad):
        with guard():
            assert model.generate(SRC, num_beams=1).equal(expected)
    assert len(greedy) == 3
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
