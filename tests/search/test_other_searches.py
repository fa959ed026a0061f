"""What is left to transformers: the options that the searches of our own do not know."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, TextStreamer
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from tests.tiny import SRC, endless, tokenizer
from vanilla_transformer.generation_vanilla_transformer import NOT_OWN
from vanilla_transformer.modeling_vanilla_transformer import CACHE_NAME

from .common import WatchedDecoder, WatchedSearch, call_of_all
from .rules import SAME_TEXT
from .samples import likes_to_end

REFUSED: dict[str, dict[str, Any]] = {
    "num_beam_groups": {"num_beam_groups": 2, "diversity_penalty": 0.5},
    "constraints": {"constraints": [1]},
    "force_words_ids": {"force_words_ids": [[5]]},
    "low_memory": {"low_memory": True},
    "streamer": {"streamer": TextStreamer(tokenizer())},
    "decoder_inputs_embeds": {"decoder_inputs_embeds": torch.zeros(1, 2, 16)},
}


@pytest.mark.parametrize("name", SAME_TEXT)
def test_options_that_transformers_search_serves(name: str, searches: list[WatchedSearch]) -> None:
    """With these options transformers' own search runs, wherever they are set, and the text is the same."""
    settings = SAME_TEXT[name]
    model, call = likes_to_end(0, 3.0, 1.5), call_of_all()
    call |= {key: value for key, value in settings.items() if key == "decoder_input_ids"}
    expected = model.generate(**call)
    assert len(searches) == 1
    outputs = [model.generate(**call | settings)]
    if hasattr(GenerationConfig(), name):
        keywords = {key: call.pop(key) for key in ("max_new_tokens", "num_return_sequences")}
        outputs.append(model.generate(**call, generation_config=GenerationConfig(num_beams=4, **keywords, **settings)))
        for key, value in settings.items():
            setattr(model.generation_config, key, value)
        outputs.append(model.generate(**call, **keywords))
    assert len(searches) == 1
    for output in outputs:
        assert expected.equal(output if isinstance(output, Tensor) else output.sequences)


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_transformers_refuses(name: str, searches: list[WatchedSearch]) -> None:
    """What transformers does not do with beams is refused in its words, not passed over."""
    with pytest.raises(ValueError):
        endless().generate(SRC, max_new_tokens=4, **REFUSED[name])
    assert not searches


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_a_cache_of_the_users(searches: list[WatchedSearch]) -> None:
    """A cache that is given is used and filled (B15)."""
    model = likes_to_end(0, -1e4, 3.0)
    expected = model.generate(**call_of_all())
    for name in {CACHE_NAME, "past_key_values"}:
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        assert model.generate(**call_of_all(), **{name: cache}).equal(expected)
        assert cache.get_seq_length() == 6
    assert len(searches) == 1


def test_strings_that_stop(searches: list[WatchedSearch]) -> None:
    """A string that ends the text does so."""
    letters = "".join(map(chr, range(ord("A"), ord("A") + 46)))
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *letters])}
    backend = Tokenizer(BPE(vocabulary, [], unk_token="<unk>"))
    backend.decoder = Fuse()
    spelling = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    model = endless(1)
    text = model.generate(SRC, max_new_tokens=6)
    string = spelling.decode(text[0, 2:4])
    assert len(string) == 2
    output = model.generate(SRC, max_new_tokens=6, stop_strings=[string], tokenizer=spelling)
    assert len(searches) == 1
    assert string in spelling.decode(output[0])
    assert output.shape[1] < text.shape[1]


def test_sampling_with_beams(searches: list[WatchedSearch]) -> None:
    """With `do_sample` the beams are drawn: another seed, another text."""
    model = endless(1)
    texts = set()
    for seed in range(4):
        torch.manual_seed(seed)
        texts.add(str(model.generate(**call_of_all(), do_sample=True).tolist()))
    assert len(texts) > 1
    assert not searches


def test_attentions_of_each_step(searches: list[WatchedSearch]) -> None:
    """Attentions come step by step, for all hypotheses."""
    output = endless(1).generate(**call_of_all(), output_attentions=True, return_dict_in_generate=True)
    assert not searches
    assert len(output.cross_attentions) == len(output.decoder_attentions) == 6
    for step in range(6):
        assert [tuple(part.shape) for part in output.cross_attentions[step]] == [(20, 2, 1, 7)] * 2
        assert [tuple(part.shape) for part in output.decoder_attentions[step]] == [(20, 2, 1, step + 1)] * 2


def test_training_mode(searches: list[WatchedSearch]) -> None:
    """A model in training mode drops out, which transformers' own search keeps."""
    model = likes_to_end(0, 3.0, 1.5)
    expected = model.generate(**call_of_all())
    searches.clear()
    assert model.train().generate(**call_of_all()).equal(expected)
    model.model.decoder.config.dropout = 0.5
    layers: Any = model.model.decoder.layers
    for layer in layers:
        layer.dropout = 0.5
    torch.manual_seed(0)
    assert not model.generate(**call_of_all()).equal(expected)
    assert not searches


def test_a_model_in_pieces(searches: list[WatchedSearch]) -> None:
    """A model that lies on several devices is called as a whole."""
    model = endless(1)
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    assert model.generate(SRC, max_new_tokens=3).shape == (1, 4)
    assert not searches
    model.hf_device_map = {"": "cpu"}
    assert model.generate(SRC, max_new_tokens=3).shape == (1, 4)
    assert len(searches) == 1


def test_a_search_of_the_users(searches: list[WatchedSearch]) -> None:
    """A decoding method given as `custom_generate` is the one that runs."""

    def first_words(model: Any, input_ids: Tensor, generation_config: Any, **kwargs: Any) -> Tensor:
        assert generation_config.num_beams == 4
        return input_ids[:: generation_config.num_beams].repeat(1, 3)

    output = endless().generate(**call_of_all(), custom_generate=first_words)
    assert output.tolist() == [[1, 1, 1]] * 5
    assert not searches


def test_one_beam(searches: list[WatchedSearch], greedy: list[WatchedDecoder]) -> None:
    """With one beam the search is a greedy one: our own, or transformers' with a streamer or a helping model."""
    model = endless(1)
    expected = model.generate(SRC, num_beams=1, max_new_tokens=6)
    assert model.generate(SRC, num_beams=1, max_new_tokens=6, assistant_model=endless(2)).equal(expected)
    seen: list[int] = []

    class Streamer(TextStreamer):
        def put(self, value: Tensor) -> None:
            seen.extend(value.flatten().tolist())

        def end(self) -> None:
            seen.append(-1)

    assert model.generate(SRC, num_beams=1, max_new_tokens=6, streamer=Streamer(tokenizer())).equal(expected)
    assert seen == [*expected[0].tolist(), -1]
    assert len(greedy) == 1
    assert not searches


def test_every_option_is_tried() -> None:
    """Each option that the search of our own does not know is named in a test here."""
    elsewhere = {"do_sample", "assistant_model", "cache", "past_key_values", "stop_strings", "custom_generate"}
    not_given = {"synced_gpus", "token_healing"}  # several processes; texts without a source
    assert set(NOT_OWN) - {*SAME_TEXT, *REFUSED} == elsewhere | not_given
