"""`translate()`: order, empty lines, independence of neighbours (B41), reading as it is needed, scores, options."""

import copy
import itertools
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.utils import logger

from tests.copier import byte_tokenizer, copier
from tests.tiny import endless, scale, tiny
from tests.tiny import tokenizer as word_tokenizer
from vanilla_transformer import VanillaTransformerForConditionalGeneration, translate, translation
from vanilla_transformer.translation import WINDOW, hypotheses

Model = VanillaTransformerForConditionalGeneration
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerBase) -> Model:
    """Random, so that many of its hypotheses are nearly equal: float64 tells them apart whatever the batch."""
    torch.manual_seed(3)
    return scale(tiny(vocab_size=len(tokenizer))).double()


@pytest.fixture(scope="module")
def copying(tokenizer: PreTrainedTokenizerBase) -> Model:
    return copier(len(tokenizer))


def words() -> PreTrainedTokenizerBase:
    """A token for each word; no end token."""
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def sentences(n: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(n)]


def test_order_and_independence_of_the_batch(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """Every budget, and every order of the lines, gives what one sentence at a time gives."""
    lines = sentences(12)
    alone = [next(translate(model, tokenizer, [line], num_beams=2)) for line in lines]
    assert len(set(alone)) > 6
    for budget in (1, 64, 8192):
        assert list(translate(model, tokenizer, lines, max_batch_tokens=budget, num_beams=2)) == alone
    order = random.Random(1).sample(range(12), 12)
    shuffled = list(translate(model, tokenizer, [lines[i] for i in order], max_batch_tokens=64, num_beams=2))
    assert shuffled == [alone[i] for i in order]


def test_a_batch_is_within_its_budget_longest_sentences_first(
    copying: Model, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []
    generate = Model.generate

    def watched(self: Model, **options: Any) -> Any:
        shapes.append(tuple(options["input_ids"].shape))
        return generate(self, **options)

    monkeypatch.setattr(Model, "generate", watched)
    lines = [*sentences(60), "alpha " * 100]
    assert list(translate(copying, tokenizer, lines, max_batch_tokens=64, num_beams=1)) == lines
    assert shapes[0][0] == 1 and shapes[0][1] > 64  # a sentence that is over the budget is alone
    assert all(rows * length <= 64 for rows, length in shapes[1:])
    assert [length for _, length in shapes] == sorted((length for _, length in shapes), reverse=True)
    assert sum(rows for rows, _ in shapes) == len(lines) and len(shapes) < 30


def test_blank_lines_are_not_given_to_the_model(
    copying: Model, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B41: what has no visible character is blank: spaces, line separators, controls, zero-width characters."""
    blank = ["", " ", "\t\u2028", "\u200b\ufeff", "\x00\x1f", "\u00a0\u3000\u00ad"]
    lines = [blank[0], blank[1], "alpha", " ".join(WORDS * 40), blank[2], "beta", *blank[3:], ".", "\u0301", "字"]
    expected = ["" if line in blank else line for line in lines]
    assert list(translate(copying, tokenizer, lines, max_batch_tokens=20, num_beams=1)) == expected
    assert list(translate(copying, tokenizer, [])) == []
    several = list(translate(copying, tokenizer, lines, num_beams=2, num_return_sequences=2))
    assert [group[0] for group in several] == expected
    assert several[0] == ["", ""]
    monkeypatch.setattr(Model, "generate", None)
    assert list(translate(copying, tokenizer, blank)) == [""] * len(blank)


def test_text_comes_as_it_was_generated(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    lines = ["a\rb", "a\nb", "a\u2028b\x85c\x0cd", "x\x00y", "</s> <pad>", "  two  spaces ", "👩‍👩‍👧 é שלום"]
    assert list(translate(copying, tokenizer, lines)) == lines


def test_several_translations_of_each(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    lines = ["", *sentences(5)]
    best = list(translate(model, tokenizer, lines, num_beams=4))
    several = list(translate(model, tokenizer, iter(lines), num_beams=4, num_return_sequences=3))
    assert several[0] == ["", "", ""]
    assert [group[0] for group in several] == best
    assert all(len(group) == 3 for group in several)


def counted(lines: Iterator[str], read: list[int]) -> Iterator[str]:
    for line in lines:
        read[0] += 1
        yield line


def test_reads_a_window_at_a_time(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """The first results come before the second window is read, so text may be endless."""
    read = [0]
    lines = (str(i) for i in itertools.count())
    results = translate(copying, tokenizer, counted(lines, read), num_beams=1)
    assert read[0] == 0
    assert next(results) == "0"
    assert read[0] == WINDOW == 2000
    assert list(itertools.islice(results, WINDOW)) == [str(i) for i in range(1, WINDOW + 1)]
    assert read[0] == 2 * WINDOW

    read = [0]
    one_by_one = hypotheses(copying, tokenizer, counted(iter("abc"), read), window=1)
    assert next(one_by_one)[0].text == "a"
    assert read[0] == 1


def test_results_come_as_soon_as_their_place_is_ready(
    copying: Model, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]
    generate = Model.generate

    def watched(self: Model, **options: Any) -> Any:
        calls[0] += 1
        return generate(self, **options)

    monkeypatch.setattr(Model, "generate", watched)
    lines = ["", "alpha " * 9, "alpha " * 8, "beta", "alpha " * 7]
    results = translate(copying, tokenizer, lines, max_batch_tokens=1, num_beams=1)
    assert [(next(results), calls[0]) for _ in lines] == list(zip(lines, [0, 1, 2, 4, 4], strict=True))


def test_memory_is_flat(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """Of 1,000 lines in windows of 50 no more than two windows are alive at any time, before and after translation."""

    class Line(str):
        """A string that can be watched."""

    alive: weakref.WeakSet[Line] = weakref.WeakSet()
    most = 0

    def lines() -> Iterator[str]:
        nonlocal most
        for i in range(1000):
            line = Line(i)
            alive.add(line)
            most = max(most, len(alive))
            yield line

    done = sum(1 for _ in hypotheses(copying, tokenizer, lines(), window=50, num_beams=1))
    assert done == 1000
    assert 50 <= most <= 101


def test_lengths_are_told_in_order(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    lines = ["a", "", "alpha beta", " ", "abc"]
    told: list[int] = []
    list(hypotheses(copying, tokenizer, lines, window=2, on_length=told.append))
    assert told == [len(tokenizer(line)["input_ids"]) if line.strip() else 0 for line in lines]


def test_a_copy_in_another_type(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    single = copy.deepcopy(model).float()
    before = copy.deepcopy(single.state_dict())
    lines = sentences(10)
    plain = list(translate(single, tokenizer, lines))
    half = list(translate(single, tokenizer, lines, dtype=torch.bfloat16))
    assert half == list(translate(copy.deepcopy(single).bfloat16(), tokenizer, lines)) != plain
    assert single.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in single.state_dict().items())
    assert list(translate(single, tokenizer, lines, dtype=torch.float32)) == plain


def test_dropout_is_off_and_the_mode_stays(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    training = copier(len(tokenizer), dropout=0.9).train()
    assert list(translate(training, tokenizer, ["alpha beta"] * 3)) == ["alpha beta"] * 3
    assert training.training and training.model.decoder.layers[0].training
    list(translate(copying, tokenizer, ["a"]))
    assert not copying.training


@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_scores_are_log_probabilities_over_the_length_penalty(kind: str) -> None:
    """Those that beam search gives, and those computed where it gives none, against a pass written down here."""
    torch.manual_seed(1)
    model, tokenizer = scale(tiny(), 3.0).double(), words()
    model.generation_config.update(length_penalty=0.7, length_penalty_kind=kind, max_length_margin=4)
    lines = ["w5 w6 w7", "w9", "w12 w13 w14 w15 w16 w17"]
    searched = list(hypotheses(model, tokenizer, lines, num_beams=4, num_return_sequences=3, with_scores=True))
    greedy = list(hypotheses(model, tokenizer, lines, num_beams=1, with_scores=True))
    sampled = list(
        hypotheses(model, tokenizer, lines, num_beams=1, do_sample=True, num_return_sequences=3, with_scores=True)
    )
    checked = 0
    for line, *found in zip(lines, searched, greedy, sampled, strict=True):
        source = torch.tensor([tokenizer(line)["input_ids"]])
        for hypothesis in itertools.chain(*found):
            ids = torch.tensor([hypothesis.ids])
            with torch.no_grad():
                log_p = model(input_ids=source, labels=ids).logits.log_softmax(dim=-1)
            total = float(log_p.gather(2, ids[..., None]).sum())
            length = ids.shape[1]
            penalty = ((5 + length) / 6) ** 0.7 if kind == "gnmt" else length**0.7
            assert hypothesis.score == pytest.approx(total / penalty, rel=1e-5)
            checked += 1
    assert checked == 21
    for group in searched:
        scores = [hypothesis.score or 0.0 for hypothesis in group]
        assert scores == sorted(scores, reverse=True)
    assert next(hypotheses(model, tokenizer, ["", "w5"], with_scores=True)).pop().score == 0.0
    assert next(hypotheses(model, tokenizer, ["w5"])).pop().score is None


def test_ids_are_the_tokens_without_start_and_padding(tokenizer: PreTrainedTokenizerBase, copying: Model) -> None:
    lines = ["alpha", "", "alpha beta gamma"]
    found = [best.ids for (best,) in hypotheses(copying, tokenizer, lines)]
    assert found == [tuple(tokenizer(line)["input_ids"]) if line else () for line in lines]
    cut = [best.ids for (best,) in hypotheses(copying, tokenizer, lines, max_new_tokens=2)]
    assert cut == [ids[:2] for ids in found]  # no end token, and no padding in its place
    never_ending = endless()
    never_ending.generation_config.max_length_margin = 3
    lengths = [len(best.ids) for (best,) in hypotheses(never_ending, words(), ["w5", "w5 w6 w7"])]
    assert lengths == [1 + 3, 3 + 3]  # each its own limit


def test_a_target_tokenizer_of_its_own(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    (text,) = translate(copying, tokenizer, ["#$"], target_tokenizer=words())
    assert text == " ".join(f"w{i}" for i in tokenizer("#$")["input_ids"][:-1])


def test_a_sentence_longer_than_learned_positions(tokenizer: PreTrainedTokenizerBase) -> None:
    learned = tiny(vocab_size=len(tokenizer), position_encoding="learned", max_position_embeddings=8)
    with pytest.raises(ValueError, match="does not fit `max_position_embeddings`=8"):
        list(translate(learned, tokenizer, ["a", "alpha beta gamma delta" * 3]))


def test_a_generation_config_is_heeded_without_a_warning(
    copying: Model, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logger, "warning_once", warnings.append)
    config = copy.deepcopy(copying.generation_config)
    config.update(max_new_tokens=1, num_beams=3)
    (several,) = translate(copying, tokenizer, ["alpha beta"], generation_config=config, num_return_sequences=3)
    assert len(several) == 3 and several[0] == "alpha"
    assert not warnings
    assert config.num_return_sequences is None


def test_what_is_wrong_is_refused_at_the_call(copying: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="`max_batch_tokens` must be 1 or more, got 0"):
        translate(None, None, ["a"], max_batch_tokens=0)
    with pytest.raises(ValueError, match="`num_return_sequences` must be 1 or more"):
        translate(None, None, ["a"], num_return_sequences=0)
    with pytest.raises(TypeError, match="`sentences` is one string: give a list"):
        translate(copying, tokenizer, "alpha")
    for message, options in {
        "`num_beams` must be 1 or more, got 0": {"num_beams": 0},
        "`num_return_sequences`=5 needs as many beams: `num_beams` is 4": {"num_return_sequences": 5},
        "`num_return_sequences`=3 needs as many beams: `num_beams` is 2": {"num_return_sequences": 3, "num_beams": 2},
        "`num_return_sequences`=2 needs .* is 1": {
            "num_return_sequences": 2,
            "generation_config": GenerationConfig(num_beams=1),
        },
        "no setting `attention_mask`, `num_beam`": {"num_beam": 3, "attention_mask": None},
        "`length_penalty_kind` is 'gnmt'": {"length_penalty_kind": "wu"},
        "`max_new_tokens` must be greater than 0": {"max_new_tokens": -1},
    }.items():
        with pytest.raises(ValueError, match=message):
            translate(copying, tokenizer, ["a"], **options)
    assert copying.generation_config.num_return_sequences is None


def test_the_bar_is_on_stderr(
    copying: Model, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    list(translate(copying, tokenizer, ["a", "", "b"], progress=True))
    shown = capsys.readouterr()
    assert shown.out == "" and "3/3" in shown.err
    list(translation.translate(copying, tokenizer, iter("ab")))
    assert capsys.readouterr().err == ""
