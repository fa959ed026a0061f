"""Caches and generation: one text whatever the arrangement, and a limit for each sentence."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from tests.tiny import SRC, TGT, cache_of, endless, pad, reload, same, scale, tiny
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.generation_vanilla_transformer import GenerationSettings

SOURCES = [[11, 12, 13, 2], [21, 22, 23, 24, 25, 26, 2], [31, 2], [41, 42, 43, 44, 2]]
# Sizes that differ between the stacks and between keys and values.
UNEVEN: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "d_k": 5,
    "d_v": 3,
}
SHAPES = [{}, UNEVEN, {"position_encoding": "learned"}, {"norm_position": "pre", "position_offset": 2}]
DECODING: list[dict[str, Any]] = [{"num_beams": 1}, {}, {"num_beams": 3, "length_penalty": 1.5}]


@torch.no_grad()
def ending(seed: int = 0, **changes: Any) -> VanillaTransformerForConditionalGeneration:
    """A model that likes its end token; told to repeat no word, it ends texts at various lengths."""
    model = scale(tiny(seed, final_logits_bias=True, **changes))
    assert model.final_logits_bias is not None
    model.final_logits_bias[0, model.config.eos_token_id] = 8.0
    return model


def words(row: list[int], end: int = 2, padding: int = 0) -> list[int]:
    """A row of generated ids up to its end token, without padding after it."""
    return row[: row.index(end, 1) + 1] if end in row[1:] else [i for i in row if i != padding]


def texts(output: Tensor) -> list[list[int]]:
    return [words(row) for row in output.tolist()]


# Caches


def dynamic(config: VanillaTransformerConfig) -> Cache:
    return DynamicCache(config=config)


def static(config: VanillaTransformerConfig) -> Cache:
    return StaticCache(config=config, max_cache_len=15)


def both_dynamic(config: VanillaTransformerConfig) -> Cache:
    return EncoderDecoderCache(dynamic(config), dynamic(config))


def both_static(config: VanillaTransformerConfig) -> Cache:
    return EncoderDecoderCache(static(config), StaticCache(config=config, max_cache_len=7))


def no_cache(config: VanillaTransformerConfig) -> None:
    """The model makes its own."""


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [no_cache, dynamic, static, both_dynamic, both_static])
@torch.no_grad()
def test_chunks_are_one_pass(
    make: Callable[[VanillaTransformerConfig], Cache | None], attention: str, changes: dict[str, Any], masked: bool
) -> None:
    """1, 3 and 8 tokens fed with a cache have the logits of 12 fed at once (B15)."""
    model = scale(tiny(attention=attention, **changes)).double()
    ids, mask = pad(SOURCES[:2], "left")
    target = torch.arange(24).reshape(2, 12) + 5
    decoder_mask = torch.ones_like(target)
    decoder_mask[0, :2] = 0
    cache = make(model.config)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    whole = {"decoder_attention_mask": decoder_mask} if masked else {}
    expected = model(**inputs, decoder_input_ids=target, **whole).logits
    found, past = [], 0
    for length in (1, 3, 8):
        upto = past + length
        part = {"decoder_attention_mask": decoder_mask[:, :upto]} if masked else {}
        outputs = model(**inputs, decoder_input_ids=target[:, past:upto], cache=cache, use_cache=True, **part)
        inputs = {"encoder_outputs": BaseModelOutput(outputs.encoder_last_hidden_state), "attention_mask": mask}
        cache, past = cache_of(outputs), upto
        assert cache.get_seq_length() == past
        found.append(outputs.logits)
    real = decoder_mask.bool() if masked else torch.ones_like(decoder_mask).bool()
    assert same(torch.cat(found, dim=1)[real], expected[real])


@pytest.mark.parametrize("make", [dynamic, static, both_dynamic])
@torch.no_grad()
def test_cache_given_to_the_decoder(make: Callable[[VanillaTransformerConfig], Cache]) -> None:
    """The decoder alone fills the cache it is given, of whichever kind (B15)."""
    model = scale(tiny(**UNEVEN)).double()
    states = model.get_encoder()(input_ids=SRC).last_hidden_state
    target = torch.arange(12)[None] + 5
    decoder = model.get_decoder()
    expected = decoder(input_ids=target, encoder_hidden_states=states).last_hidden_state
    cache, found = make(model.config), []
    for chunk in target.split([1, 3, 8], dim=1):
        outputs = decoder(input_ids=chunk, encoder_hidden_states=states, cache=cache, use_cache=True)
        found.append(outputs.last_hidden_state)
    assert cache.get_seq_length() == 12
    assert same(torch.cat(found, dim=1), expected)


@torch.no_grad()
def test_cache_is_returned_when_asked_for() -> None:
    """A cache comes by default, not with `use_cache=False`, nor in training (B15)."""
    model = tiny()
    inputs = {"input_ids": SRC, "decoder_input_ids": TGT}
    assert cache_of(model(**inputs)).get_seq_length() == 3
    assert "cache" not in model(**inputs, use_cache=False)
    assert "past_key_values" not in model(**inputs, use_cache=False)
    outputs = model.train()(**inputs)
    assert "cache" not in outputs
    assert "past_key_values" not in outputs


# One text, whatever the arrangement


@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_text_depends_on_the_sentence_alone(decoding: dict[str, Any], changes: dict[str, Any], seed: int) -> None:
    """Alone or in a batch, padded on either side, with any cache or none: one text (B06, B15)."""
    model = ending(seed, **changes).double()  # no ties by rounding
    settings = {"max_length_margin": 6, "no_repeat_ngram_size": 1, **decoding}
    alone = [texts(model.generate(torch.tensor([src]), **settings))[0] for src in SOURCES]
    assert len({len(text) for text in alone}) > 1
    for side in ("left", "right"):
        ids, mask = pad(SOURCES, side, extra=1)
        assert texts(model.generate(ids, attention_mask=mask, **settings)) == alone
        assert texts(model.generate(ids, **settings)) == alone
    assert texts(model.generate(ids, attention_mask=mask, use_cache=False, **settings)) == alone
    assert texts(model.generate(ids, attention_mask=mask, cache_implementation="static", **settings)) == alone
    states = model.get_encoder()(input_ids=ids, attention_mask=mask)
    assert texts(model.generate(encoder_outputs=states, attention_mask=mask, **settings)) == alone
    embeds = model.get_input_embeddings()(ids)
    assert texts(model.generate(inputs_embeds=embeds, attention_mask=mask, **settings)) == alone
    for src, text in zip(SOURCES, alone, strict=True):
        embeds = model.get_input_embeddings()(torch.tensor([src]))
        assert texts(model.generate(inputs_embeds=embeds, **settings)) == [text]
        states = model.get_encoder()(input_ids=torch.tensor([src]))
        assert texts(model.generate(encoder_outputs=states, **settings)) == [text]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_sampling_with_a_seed(num_beams: int) -> None:
    """The same seed draws the same text, padded on either side, with any cache or none (B15)."""
    model = scale(tiny(), 2)
    found = []
    for side, settings in (
        ("left", {}),
        ("right", {}),
        ("right", {"use_cache": False}),
        ("right", {"cache_implementation": "static"}),
    ):
        ids, mask = pad(SOURCES, side)
        torch.manual_seed(3)
        output = model.generate(ids, attention_mask=mask, do_sample=True, num_beams=num_beams, top_k=10, **settings)
        found.append(texts(output))
    assert all(text == found[0] for text in found)
    torch.manual_seed(4)
    assert texts(model.generate(ids, attention_mask=mask, do_sample=True, num_beams=num_beams, top_k=10)) != found[0]


@pytest.mark.parametrize("settings", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("changes", SHAPES, ids=str)
@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_prompts_of_several_lengths(
    decoding: dict[str, Any], changes: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Left-padded decoder prompts with their mask go on as each prompt alone does (B15)."""
    model = scale(tiny(**changes))
    prompts = [[1, 9, 8], [1, 7, 6, 5, 4], [1, 5], [1, 3, 8, 4]]
    alone = []
    for src, prompt in zip(SOURCES, prompts, strict=True):
        output = model.generate(
            torch.tensor([src]), decoder_input_ids=torch.tensor([prompt]), max_length_margin=4, **decoding
        )
        assert output[0, : len(prompt)].tolist() == prompt
        alone.append(words(output[0, len(prompt) :].tolist(), padding=0))
    ids, mask = pad(SOURCES)
    decoder_ids, decoder_mask = pad(prompts, "left")
    output = model.generate(
        ids,
        attention_mask=mask,
        decoder_input_ids=decoder_ids,
        decoder_attention_mask=decoder_mask,
        max_length_margin=4,
        **decoding,
        **settings,
    )
    assert output[:, :5].equal(decoder_ids)
    assert [words(row, padding=0) for row in output[:, 5:].tolist()] == alone


@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_a_prompt_goes_on_as_the_text_did(decoding: dict[str, Any]) -> None:
    """A greedy text's own beginning as prompt, with or without the start token, brings the same text (B15)."""
    model = endless(1)
    text = model.generate(SRC, num_beams=1, max_new_tokens=9)
    for begin in (0, 1):
        output = model.generate(SRC, decoder_input_ids=text[:, begin:4], num_beams=1, max_new_tokens=6)
        assert output.equal(text)
        output = model.generate(SRC, decoder_input_ids=text[:, begin:4], max_length_margin=2, **decoding)
        assert output[0, :4].equal(text[0, :4])
        assert output.shape == (1, 4 + 4 + 2)


def test_greedy_is_the_argmax() -> None:
    """Each greedy token is the likeliest after those before it (B15)."""
    model = endless(2)
    text = model.generate(SRC, num_beams=1, max_new_tokens=12)
    logits = model(input_ids=SRC, decoder_input_ids=text[:, :-1]).logits
    assert text[:, 1:].equal(logits.argmax(dim=-1))


# The limit of each sentence


ARRANGEMENTS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 1, "do_sample": True},
    {},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
    {"use_cache": False},
    {"cache_implementation": "static"},
]


def inputs_of_kind(model: Any, kind: str) -> tuple[dict[str, Any], int]:
    """The four sources as one batch in a form that `generate` takes, and the length of its decoder prompt."""
    ids, mask = pad(SOURCES, "left" if kind == "left" else "right", extra=3)
    if kind == "unmasked":
        return {"inputs": ids}, 1
    if kind == "inputs_embeds":
        return {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask}, 1
    if kind == "encoder_outputs":
        return {"encoder_outputs": model.get_encoder()(input_ids=ids, attention_mask=mask), "attention_mask": mask}, 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if kind == "prompt":
        return {**inputs, "decoder_input_ids": torch.tensor([[1, 9, 8]] * 4)}, 3
    if kind == "prompt without start":
        return {**inputs, "decoder_input_ids": torch.tensor([[9, 8]] * 4)}, 3
    return inputs, 1


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
@pytest.mark.parametrize(
    "kind",
    ["right", "left", "unmasked", "inputs_embeds", "encoder_outputs", "prompt", "prompt without start"],
)
def test_limit_of_each_sentence(kind: str, arrangement: dict[str, Any]) -> None:
    """Source length plus margin new tokens for each sentence, no end token forced, only padding after (B18)."""
    model = endless()
    inputs, prompt = inputs_of_kind(model, kind)
    torch.manual_seed(0)
    output = model.generate(**inputs, max_length_margin=3, **arrangement)
    limits = [len(src) + 3 for src in SOURCES for _ in range(arrangement.get("num_return_sequences", 1))]
    assert output.shape == (len(limits), prompt + max(limits))
    for row, limit in zip(output[:, prompt:].tolist(), limits, strict=True):
        assert all(token > 2 for token in row[:limit])
        assert not any(row[limit:])


@pytest.mark.parametrize("decoding", DECODING, ids=str)
@pytest.mark.parametrize("margin", [0, 1])
def test_small_margins(margin: int, decoding: dict[str, Any]) -> None:
    """A margin of 0 leaves as many new tokens as the source has."""
    output = endless().generate(SRC, max_length_margin=margin, **decoding)
    assert output.shape == (1, 1 + 4 + margin)


@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_limit_without_an_end_token(decoding: dict[str, Any]) -> None:
    """Each sentence keeps its limit in a vocabulary without an end token."""
    model = endless(eos_token_id=None)
    ids, mask = pad(SOURCES)
    output = model.generate(ids, attention_mask=mask, max_length_margin=3, **decoding)
    assert output.ge(0).all()
    assert [len(words(row)) - 1 for row in output.tolist()] == [len(src) + 3 for src in SOURCES]


@pytest.mark.parametrize("source", [[*range(5, 64), 2], [*range(5, 14), 2]], ids=["60 tokens", "10 tokens"])
def test_no_ceiling_of_twenty_tokens(source: list[int]) -> None:
    """Without any setting, a loaded model goes on for source length + 50 tokens (B18)."""
    model = reload(endless(vocab_size=70))
    for settings in ({}, {"num_beams": 1}):
        output = model.generate(torch.tensor([source]), **settings)
        assert output.shape == (1, 1 + len(source) + 50)
        assert output[:, 1:].gt(2).all()


EXPLICIT: list[tuple[dict[str, Any], int | None, int | None]] = [
    ({"max_new_tokens": 5}, 5, None),
    ({"max_new_tokens": 30}, 30, None),
    ({"max_length": 6}, None, 6),
    ({"max_length": 31}, None, 31),
    ({"max_new_tokens": 5, "max_length_margin": 9}, 5, None),
    ({"generation_config": GenerationConfig(max_new_tokens=5)}, 5, None),
    ({"generation_config": GenerationConfig(max_length=6)}, None, 6),
]


@pytest.mark.parametrize("kind", ["right", "inputs_embeds", "encoder_outputs", "prompt"])
@pytest.mark.parametrize(("settings", "new", "total"), EXPLICIT, ids=str)
def test_explicit_limits_win(settings: dict[str, Any], new: int | None, total: int | None, kind: str) -> None:
    """`max_new_tokens` and `max_length` hold for the whole batch, whatever the margin (B18)."""
    model = endless()
    inputs, prompt = inputs_of_kind(model, kind)
    output = model.generate(**inputs, **settings)
    assert output.shape == (4, total if new is None else prompt + new)
    assert output[:, prompt:].gt(2).all()


@pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
def test_limits_of_the_models_own_settings(name: str) -> None:
    """A limit in the model's generation configuration wins over the margin there (B18, B29)."""
    model = endless()
    setattr(model.generation_config, name, 6)
    assert reload(model).generate(SRC).shape == (1, 7 if name == "max_new_tokens" else 6)
    assert model.generate(SRC, max_new_tokens=9).shape == (1, 10)


def test_margin_as_keyword_and_in_a_configuration() -> None:
    """The margin may be a keyword, in a given configuration, or in the model's own; the nearest wins (B29)."""
    model = endless()
    assert model.generate(SRC).shape == (1, 1 + 4 + 50)
    assert model.generate(SRC, max_length_margin=3).shape == (1, 1 + 4 + 3)
    assert model.generate(SRC, generation_config=GenerationConfig(max_length_margin=4)).shape == (1, 1 + 4 + 4)
    given = GenerationConfig(max_length_margin=4)
    assert model.generate(SRC, generation_config=given, max_length_margin=5).shape == (1, 1 + 4 + 5)
    assert given.max_length_margin == 4
    model.generation_config.max_length_margin = 6
    for current in (model, reload(model)):
        assert current.generate(SRC).shape == (1, 1 + 4 + 6)
        assert current.generate(SRC, generation_config=GenerationConfig(num_beams=1)).shape == (1, 1 + 4 + 6)
        assert current.generate(SRC, max_length_margin=3).shape == (1, 1 + 4 + 3)
        assert current.generation_config.max_length_margin == 6


@pytest.mark.parametrize("end", [2, [2, 17, 23, 29]], ids=str)
@pytest.mark.parametrize("decoding", [*DECODING, {"num_return_sequences": 4}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("padding", [0, 49])
def test_only_padding_after_the_end(padding: int, decoding: dict[str, Any], end: int | list[int]) -> None:
    """After an end token only padding follows, under beam search too."""
    ended = 0
    for seed in range(3):
        model = ending(seed, pad_token_id=padding, eos_token_id=end)
        ids, mask = pad(SOURCES, value=padding)
        torch.manual_seed(seed)
        output = model.generate(ids, attention_mask=mask, no_repeat_ngram_size=1, **decoding)
        ends = torch.isin(output[:, 1:], torch.tensor(end))
        after = ends.cumsum(dim=1) - ends.long() > 0
        assert (output[:, 1:][after] == padding).all()
        assert (output[:, 0] == 1).all()
        ended += int(after.any(dim=1).sum())
    assert ended > 3


# Learned positions


@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_default_limit_is_capped_by_the_table(decoding: dict[str, Any]) -> None:
    """Learned positions end a sentence at the table's end; the last token takes no position (B11, B18)."""
    for offset in (0, 2):
        model = endless(position_encoding="learned", max_position_embeddings=16, position_offset=offset)
        assert model.generate(SRC, **decoding).shape == (1, 1 + 16 - offset)
        output = model.generate(SRC, decoder_input_ids=TGT, cache_implementation="static", **decoding)
        assert output.shape == (1, 1 + 16 - offset)
        ids, mask = pad([[11, 2], [11, 12, 13, 14, 15, 16, 2]])
        output = model.generate(ids, attention_mask=mask, max_length_margin=8, **decoding)
        assert [sum(token > 2 for token in row) for row in output.tolist()] == [10, min(15, 16 - offset)]


@pytest.mark.parametrize("settings", [{"max_new_tokens": 17}, {"max_length": 18}], ids=str)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("use_cache", [True, False])
def test_more_than_the_table_is_refused(settings: dict[str, int], given: bool, use_cache: bool) -> None:
    """More new tokens than learned positions is a ValueError naming the limit, before any layer runs (B11)."""
    model = endless(position_encoding="learned", max_position_embeddings=16)
    work: list[Any] = []
    model.model.encoder.layers[0].register_forward_pre_hook(lambda *inputs: work.append(inputs))
    keywords: dict[str, Any] = {"generation_config": GenerationConfig(**settings)} if given else dict(settings)
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=16\b"):
        model.generate(SRC, use_cache=use_cache, **keywords)
    assert not work
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=16\b"):
        model.generate(SRC, decoder_input_ids=TGT, max_new_tokens=15)
    assert not work
    fits = {name: value - 1 for name, value in settings.items()}
    assert model.generate(SRC, use_cache=use_cache, **fits).shape == (1, 17)
    assert model.generate(SRC, decoder_input_ids=TGT, max_new_tokens=14).shape == (1, 17)


def test_a_source_beyond_the_table_is_refused() -> None:
    """A source longer than the learned positions is a ValueError naming the limit (B11)."""
    model = endless(position_encoding="learned", max_position_embeddings=16)
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=16\b"):
        model.generate(torch.full((1, 17), 7))


@pytest.mark.parametrize("length", [17, 20])
@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_a_prompt_beyond_the_table_is_refused(decoding: dict[str, Any], length: int) -> None:
    """A decoder prompt that leaves no learned position is a ValueError naming the limit (B11)."""
    model = endless(position_encoding="learned", max_position_embeddings=16)
    prompt = torch.tensor([[1] + [7] * (length - 1)])
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=16\b"):
        model.generate(SRC, decoder_input_ids=prompt, **decoding)


# Settings and scores


def test_a_given_configuration_brings_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever gives a generation configuration alone is not told off for keywords (B57)."""
    logger: Any = logging.getLogger("transformers.generation.utils")
    logger.warning_once.cache_clear()
    logger.addHandler(caplog.handler)
    endless().generate(SRC, generation_config=GenerationConfig(num_beams=2))
    logger.removeHandler(caplog.handler)
    assert "deprecated" not in caplog.text


def test_default_settings() -> None:
    """A new model has the paper's decoding settings, which survive saving and loading (B29)."""
    model = tiny()
    for current in (model, reload(model), reload(reload(model))):
        settings = current.generation_config
        assert (settings.num_beams, settings.length_penalty, settings.max_length_margin) == (4, 0.6, 50)
        assert (settings.max_new_tokens, settings.max_length) == (None, None)
        ids = (settings.pad_token_id, settings.bos_token_id, settings.eos_token_id, settings.decoder_start_token_id)
        assert ids == (0, 1, 2, 1)


def test_changed_settings_survive() -> None:
    """What a user sets in the generation configuration is what a loaded model has (B29)."""
    model = tiny()
    changes = {"num_beams": 2, "length_penalty": 1.3, "max_length_margin": 7, "no_repeat_ngram_size": 3}
    for name, value in changes.items():
        setattr(model.generation_config, name, value)
    for loaded in (reload(model), reload(reload(model))):
        assert {name: getattr(loaded.generation_config, name) for name in changes} == changes


def test_greedy_as_the_default() -> None:
    """A model that decodes greedily by default can be saved; several beams go on from the paper's settings."""
    model = endless()
    expected = model.generate(SRC, max_new_tokens=6)
    model.generation_config.num_beams = 1
    for current in (reload(model), reload(reload(model))):
        settings = current.generation_config
        assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (1, None, None)
        chosen = GenerationSettings({}, settings)
        assert (chosen.get("length_penalty"), chosen.get("early_stopping")) == (0.6, "never")
        assert current.generate(SRC, num_beams=4, max_new_tokens=6).equal(expected)
        assert current.generate(SRC, max_new_tokens=6).equal(model.generate(SRC, max_new_tokens=6))
    assert (model.generation_config.length_penalty, model.generation_config.early_stopping) == (0.6, "never")


@pytest.mark.parametrize("decoding", [{"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_scores(decoding: dict[str, int]) -> None:
    """Scores, states and attentions come with the text when asked for."""
    model = endless()
    ids, mask = pad(SOURCES)
    text = model.generate(ids, attention_mask=mask, max_length_margin=3, **decoding)
    output = model.generate(
        ids,
        attention_mask=mask,
        max_length_margin=3,
        return_dict_in_generate=True,
        output_scores=True,
        output_attentions=True,
        output_hidden_states=True,
        **decoding,
    )
    assert output.sequences.equal(text)
    assert len(output.scores) == text.shape[1] - 1
    assert len(output.encoder_hidden_states) == 3
    assert len(output.cross_attentions) == len(output.decoder_hidden_states) == len(output.scores)
    if decoding["num_beams"] == 1:
        scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=text[:, :-1]).logits
        expected = logits.log_softmax(dim=-1).gather(2, text[:, 1:, None])[..., 0]
        for row, src in enumerate(SOURCES):
            assert same(scores[row, : len(src) + 3], expected[row, : len(src) + 3], 1e-4)
    else:
        assert output.sequences_scores.shape == (8,)
        ranked = output.sequences_scores.reshape(4, 2)
        assert (ranked[:, 0] >= ranked[:, 1]).all()


def test_a_users_stopping_criterion_is_kept() -> None:
    """A stopping criterion given to `generate` stops beside the limit."""

    def five(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 5)

    assert endless().generate(SRC, num_beams=1, stopping_criteria=[five]).shape == (1, 5)


def test_arguments_are_left_alone() -> None:
    """`generate` changes neither the ids, masks and prompt it is given, nor the model's settings."""
    model = scale(tiny())
    ids, mask = pad(SOURCES)
    prompt = torch.tensor([[1, 2, 8]] * 4)
    before = [tensor.clone() for tensor in (ids, mask, prompt)]
    settings = model.generation_config.to_dict()
    output = model.generate(ids, attention_mask=mask, decoder_input_ids=prompt)
    assert output[:, :3].equal(prompt)
    assert all(one.equal(other) for one, other in zip((ids, mask, prompt), before, strict=True))
    assert model.generation_config.to_dict() == settings
