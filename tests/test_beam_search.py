"""Beam search: it finds what transformers' own finds, whatever is shared between rows and whoever leaves the batch."""

import copy
import itertools
import logging
import math
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TextStreamer,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from tests.tiny import SRC, endless, pad, scale, tiny, tokenizer
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer import beam_search_vanilla_transformer as engine
from vanilla_transformer.generation_vanilla_transformer import NOT_OWN
from vanilla_transformer.modeling_vanilla_transformer import CACHE_NAME

SOURCES = [[11, 12, 13, 2], [21, 22, 23, 24, 25, 26, 2], [2], [41, 42, 43, 44, 2], [31, 32, 2]]
ROUNDING = 1e-5  # scores nearer than this are in no certain order in float32


class WatchedSearch(engine.BeamSearch):
    """A search that keeps what happened in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sizes: list[int] = []  # sentences in the batch, step by step
        self.gaps = torch.full((len(self.ids),), torch.inf)  # least distance between two candidates of a sentence

    def _continue(self, *args: Any) -> Any:
        candidates, ending = super()._continue(*args)
        self.sizes.append(len(self.ids))
        before, after = candidates.scores[:, :-1], candidates.scores[:, 1:]
        real = (after > engine.IMPOSSIBLE / 2) & self.is_open[:, None]
        gaps = torch.where(real, before - after, torch.inf).amin(dim=1)
        self.gaps[self.ids] = self.gaps[self.ids].minimum(gaps)
        return candidates, ending


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[WatchedSearch]:
    """The searches of our own in a test, in order."""
    made: list[WatchedSearch] = []

    def search(*args: Any, **kwargs: Any) -> WatchedSearch:
        made.append(WatchedSearch(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(engine, "BeamSearch", search)
    return made


def compare(model: Any, searches: list[WatchedSearch], **call: Any) -> Any:
    """What our search gives, which has to be what transformers' own does in as many steps."""
    call["return_dict_in_generate"] = True
    before = len(searches)
    ours = model.generate(**copy.deepcopy(call))  # transformers repeats the rows of encoder outputs in place
    assert len(searches) == before + 1
    theirs = model.generate(**copy.deepcopy(call), output_scores=True)
    assert len(searches) == before + 1
    search = searches[-1]
    certain = search.gaps > ROUNDING
    rows = certain.repeat_interleave(len(ours.sequences) // len(certain))
    if certain.all():
        assert search.new == len(theirs.scores)
        assert ours.sequences.shape == theirs.sequences.shape
        assert ours.beam_indices.shape == theirs.beam_indices.shape
    for name, fill in (("sequences", 0), ("beam_indices", -1)):
        parts = [getattr(output, name)[rows] for output in (ours, theirs)]
        width = max(part.shape[1] for part in parts)
        ids = [F.pad(part, (0, width - part.shape[1]), value=fill).tolist() for part in parts]
        assert ids[0] == ids[1], name
    tolerance = 1e-4 if (call.get("length_penalty") or 0) < 0 else 1e-5  # a negative penalty multiplies
    close(ours.sequences_scores[rows], theirs.sequences_scores[rows], tolerance)
    return ours


def close(x: Tensor, y: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(x, y, rtol=1e-5, atol=tolerance)


def lengths(output: Any) -> list[int]:
    """New tokens of each hypothesis, end token counted."""
    return output.beam_indices.ge(0).sum(dim=1).tolist()


def by_sentence(output: Any, sentences: int, beams: int, prompt: int = 1) -> list[list[tuple[list[int], list[int]]]]:
    """Of each sentence the hypotheses: new tokens, and the beams that they came from."""
    rows = []
    for tokens, origins, length in zip(
        output.sequences.tolist(), output.beam_indices.tolist(), lengths(output), strict=True
    ):
        rows.append((tokens[prompt : prompt + length], [origin % beams for origin in origins[:length]]))
    each = len(rows) // sentences
    for row, origins in enumerate(output.beam_indices):
        assert (origins[origins >= 0] // beams == row // each).all()
    return [rows[i : i + each] for i in range(0, len(rows), each)]


def likes_to_end(
    seed: int, bias: float, factor: float = 4.0, **changes: Any
) -> VanillaTransformerForConditionalGeneration:
    """A random model in float64, biases and norms too, that adds `bias` to the logits of its end tokens."""
    model = scale(tiny(seed, final_logits_bias=True, **changes), factor).double()
    ends = model.config.eos_token_id
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
        assert model.final_logits_bias is not None
        model.final_logits_bias[0, ends] = bias
    return model


@torch.no_grad()
def chain(logits: Tensor, positions: float = 0.0) -> VanillaTransformerForConditionalGeneration:
    """A model whose next token depends on the last one alone: row t of `logits` (V, V) is what follows token t.

    `positions`: how much its position adds. Without, texts of the same pairs of tokens are equally probable.
    """
    size = len(logits)
    sizes: dict[str, Any] = {"vocab_size": size, "d_model": size, "decoder_layers": 1, "encoder_layers": 1}
    model = tiny(norm_position="pre", scale_embedding=False, tie_word_embeddings=False, **sizes).double()
    decoder = model.model.decoder
    decoder.embed_tokens.weight.copy_(torch.eye(size))
    decoder.embed_positions.weight.mul_(positions)
    decoder.layer_norm = nn.Identity()
    for layer in decoder.layers:
        for last in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
            last.weight.zero_()
            last.bias.zero_()
    model.lm_head.weight.copy_(logits.T)
    return model


def several(kind: str = "gnmt", **settings: Any) -> dict[str, Any]:
    """A call for eight sentences whose searches end at different steps."""
    return {
        "inputs": torch.tensor([[5, 2]] * 8),
        "decoder_input_ids": torch.tensor([[1, token] for token in range(6, 14)]),
        "num_beams": 3,
        "num_return_sequences": 3,
        "max_new_tokens": 25,
        "length_penalty_kind": kind,
        "return_dict_in_generate": True,
    } | settings


def uneven_chain(seed: int) -> VanillaTransformerForConditionalGeneration:
    return chain(torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)) * 2.0, 0.1)


# What transformers' own search finds


MODELS: list[dict[str, Any]] = [
    {},
    {"encoder_layers": 1, "decoder_layers": 3, "decoder_attention_heads": 4, "d_k": 5, "d_v": 3},
    {"position_encoding": "learned", "position_offset": 1},
    {"norm_position": "pre", "position_offset": 2},
    {"position_encoding": "sinusoidal_concat", "attention_bias": False},
    {"position_encoding": "sinusoidal_tensor2tensor", "scale_embedding": False},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 30},
    {"tie_word_embeddings": False, "norm_position": "pre", "d_v": 4},
    {"eos_token_id": [2, 5, 7]},
    {"eos_token_id": [2, 17, 23, 29], "pad_token_id": 49},
]
INPUTS = ["right", "left", "unmasked", "embeddings", "states", "prompt", "prompt without start"]
# Sizes of matrices and biases of the end token with which texts end early, late, or never.
INCLINATIONS = [(1.5, 3.0), (1.5, 4.0), (3.0, 3.0), (3.0, 7.0), (6.0, 6.0), (6.0, 12.0), (4.0, -1e4)]


def sample_settings(draw: random.Random) -> dict[str, Any]:
    beams = draw.choice([2, 2, 4, 4, 4, 5, 5, 21])
    return {
        "num_beams": beams,
        "num_return_sequences": draw.choice([1, 1, 2, beams]),
        "early_stopping": draw.choice([False, "never", True]),
        "length_penalty_kind": draw.choice(["gnmt", "power"]),
        "length_penalty": draw.choice([0.0, 0.6, 1.0, 2.0, -1.0]),
        "max_new_tokens": draw.choice([1, 2, 5, 9, 14]),
    }


@torch.no_grad()
def sample(seed: int) -> tuple[VanillaTransformerForConditionalGeneration, dict[str, Any]]:
    """A model and a call of `generate`, drawn from all that has to agree."""
    draw = random.Random(seed)
    factor, bias = draw.choice(INCLINATIONS)
    model = likes_to_end(seed, bias, factor, **MODELS[seed % len(MODELS)])
    sources = [[draw.randrange(3, 49) for _ in range(draw.randrange(9))] + [2] for _ in range(draw.randint(1, 7))]
    kind = draw.choice(INPUTS)
    side = "left" if kind == "left" else "right"
    ids, mask = pad(sources, side, value=model.config.pad_token_id or 0, extra=draw.randrange(2))
    call: dict[str, Any] = {"inputs": ids}
    if kind != "unmasked":
        call["attention_mask"] = mask
    if kind == "embeddings":
        call["inputs_embeds"] = model.get_input_embeddings()(call.pop("inputs"))
    elif kind == "states":
        states = model.get_encoder()(input_ids=call.pop("inputs"), attention_mask=mask).last_hidden_state
        call["encoder_outputs"] = BaseModelOutput(states)
    elif "prompt" in kind:
        begin = [] if "without" in kind else [1]
        call["decoder_input_ids"] = torch.tensor([[*begin, draw.randrange(8, 17), 9] for _ in sources])
    return model, call | sample_settings(draw)


@pytest.mark.parametrize("seed", range(100))
def test_random_models_and_settings(seed: int, searches: list[WatchedSearch]) -> None:
    """Token ids, scores, beam indices and the number of steps are those of transformers' own search."""
    model, call = sample(seed)
    compare(model, searches, **call)


def sample_chain(seed: int) -> tuple[VanillaTransformerForConditionalGeneration, dict[str, Any]]:
    """A model whose texts end at many lengths, and a call with a prompt of its own for each sentence."""
    draw = random.Random(seed)
    size = 16
    generator = torch.Generator().manual_seed(seed)
    ends = draw.choice([[2], [2], [2, 3, 4]])
    logits = torch.randn(size, size, generator=generator) * draw.choice([0.5, 1.5, 3.0])
    logits[:, ends] += draw.choice([-2.0, 0.0, 1.0])
    sentences = draw.randint(1, 7)
    call = {
        "inputs": torch.tensor([[5, 2]] * sentences),
        "decoder_input_ids": torch.tensor([[1, draw.randrange(5, size)] for _ in range(sentences)]),
        "eos_token_id": ends,
    }
    settings = sample_settings(draw)
    if settings["num_beams"] > size - len(ends):  # more hypotheses than tokens to begin with
        settings |= {"num_beams": 6, "num_return_sequences": 6}
    return chain(logits, 0.1), call | settings | {"max_new_tokens": draw.choice([3, 9, 20])}


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


# Scores


def log_p(model: Any, source: list[int], target: list[int], prompt: int = 1) -> float:
    """The log-probability of the tokens behind the prompt, from one plain pass."""
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target[:-1]])).logits[0]
    table = logits[prompt - 1 :].detach().numpy().astype(np.float64)
    table = table - table.max(axis=1, keepdims=True)
    table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    return float(table[np.arange(len(table)), target[prompt:]].sum())


@pytest.mark.parametrize("prompt", [[1], [1, 9, 8]], ids=str)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_scores_are_penalised_log_probabilities(kind: str, alpha: float, prompt: list[int]) -> None:
    """A score is the log-probability over ((5 + L) / 6)^alpha or L^alpha; L counts the end token, no prompt (B19)."""
    ids, mask = pad(SOURCES)
    seen = set()
    for seed in range(2):
        model = likes_to_end(seed, 3.0, 1.5)
        for theirs in ({}, {"output_scores": True}):
            output = model.generate(
                ids,
                attention_mask=mask,
                decoder_input_ids=torch.tensor([prompt] * len(SOURCES)),
                num_beams=4,
                num_return_sequences=4,
                max_new_tokens=8,
                length_penalty=alpha,
                length_penalty_kind=kind,
                return_dict_in_generate=True,
                **theirs,
            )
            for row, (length, score) in enumerate(zip(lengths(output), output.sequences_scores.tolist(), strict=True)):
                target = output.sequences[row, : len(prompt) + length].tolist()
                divisor = ((5 + length) / 6) ** alpha if kind == "gnmt" else length**alpha
                expected = log_p(model, SOURCES[row // 4], target, len(prompt)) / divisor
                assert math.isclose(score, expected, rel_tol=1e-5, abs_tol=1e-4)
                assert length == 8 or target[-1] == 2
                seen.add(length)
    assert len(seen) > 3 or alpha > 1


def two_texts() -> VanillaTransformerForConditionalGeneration:
    """A model that knows two texts: 3 4 5 and the end with log-probability -1, 6 to 13 and the end with -1.45."""
    p = torch.full((20, 20), 1 / 20)
    first = {3: math.exp(-1), 6: math.exp(-1.45)}
    p[1] = (1 - sum(first.values())) / 18
    for token, probability in first.items():
        p[1, token] = probability
    for text in ([3, 4, 5, 2], [*range(6, 14), 2]):
        for before, after in itertools.pairwise(text):
            p[before] = 1e-12
            p[before, after] = 1 - 19e-12
    return chain(p.double().log())


@pytest.mark.parametrize("theirs", [{}, {"output_scores": True}], ids=str)
def test_ranking_follows_the_kind_of_penalty(theirs: dict[str, bool]) -> None:
    """At alpha 0.6 the short text wins with the paper's formula, the long one with transformers' (B19)."""
    model = two_texts()
    short, long = [1, 3, 4, 5, 2], [1, *range(6, 14), 2]
    for kind, ranking in (("gnmt", [short, long]), ("power", [long, short])):
        output = model.generate(
            SRC % 20,
            num_return_sequences=2,
            length_penalty_kind=kind,
            return_dict_in_generate=True,
            **theirs,
        )
        assert [row[: row.index(2) + 1] for row in output.sequences.tolist()] == ranking
        divisors = {"gnmt": ((9 / 6) ** 0.6, (14 / 6) ** 0.6), "power": (4**0.6, 9**0.6)}[kind]
        expected = sorted((-1 / divisors[0], -1.45 / divisors[1]), reverse=True)
        close(output.sequences_scores, torch.tensor(expected))


def test_where_the_kind_is_looked_up() -> None:
    """A keyword comes first, then the given configuration, then the model's; without any it is "power" (B19)."""
    model = two_texts()

    def wins(*config: GenerationConfig, **settings: Any) -> str:
        return "gnmt" if model.generate(SRC % 20, *config, **settings).shape[1] == 5 else "power"

    assert wins() == "gnmt"
    assert wins(length_penalty_kind="power") == "power"
    assert wins(GenerationConfig(length_penalty_kind="power")) == "power"
    assert wins(GenerationConfig(length_penalty_kind="power"), length_penalty_kind="gnmt") == "gnmt"
    settings = model.generation_config.to_dict()
    model.generation_config = GenerationConfig(
        **{name: value for name, value in settings.items() if name != "length_penalty_kind"}
    )
    assert wins() == "power"
    assert wins(GenerationConfig(length_penalty_kind="gnmt")) == "gnmt"


@pytest.mark.parametrize("theirs", [{}, {"output_scores": True}], ids=str)
def test_without_a_penalty(theirs: dict[str, bool]) -> None:
    """Where nobody says it, alpha is 1 and the kind "power", as in transformers (B19)."""
    model = two_texts()
    for name in ("length_penalty", "length_penalty_kind"):
        setattr(model.generation_config, name, None)
    output = model.generate(SRC % 20, return_dict_in_generate=True, **theirs)
    assert output.sequences[0].tolist() == [1, *range(6, 14), 2]
    close(output.sequences_scores, torch.tensor([-1.45 / 9]))


@pytest.mark.parametrize("theirs", [{}, {"output_scores": True}, {"use_cache": False}], ids=str)
@pytest.mark.parametrize("kind", ["GNMT", "wu"])
def test_unknown_kind_of_penalty(kind: str, theirs: dict[str, bool]) -> None:
    """A kind that does not exist is a ValueError that names those that do (B19)."""
    with pytest.raises(ValueError, match=f"'gnmt'.*'power'.*{kind}"):
        endless().generate(SRC, length_penalty_kind=kind, **theirs)


def test_the_penalty_as_an_exponent() -> None:
    """`L ** penalty` is ((5 + L) / 6)^alpha; a copy of the penalty is one too (B19)."""
    penalty = engine.GNMTLengthPenalty(0.6)
    for current in (penalty, copy.copy(penalty), copy.deepcopy(penalty)):
        assert current == 0.6
        assert math.isclose(9**current, (14 / 6) ** 0.6)
        assert math.isclose(9.0**current, (14 / 6) ** 0.6)


# A sentence and its batch


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


# What is stored


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
    monkeypatch.setattr(engine, "COLUMNS_AT_FIRST", at_first)
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


# Processors and criteria


class OnlyEvenAfterOdd(LogitsProcessor):
    """A rule that looks at the tokens so far."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        banned = (torch.arange(scores.shape[1]) % 2 == 1) & (input_ids[:, -1:] % 2 == 1)
        return scores.masked_fill(banned, -torch.inf)


class RowsDiffer(LogitsProcessor):
    """A rule that depends on the row, and counts the rows."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert len(input_ids) == len(scores) == 20
        return scores - 0.1 * torch.arange(20)[:, None] * torch.arange(scores.shape[1]).remainder(3)


def own_words(sentence: int, prefix: Tensor) -> list[int]:
    """A rule that depends on the sentence and on what it has so far."""
    return [2, *range(3 + sentence, 50, 2 + len(prefix) % 2)]


PROCESSORS: list[dict[str, Any]] = [
    {"min_length": 6},
    {"min_new_tokens": 4},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_repetition_penalty": 1.5},
    {"bad_words_ids": [[7], [22, 22], [29], [41, 35]]},
    {"sequence_bias": [[[5], 3.0], [[22, 22], -2.0]]},
    {"forced_bos_token_id": 17},
    {"forced_eos_token_id": 2},
    {"forced_eos_token_id": [2, 5]},
    {"suppress_tokens": [5, 22, 29, 41]},
    {"begin_suppress_tokens": [2, 22]},
    {"exponential_decay_length_penalty": (3, 1.5)},
    {"renormalize_logits": True, "suppress_tokens": [5, 22]},
    {"remove_invalid_values": True},
    {"prefix_allowed_tokens_fn": own_words},
    {"logits_processor": [OnlyEvenAfterOdd()]},
    {"logits_processor": [RowsDiffer()], "no_repeat_ngram_size": 2},
]


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


class FinishedAtAMultiple(StoppingCriteria):
    """Ends a hypothesis by its last token."""

    def __init__(self, of: int) -> None:
        self.of = of

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids[:, -1] % self.of == self.of - 1


class FinishedByRow(StoppingCriteria):
    """Ends the hypotheses of a sentence after so many tokens as it has number; counts rows."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        assert scores is None or isinstance(scores, tuple)
        sentence = torch.arange(len(input_ids)) // (len(input_ids) // 5)
        return input_ids.shape[1] > 3 + sentence


class FinishedAfterFour(StoppingCriteria):
    """Ends everything, and says so with one truth value, which transformers takes too."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] == 5


CRITERIA: dict[str, dict[str, Any]] = {
    "last token": {"stopping_criteria": [FinishedAtAMultiple(4)]},
    "most tokens": {
        "stopping_criteria": [FinishedAtAMultiple(2), FinishedAtAMultiple(3), FinishedAtAMultiple(5)],
        "length_penalty": 4.0,
    },
    "row": {"stopping_criteria": [FinishedByRow()]},
    "both": {"stopping_criteria": [FinishedAtAMultiple(4), FinishedByRow()]},
    "one truth value": {"stopping_criteria": [FinishedAfterFour()]},
    "length": {"stopping_criteria": [MaxLengthCriteria(4)]},
    "no time": {"max_time": 0.0},
    "much time": {"max_time": 1000.0},
}


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
        assert set(search.sizes) == {5} or name == "length"
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


# What is left to transformers


def call_of_all() -> dict[str, Any]:
    ids, mask = pad(SOURCES)
    return {"inputs": ids, "attention_mask": mask, "max_new_tokens": 6, "num_return_sequences": 2}


SAME_TEXT: dict[str, dict[str, Any]] = {
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits": {"output_logits": True, "return_dict_in_generate": True},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "cache_implementation": {"cache_implementation": "static"},
    "use_cache": {"use_cache": False},
    "tokenizer": {"tokenizer": tokenizer()},
    "penalty_alpha": {"penalty_alpha": 0.6},
    "dola_layers": {"dola_layers": "low"},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 2},
    "decoder_attention_mask": {
        "decoder_input_ids": torch.tensor([[1, 9, 8]] * 5),
        "decoder_attention_mask": torch.ones((5, 3), dtype=torch.long),
    },
}
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


def test_one_beam(searches: list[WatchedSearch]) -> None:
    """Greedy search, a streamer and a helping model work as ever."""
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
    assert not searches


def test_every_option_is_tried() -> None:
    """Each option that the search of our own does not know is named in a test here."""
    elsewhere = {"do_sample", "assistant_model", "cache", "past_key_values", "stop_strings", "custom_generate"}
    not_given = {"synced_gpus", "token_healing"}  # several processes; texts without a source
    assert set(NOT_OWN) - {*SAME_TEXT, *REFUSED} == elsewhere | not_given


# Models that are not as they were built


class Added(nn.Linear):
    """A linear map with something added, as adapters are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.5 * super().forward(x.flip(-1))


class Wrapped(nn.Module):
    """A map around a linear one, without its attributes."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).roll(1, dims=-1)


@pytest.mark.parametrize("how", [Added, Wrapped])
@pytest.mark.parametrize(
    "name",
    [
        *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"),
        *("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "encoder_attn.out_proj", "lm_head"),
    ],
)
def test_replaced_linear_maps(name: str, how: type[nn.Module], searches: list[WatchedSearch]) -> None:
    """What stands in a linear map's place is called, whatever it adds."""
    model = likes_to_end(0, -1e4, 2.0, tie_word_embeddings=False)
    ids, mask = pad(SOURCES)
    call = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 6}
    before = compare(model, searches, **call)
    path = name if name == "lm_head" else f"model.decoder.layers.1.{name}"
    parent, last = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    linear = getattr(parent, last)
    if how is Wrapped:
        setattr(parent, last, Wrapped(linear))
    else:
        changed = Added(linear.in_features, linear.out_features, bias=linear.bias is not None).double()
        changed.load_state_dict(linear.state_dict())
        setattr(parent, last, changed)
    after = compare(model, searches, **call)
    assert not after.sequences_scores.allclose(before.sequences_scores, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("lm_head", "model.decoder.layers.0", "model.decoder.layers.0.self_attn", "model.decoder.layers.0.fc1"),
        *("model.decoder.layers.0.encoder_attn", "model.decoder.layers.0.encoder_attn.k_proj"),
        *("model.decoder.layers.0.self_attn.q_proj", "model.decoder.embed_tokens"),
    ],
)
def test_hooks(name: str) -> None:
    """What a hook on a part of the model makes of its output counts in beam search as in transformers' own."""
    model = likes_to_end(0, -1e4, 2.0)

    def half(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output / 2 if isinstance(output, Tensor) else (output[0] / 2, *output[1:])

    call = call_of_all() | {"return_dict_in_generate": True}
    before = model.generate(**call)
    model.get_submodule(name).register_forward_hook(half)
    ours, theirs = model.generate(**call), model.generate(**call, output_scores=True)
    assert ours.sequences.equal(theirs.sequences)
    assert not theirs.sequences_scores.allclose(before.sequences_scores, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("automatic", [False, True])
def test_half_precision(automatic: bool, dtype: torch.dtype, searches: list[WatchedSearch]) -> None:
    """In half precision, or under autocast, the search runs, and its scores are those of the text up to rounding."""
    ids, mask = pad(SOURCES)
    exact, model = likes_to_end(1, -1e4, 1.5), likes_to_end(1, -1e4, 1.5).to(torch.float32 if automatic else dtype)
    for settings in ({}, {"no_repeat_ngram_size": 1}):
        with torch.autocast("cpu", dtype=dtype, enabled=automatic):
            output = model.generate(
                ids, attention_mask=mask, max_new_tokens=6, return_dict_in_generate=True, **settings
            )
        if settings:
            assert all(len(set(row)) == 7 for row in output.sequences.tolist())
        expected = [log_p(exact, SOURCES[row], output.sequences[row].tolist()) for row in range(5)]
        close(output.sequences_scores * (11 / 6) ** 0.6, torch.tensor(expected), 0.2)
    assert len(searches) == 2


# Who calls


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
