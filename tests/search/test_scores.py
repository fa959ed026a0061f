"""Scores: log-probabilities over a penalty of the length, of the kind asked for."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
)

from tests.tiny import SRC, endless, pad
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer import beam_search_vanilla_transformer as engine

from .common import SOURCES, WatchedSearch, close, lengths, log_p
from .samples import (
    chain,
    likes_to_end,
)


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


@torch.no_grad()
def uncovered(model: Any, source: list[int], target: list[int], prompt: int) -> float:
    """The sum over the source of log(min(attention of the last layer it has had, 1)), from one plain pass."""
    ids, target_ids = torch.tensor([source]), torch.tensor([target[:-1]])
    attention = model(input_ids=ids, decoder_input_ids=target_ids, output_attentions=True).cross_attentions[-1][0]
    return float(attention.mean(dim=0)[prompt - 1 :].sum(dim=0).clamp(max=1.0).log().sum())


@pytest.mark.parametrize("prompt", [[1], [1, 9, 8]], ids=str)
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_coverage_penalty(
    beta: float, prompt: list[int], searches: list[WatchedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a score beta times what the source lacks of attention is added (Wu et al. 2016, equation 14)."""
    monkeypatch.setattr(engine, "LEAVE_AT", 1.0)
    ids, mask = pad(SOURCES)
    changed = 0
    for seed in range(2):
        model = likes_to_end(seed, 3.0, 1.5, attention="eager")
        call: dict[str, Any] = {
            "inputs": ids,
            "attention_mask": mask,
            "decoder_input_ids": torch.tensor([prompt] * len(SOURCES)),
            "num_return_sequences": 4,
            "max_new_tokens": 8,
            "early_stopping": True,
            "return_dict_in_generate": True,
        }
        output = model.generate(**call, coverage_penalty=beta)
        for row, (length, score) in enumerate(zip(lengths(output), output.sequences_scores.tolist(), strict=True)):
            source, target = SOURCES[row // 4], output.sequences[row, : len(prompt) + length].tolist()
            expected = log_p(model, source, target, len(prompt)) / ((5 + length) / 6) ** 0.6
            expected += beta * uncovered(model, source, target, len(prompt))
            assert math.isclose(score, expected, rel_tol=1e-5, abs_tol=1e-4)
        ranked = output.sequences_scores.view(5, 4)
        assert (ranked[:, :-1] >= ranked[:, 1:]).all()
        changed += output.sequences.tolist() != model.generate(**call).sequences.tolist()
    assert changed
    assert set(searches[0].sizes) != {5}  # coverage goes with the sentences that stay


@pytest.mark.parametrize("settings", [{"do_sample": True}, {"output_scores": True}, {"use_cache": False}], ids=str)
def test_coverage_that_nobody_counts(settings: dict[str, bool], searches: list[WatchedSearch]) -> None:
    """Where transformers' own search would run, a coverage penalty is refused, not passed over."""
    with pytest.raises(ValueError, match="`coverage_penalty` needs beam search"):
        endless().generate(SRC, coverage_penalty=0.2, **settings)
    assert not searches
