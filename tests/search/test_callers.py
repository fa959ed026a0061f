"""Who calls: nothing that is given is changed, no gradients, no warnings."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
)

from tests.tiny import pad

from .common import SOURCES, WatchedSearch
from .rules import FinishedAtAMultiple, OnlyEvenAfterOdd
from .samples import likes_to_end


def test_the_callers_things_are_left_alone(searches: list[WatchedSearch]) -> None:
    """Neither the configurations nor the tensors, processors and criteria given are changed."""
    model = likes_to_end(0, 3.0, 1.5)
    ids, mask = pad(SOURCES)
    prompt = torch.tensor([[1, 9]] * 5)
    given = GenerationConfig(num_beams=3, length_penalty=0.8, length_penalty_kind="gnmt", num_return_sequences=2)
    processors: list[Any] = [OnlyEvenAfterOdd()]
    criteria: list[Any] = [FinishedAtAMultiple(4)]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = given.to_dict(), model.generation_config.to_dict(), ids.clone(), mask.clone(), prompt.clone()
    for settings in ({}, {"logits_processor": processors, "stopping_criteria": criteria}):
        model.generate(ids, given, attention_mask=mask, decoder_input_ids=prompt, **settings)
    assert len(searches) == 2
    assert before[:2] == (given.to_dict(), model.generation_config.to_dict())
    assert type(given.length_penalty) is type(model.generation_config.length_penalty) is float
    assert all(x.equal(y) for x, y in zip(before[2:], (ids, mask, prompt), strict=True))
    assert len(processors) == len(criteria) == 1
    assert model.state_dict().keys() == weights.keys()
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_gradients_are_not_recorded(guard: Callable[[], Any], searches: list[WatchedSearch]) -> None:
    """The search works in inference mode, and records nothing otherwise."""
    model = likes_to_end(0, 3.0, 1.5)
    ids, mask = pad(SOURCES)
    expected = model.generate(ids, attention_mask=mask)
    with guard():
        output = model.generate(ids, attention_mask=mask, return_dict_in_generate=True)
    assert output.sequences.equal(expected)
    assert not output.sequences_scores.requires_grad
    assert len(searches) == 2


def test_no_warnings(caplog: pytest.LogCaptureFixture, searches: list[WatchedSearch]) -> None:
    """In the ordinary case nothing is logged and nobody is warned."""
    model = likes_to_end(0, 3.0, 1.5)
    ids, mask = pad(SOURCES)
    for name in ("transformers.generation.utils", "transformers.generation.configuration_utils"):
        logger: Any = logging.getLogger(name)
        logger.warning_once.cache_clear()
    root = logging.getLogger("transformers")
    root.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.generate(ids, attention_mask=mask)
            model.generate(ids, num_beams=5, length_penalty=1.0, length_penalty_kind="power", early_stopping=True)
            model.generate(ids, GenerationConfig(num_beams=3, max_new_tokens=5), attention_mask=mask)
            model.generate(ids, max_new_tokens=9, num_return_sequences=2, return_dict_in_generate=True)
            model.generate(ids, no_repeat_ngram_size=2)
    finally:
        root.removeHandler(caplog.handler)
    assert not caplog.records
    assert len(searches) == 5
