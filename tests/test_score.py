"""Scores equal sacrebleu's own command line (B50, B51), say how they were made (B54), bad input is refused (B40)."""

import json
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.recipes import run_module, write_text
from training.errors import UsageError
from training.score import corpus_bleu, run_settings, score

HYPOTHESES = [
    "The cat sat on the mat .",
    "He said: don't, 3.5 % !",
    "",
    "A man is riding a horse in the old town.",
    "Two dogs, black and white, run.",
    "It is 5:15 PM.",
]
REFERENCES = [
    "The cat sat on a mat.",
    "He said: don't, 3.5 %!",
    "Nothing.",
    "A man rides a horse in the old town.",
    "Two black-and-white dogs run.",
    "It is quarter past five.",
]
OTHER_REFERENCES = [
    "A cat sat on the mat.",
    "He says: do not!",
    "",
    "A man on a horse.",
    "Dogs run.",
    "It is 5:15 PM.",
]
BASELINE = [
    "The cat sits on a mat.",
    "He said: don't, 3.5 %",
    "Nothing.",
    "A man rides horses in the town.",
    "Two dogs run.",
    "It is a quarter past five.",
]
SACREBLEU_NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def run_sacrebleu(tmp_path: Path, systems: list[list[str]], references: list[list[str]], *extra: str) -> str:
    files = [write_text(tmp_path / f"r{i}", lines) for i, lines in enumerate(references)]
    inputs = [write_text(tmp_path / f"h{i}", lines) for i, lines in enumerate(systems)]
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *files,
        "-i",
        *inputs,
        "-m",
        "bleu",
        "chrf",
        "ter",
        "-w",
        "6",
        *extra,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sacrebleu_command(
    tmp_path: Path, hypotheses: list[str], *references: list[str], extra: tuple[str, ...] = ()
) -> dict[str, float]:
    entries = json.loads(run_sacrebleu(tmp_path, [hypotheses], list(references), *extra))
    return {entry["name"].lower(): entry["score"] for entry in entries}


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHER_REFERENCES]], ids=["one set", "two sets"])
def test_scores_equal_the_command_line_of_sacrebleu(tmp_path: Path, references: list[list[str]]) -> None:
    expected = sacrebleu_command(tmp_path, HYPOTHESES, *references)
    scores = score(HYPOTHESES, references, "de")
    for ours, theirs in (("bleu", "bleu"), ("chrf", "chrf2"), ("ter", "ter")):
        assert scores[ours]["score"] == pytest.approx(expected[theirs], abs=1e-6)
    assert f"nrefs:{len(references)}|case:mixed|eff:no|tok:13a" in scores["bleu"]["signature"]
    assert scores["settings"] == {
        "target_lang": "de",
        "sentences": 6,
        "reference_sets": len(references),
        "tokenized": False,
        "versions": {"sacrebleu": version("sacrebleu"), "sacremoses": version("sacremoses")},
    }
    assert 0 < scores["bleu"]["score"] < 100


def test_shuffled_pairs_score_alike() -> None:
    """B50: every line is scored, not the first only."""
    order = random.Random(1).sample(range(6), 6)
    shuffled = score([HYPOTHESES[i] for i in order], [[REFERENCES[i] for i in order]])
    assert shuffled["bleu"]["score"] == pytest.approx(score(HYPOTHESES, [REFERENCES])["bleu"]["score"])
    first_only = score(["x y z w v"] * 2 + ["a b c d e"], [["a b c d e"] * 3])
    assert first_only["bleu"]["score"] < 60


def test_one_value_for_all_lines_not_the_mean_of_theirs() -> None:
    """B51: 4 + 1 of 4 + 9 words match and so on; line for line the scores would be 100 and 0."""
    scores = score(["a b c d", "a x x x x x x x x"], [["a b c d", "a y y y y y y y y"]], "de", tokenized=True)
    precisions = 5 / 13 * 3 / 11 * 2 / 9 * 1 / 7
    assert scores["bleu"]["score"] == pytest.approx(100 * precisions**0.25)
    assert scores["bleu_compound_split"]["score"] == pytest.approx(100 * precisions**0.25)


@pytest.mark.parametrize("empty_side", ["hypotheses", "references"])
def test_empty_lines_count(empty_side: str) -> None:
    filled = ["Ein Mann geht mit dem Hund spazieren .", "Zwei Frauen sitzen auf einer Bank ."]
    gap = [filled[0], ""]
    hypotheses, references = (gap, filled) if empty_side == "hypotheses" else (filled, gap)
    whole, one = score(hypotheses, [references], "de"), score(filled[:1], [filled[:1]], "de")
    assert whole["settings"]["sentences"] == 2
    # chrF takes the precision of no characters that have no reference: only what is missing lowers it.
    for name in ("bleu", "bleu_compound_split") + ("chrf",) * (empty_side == "hypotheses"):
        assert whole[name]["score"] < one[name]["score"] == pytest.approx(100)
    assert whole["ter"]["score"] > one["ter"]["score"] == 0


def test_confidence_equals_the_command_line_of_sacrebleu(tmp_path: Path) -> None:
    printed = run_sacrebleu(tmp_path, [HYPOTHESES], [REFERENCES], "--confidence")
    expected = {entry["name"]: entry for entry in json.loads(printed)}
    scores = score(HYPOTHESES, [REFERENCES], "de", confidence=True)
    for ours, theirs in SACREBLEU_NAMES.items():
        assert scores[ours]["score"] == pytest.approx(expected[theirs]["score"], abs=1e-6)
        assert scores[ours]["signature"] == expected[theirs]["signature"]
        assert scores[ours]["confidence"] == {
            "mean": pytest.approx(expected[theirs]["confidence_mean"], abs=1e-5),
            "half_width": pytest.approx(expected[theirs]["confidence_var"], abs=1e-5),
            "n": 1000,
        }
        assert scores[ours]["confidence"]["half_width"] > 0
    assert "bs:1000|seed:12345" in scores["bleu_compound_split"]["signature"]
    assert scores["bleu_compound_split"]["confidence"]["half_width"] > 0


def test_paired_bootstrap_equals_the_command_line_of_sacrebleu(tmp_path: Path) -> None:
    """Read from its table: its JSON of this test cannot hold TER."""
    references = [REFERENCES, OTHER_REFERENCES]
    table = run_sacrebleu(tmp_path, [BASELINE, HYPOTHESES], references, "--paired-bs", "-f", "text")
    scores = score(HYPOTHESES, references, "de", baseline=BASELINE)
    alone = score(BASELINE, references, "de", confidence=True)
    for name in SACREBLEU_NAMES:
        own, interval, test = scores[name], scores[name]["confidence"], scores[name]["baseline"]
        assert f" {own['score']:.6f} ({interval['mean']:.6f} ± {interval['half_width']:.6f})" in table
        assert f" {test['score']:.6f} ({alone[name]['confidence']['mean']:.6f} ± " in table
        assert f"(p = {test['p_value']:.4f})" in table
        assert own["signature"] in table
    assert json.loads(json.dumps(scores)) == scores
    split = scores["bleu_compound_split"]
    assert split["baseline"]["score"] == alone["bleu_compound_split"]["score"] != split["score"]
    assert 1 / 1001 < split["baseline"]["p_value"] < 1
    same = score(HYPOTHESES, references, "de", baseline=HYPOTHESES)
    assert same["bleu"]["baseline"] == {"score": same["bleu"]["score"], "p_value": 1 / 1001}


def test_tokens_are_counted_as_they_stand(tmp_path: Path) -> None:
    """The literature's number on Multi30k is of lower-cased tokens: split once more, they would count differently."""
    hypotheses = ["ein mann & apos ; s t-shirt ist 3.5 m lang .", "zwei hunde -- einer schwarz ."]
    references = ["ein mann & apos ; s t-shirt war 3.5 m lang .", "zwei hunde -- einer weiß ."]
    expected = sacrebleu_command(tmp_path, hypotheses, references, extra=("-tok", "none", "--force"))
    scores = score(hypotheses, [references], "de", tokenized=True)
    assert scores["bleu"]["score"] == pytest.approx(expected["bleu"], abs=1e-6)
    assert "tok:none" in scores["bleu"]["signature"]
    assert "tok:none|smooth:none|split:compound|version" in scores["bleu_compound_split"]["signature"]
    assert scores["settings"]["tokenized"] is True
    assert scores["settings"]["versions"] == {"sacrebleu": version("sacrebleu"), "sacremoses": None}


@pytest.mark.parametrize("language", ["", "zh"])
def test_no_compounds_without_a_language_that_has_words(language: str) -> None:
    scores = score(["我喜欢吃苹果和梨。"], [["我喜欢吃苹果和梨。"]], language)
    assert scores["bleu_compound_split"] is None
    assert scores["settings"]["versions"]["sacremoses"] is None


def test_chinese_is_split_into_characters(tmp_path: Path) -> None:
    hypotheses, references = ["我喜欢吃苹果和梨。", "今天天气很好。"], ["我喜欢吃苹果和香蕉。", "今天的天气很好。"]
    expected = sacrebleu_command(tmp_path, hypotheses, references, extra=("-tok", "zh"))
    value, signature = corpus_bleu(hypotheses, references, "zh")
    assert value == pytest.approx(expected["bleu"], abs=1e-6)
    assert "tok:zh" in signature


@pytest.mark.parametrize("code", ["zh-CN", "zh_CN", "ZH", "zho", "zh-Hans-CN", "cmn"])
def test_a_code_may_have_a_region_or_another_spelling(code: str) -> None:
    hypotheses, references = ["我喜欢吃苹果和梨。"], ["我喜欢吃苹果和香蕉。"]
    scores, expected = (score(hypotheses, [references], language) for language in (code, "zh"))
    assert (scores["bleu"], scores["bleu_compound_split"]) == (expected["bleu"], None)
    assert corpus_bleu(hypotheses, references, code) == corpus_bleu(hypotheses, references, "zh")
    assert scores["settings"]["target_lang"] == code
    with pytest.raises(UsageError, match=r"pip install 'sacrebleu\[ja\]'"):
        corpus_bleu(hypotheses, references, "ja_JP")


def test_a_region_is_nothing_to_the_tokenizer_of_compounds() -> None:
    austrian, german = (score(HYPOTHESES, [REFERENCES], language) for language in ("de-AT", "de"))
    assert austrian["bleu_compound_split"] == german["bleu_compound_split"]
    assert "tok:moses-de|" in german["bleu_compound_split"]["signature"]


@pytest.mark.parametrize("tokenized", [False, True])
@pytest.mark.parametrize("code", ["German", "z", "de2", "-CN"])
def test_what_is_no_language_code_is_refused(code: str, tokenized: bool) -> None:
    message = rf"^language `{code}`: no code of ISO 639; write `de` for German, `zh` or `zh-CN` for Chinese$"
    with pytest.raises(UsageError, match=message):
        score(["a"], [["a"]], code, tokenized=tokenized)
    with pytest.raises(UsageError, match=message):
        corpus_bleu(["a"], ["a"], code, tokenized)


def test_unequal_or_no_lines_are_refused() -> None:
    with pytest.raises(UsageError, match=r"3 hypotheses but 2 lines in reference 1"):
        score(["a", "b", "c"], [["a", "b"]])
    with pytest.raises(UsageError, match="2 lines in reference 2"):
        score(["a", "b", "c"], [["a", "b", "c"], ["a", "b"]])
    with pytest.raises(UsageError, match="3 hypotheses but 2 lines in the baseline"):
        score(["a", "b", "c"], [["a", "b", "c"]], baseline=["a", "b"])
    with pytest.raises(UsageError, match="3003 hypotheses but 2737 lines in reference 1"):
        score(["a"] * 3003, [["a"] * 2737], "de")
    with pytest.raises(UsageError, match="no hypotheses"):
        score([], [[]])


def test_command_prints_lines(tmp_path: Path) -> None:
    files = [write_text(tmp_path / "h", HYPOTHESES), write_text(tmp_path / "r", REFERENCES)]
    expected = score(HYPOTHESES, [REFERENCES], "de", baseline=BASELINE)
    alone = {
        name: score(HYPOTHESES, [REFERENCES], "de")[name] for name in ("bleu", "chrf", "ter", "bleu_compound_split")
    }
    labels = ["BLEU", "chrF", "TER", "BLEU, compounds split"]
    plain = run_module("training.score", *files, "--target-lang", "de", cwd=tmp_path)
    assert plain.returncode == 0
    assert plain.stdout.splitlines() == [
        f"{label} {own['score']:.2f}  {own['signature']}" for label, own in zip(labels, alone.values(), strict=True)
    ]
    other = ("--target-lang", "de", "--baseline", write_text(tmp_path / "b", BASELINE))
    tested = run_module("training.score", *files, *other, cwd=tmp_path)
    bleu = expected["bleu"]
    assert tested.stdout.splitlines()[0] == (
        f"BLEU {bleu['score']:.2f} ± {bleu['confidence']['half_width']:.2f} "
        f"(baseline {bleu['baseline']['score']:.2f}, p = {bleu['baseline']['p_value']:.4f})  {bleu['signature']}"
    )
    assert len(tested.stdout.splitlines()) == 4


def test_json_holds_every_setting(tmp_path: Path) -> None:
    """B54: the test set and its size, averaging, beam, penalty and its formula, signatures, in one object."""
    run = tmp_path / "run"
    run.mkdir()
    decoding = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_kind": "gnmt", "max_length_margin": 50}
    (run / "generation_config.json").write_text(json.dumps({**decoding, "pad_token_id": 0}))
    (run / "averaging.json").write_text(json.dumps({"checkpoints": [f"checkpoint-{n}00" for n in range(1, 6)]}))
    hypotheses, references = (
        write_text(run / "test_hypotheses.txt", HYPOTHESES),
        write_text(tmp_path / "r", REFERENCES),
    )
    arguments = ("--target-lang", "de", "--json", "--confidence")
    done = run_module("training.score", hypotheses, references, *arguments, cwd=tmp_path)
    printed = json.loads(done.stdout)
    expected = score(HYPOTHESES, [REFERENCES], "de", confidence=True)
    assert list(printed) == ["bleu", "chrf", "ter", "bleu_compound_split", "settings"]
    settings = printed.pop("settings")
    assert settings == {
        **expected.pop("settings"),
        "files": {"hypotheses": hypotheses, "references": [references], "baseline": None},
        "decoding": decoding,
        "checkpoints_averaged": 5,
    }
    assert printed == expected


def test_settings_of_a_run_that_left_little(tmp_path: Path) -> None:
    """What is not there is null; what a generation config leaves out is transformers' default."""
    hypotheses = tmp_path / "eval_hypotheses.txt"
    assert run_settings(hypotheses) == {"decoding": None, "checkpoints_averaged": None}
    settings = {"num_beams": 5, "no_repeat_ngram_size": 3, "coverage_penalty": 0.2, "early_stopping": "never"}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "max_length": None, **settings}))
    assert run_settings(hypotheses)["decoding"] == {
        "length_penalty": 1.0,
        "length_penalty_kind": "power",
        "max_length_margin": None,
        **settings,
    }


def test_settings_of_translations_that_no_run_wrote_are_unknown(tmp_path: Path) -> None:
    """They may be any search's and any model's, in a run's folder too."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 4}))
    (tmp_path / "averaging.json").write_text(json.dumps({"checkpoints": ["checkpoint-1"]}))
    for name, known in (("test_hypotheses.txt", True), ("greedy.txt", False), ("my_test_hypotheses.txt", False)):
        assert [value is not None for value in run_settings(tmp_path / name).values()] == [known, known]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"checkpoints": 5}'])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "averaging.json").write_text(content)
    with pytest.raises(UsageError, match=r"averaging\.json"):
        run_settings(tmp_path / "test_hypotheses.txt")


@pytest.mark.parametrize(
    ("reference", "language", "message"),
    [(["a"], "de", "6 hypotheses but 1 lines"), (REFERENCES, "ja", "pip install 'sacrebleu[ja]'")],
    ids=["unequal", "no word finder"],
)
def test_command_ends_with_status_2_and_one_line(
    tmp_path: Path, reference: list[str], language: str, message: str
) -> None:
    files = [write_text(tmp_path / "h", HYPOTHESES), write_text(tmp_path / "r", reference)]
    done = run_module("training.score", *files, "--target-lang", language, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
