"""What greedy search leaves to transformers: options that it does not know, models that are more than their layers."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, TextStreamer

from tests.tiny import SRC, endless, tokenizer
from vanilla_transformer.generation_vanilla_transformer import NOT_OWN
from vanilla_transformer.greedy_search_vanilla_transformer import greedy_search

from .common import WatchedDecoder, call_of_all
from .rules import SAME_TEXT
from .samples import likes_to_end

FROM_THE_HUB = ("penalty_alpha", "dola_layers")  # whose searches, with one beam, are code that transformers loads


def call_of_one() -> dict[str, Any]:
    return call_of_all() | {"num_beams": 1, "num_return_sequences": 1}


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The decoding methods that transformers' `generate` is given in a test, in which it does nothing."""
    given: list[Any] = []

    def generate(model: Any, *args: Any, **kwargs: Any) -> Tensor:
        given.append(kwargs.get("custom_generate"))
        return torch.ones((1, 2), dtype=torch.long)

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    return given


def is_greedy_search(method: Any) -> bool:
    return isinstance(method, partial) and method.func is greedy_search


@pytest.mark.parametrize("name", [*NOT_OWN, "return_dict_in_generate"])
def test_options_that_greedy_search_does_not_know(name: str, methods: list[Any]) -> None:
    """With any of them transformers chooses the search, wherever it is set; with none our own runs."""
    model = endless()
    model.generate(SRC, num_beams=1)
    model.generate(SRC, num_beams=1, **{name: None})
    model.generate(SRC, num_beams=1, **{name: True})
    model.generate(SRC, GenerationConfig(num_beams=1))
    given = GenerationConfig(num_beams=1)
    setattr(given, name, True)
    model.generate(SRC, given)
    setattr(model.generation_config, name, True)
    model.generate(SRC, num_beams=1)
    assert [is_greedy_search(method) for method in methods] == [True, True, False, True, False, False]


def test_when_greedy_search_runs(methods: list[Any]) -> None:
    """One beam, from wherever, is greedy search; it needs the cache, and knows no argument by its position."""
    model = endless()
    model.generate(SRC, GenerationConfig(num_beams=1))
    model.generation_config.num_beams = 1
    model.generate(SRC)
    model.generation_config.num_beams = None
    model.generate(SRC)
    model.generate(SRC, use_cache=True)
    assert all(map(is_greedy_search, methods))
    methods.clear()
    model.generate(SRC, num_beams=2)
    model.generate(SRC, use_cache=False)
    model.generate(SRC, None, None, None, lambda sentence, prefix: [5])
    assert not any(map(is_greedy_search, methods))


@pytest.mark.parametrize("name", [name for name in SAME_TEXT if name not in FROM_THE_HUB])
def test_options_that_transformers_search_serves(name: str, greedy: list[WatchedDecoder]) -> None:
    """With these options transformers' own search runs, and the text is the same."""
    settings = SAME_TEXT[name]
    model, call = likes_to_end(0, 3.0, 1.5), call_of_one()
    if name == "prompt_lookup_num_tokens":  # for one sentence
        call |= {"inputs": SRC, "attention_mask": None}
    call |= {key: value for key, value in settings.items() if key == "decoder_input_ids"}
    expected = model.generate(**call)
    assert len(greedy) == 1
    output = model.generate(**call | settings)
    assert len(greedy) == 1
    assert expected.equal(output if isinstance(output, Tensor) else output.sequences)


def test_streamers_and_helping_models(greedy: list[WatchedDecoder]) -> None:
    """A streamer is shown each token; a helping model changes nothing in the text."""
    model, shown = endless(1), []

    class Streamer(TextStreamer):
        def put(self, value: Tensor) -> None:
            shown.append(value.flatten().tolist())

    expected = model.generate(SRC, num_beams=1, max_new_tokens=6)
    for settings in ({"streamer": Streamer(tokenizer())}, {"assistant_model": endless(2)}):
        assert model.generate(SRC, num_beams=1, max_new_tokens=6, **settings).equal(expected)
    assert shown == [[token] for token in expected[0].tolist()]
    assert len(greedy) == 1


def test_results_that_are_recorded(greedy: list[WatchedDecoder]) -> None:
    """`return_dict_in_generate` gives the cache to go on with, and on demand scores, states and attentions."""
    call = call_of_one() | {"return_dict_in_generate": True}
    output = endless(1).generate(
        **call, output_scores=True, output_logits=True, output_attentions=True, output_hidden_states=True
    )
    assert not greedy
    assert output.sequences.shape == (5, 7)
    assert len(output.scores) == len(output.logits) == len(output.cross_attentions) == 6
    assert len(output.decoder_attentions) == len(output.decoder_hidden_states) == 6
    assert [tuple(part.shape) for part in output.cross_attentions[5]] == [(5, 2, 1, 7)] * 2
    cache = output["cache"] if "cache" in output else output["past_key_values"]
    assert cache.get_seq_length() == 6


def test_settings_that_are_refused(greedy: list[WatchedDecoder]) -> None:
    """Several results of a greedy search, and a penalty that it does not have, are refused in so many words."""
    model = endless(1)
    with pytest.raises(ValueError, match="num_return_sequences"):
        model.generate(SRC, num_beams=1, num_return_sequences=2)
    with pytest.raises(ValueError, match="`coverage_penalty` needs beam search"):
        model.generate(SRC, num_beams=1, coverage_penalty=0.2)
    assert not greedy


def test_a_search_of_the_users(greedy: list[WatchedDecoder]) -> None:
    """A decoding method given as `custom_generate` is the one that runs."""

    def three_times(model: Any, input_ids: Tensor, **kwargs: Any) -> Tensor:
        return input_ids.repeat(1, 3)

    assert endless().generate(**call_of_one(), custom_generate=three_times).tolist() == [[1, 1, 1]] * 5
    assert not greedy


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_training_mode(greedy: list[WatchedDecoder]) -> None:
    """A model in training mode drops out, which transformers' own search keeps."""
    model = likes_to_end(0, 3.0, 1.5)
    expected = model.generate(**call_of_one())
    assert len(greedy) == 1
    assert model.train().generate(**call_of_one()).equal(expected)
    layers: Any = model.model.decoder.layers
    for layer in layers:
        layer.dropout = 0.5
    torch.manual_seed(0)
    assert not model.generate(**call_of_one()).equal(expected)
    assert len(greedy) == 1


def test_a_model_in_pieces(greedy: list[WatchedDecoder]) -> None:
    """A model that lies on several devices, or is sharded, is called as a whole."""
    model = endless(1)
    expected = model.generate(**call_of_one())
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    assert model.generate(**call_of_one()).equal(expected)
    model.hf_device_map = {"": "cpu"}
    model.unshard = lambda: None
    assert model.generate(**call_of_one()).equal(expected)
    assert len(greedy) == 1
    del model.unshard
    assert model.generate(**call_of_one()).equal(expected)
    assert len(greedy) == 2


def turned(module: nn.Module, inputs: Any, output: Any) -> Any:
    """A hook that turns the sign of what a module gives."""
    if isinstance(output, Tensor):
        return -output
    if isinstance(output, tuple):
        return (-output[0], *output[1:])
    name = "logits" if "logits" in output else "last_hidden_state"
    output[name] = -output[name]
    return output


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        *("", "model", "model.encoder", "model.encoder.layers.0.fc1", "lm_head", "model.decoder"),
        *("model.decoder.layers.0", "model.decoder.layers.0.encoder_attn", "model.decoder.embed_tokens"),
    ],
)
def test_hooks(name: str, beams: int) -> None:
    """What a hook on the model or a part of it makes of the output counts as in transformers' own search."""
    model = likes_to_end(0, -1e4, 2.0)
    call = call_of_one() | {"num_beams": beams}
    recorded: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True}
    before = model.generate(**call, **recorded)
    model.get_submodule(name).register_forward_hook(turned)
    ours, theirs = model.generate(**call), model.generate(**call, **recorded)
    assert ours.equal(theirs.sequences)
    assert not theirs.logits[0].allclose(before.logits[0], atol=1e-3)


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_prepared_otherwise(beams: int) -> None:
    """Whoever prepares the inputs of each step in the model's place, as prefix tuning does, is asked for them."""
    model = likes_to_end(0, -1e4, 2.0)
    call = call_of_one() | {"num_beams": beams}
    before = model.generate(**call)
    steps: list[Any] = []

    def prepare(*args: Any, **kwargs: Any) -> dict[str, Any]:
        steps.append(kwargs)
        return type(model).prepare_inputs_for_generation(model, *args, **kwargs)

    model.prepare_inputs_for_generation = prepare
    assert model.generate(**call).equal(before)
    assert len(steps) == 6
