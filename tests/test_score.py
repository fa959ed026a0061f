"""Scores equal sacrebleu's own command line (B50, B51), and bad input is refused (B40)."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes import run_module, write_text
from training.errors import UsageError
from training.score import corpus_bleu, score

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


def sacrebleu_command(
    tmp_path: Path, hypotheses: list[str], *references: list[str], extra: tuple[str, ...] = ()
) -> dict[str, float]:
    files = [write_text(tmp_path / f"r{i}", lines) for i, lines in enumerate(references)]
    command = [sys.executable, "-m", "sacrebleu", *files, "-i", write_text(tmp_path / "h", hypotheses)]
    command += ["-m", "bleu", "chrf", "ter", "-w", "6", *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {entry["name"].lower(): entry["score"] for entry in json.loads(done.stdout)}


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHER_REFERENCES]], ids=["one set", "two sets"])
def test_scores_equal_the_command_line_of_sacrebleu(tmp_path: Path, references: list[list[str]]) -> None:
    expected = sacrebleu_command(tmp_path, HYPOTHESES, *references)
    scores = score(HYPOTHESES, references, "de")
    for ours, theirs in (("bleu", "bleu"), ("chrf", "chrf2"), ("ter", "ter")):
        assert scores[ours]["score"] == pytest.approx(expected[theirs], abs=1e-6)
    assert f"nrefs:{len(references)}|case:mixed|eff:no|tok:13a" in scores["bleu"]["signature"]
    assert scores["settings"] == {"target_lang": "de", "sentences": 6, "reference_sets": len(references)}
    assert 0 < scores["bleu"]["score"] < 100


def test_shuffled_pairs_score_alike() -> None:
    """B50: every line is scored, not the first only."""
    order = random.Random(1).sample(range(6), 6)
    shuffled = score([HYPOTHESES[i] for i in order], [[REFERENCES[i] for i in order]])
    assert shuffled["bleu"]["score"] == pytest.approx(score(HYPOTHESES, [REFERENCES])["bleu"]["score"])
    first_only = score(["x y z w v"] * 2 + ["a b c d e"], [["a b c d e"] * 3])
    assert first_only["bleu"]["score"] < 60


def test_chinese_is_split_into_characters(tmp_path: Path) -> None:
    hypotheses, references = ["我喜欢吃苹果和梨。", "今天天气很好。"], ["我喜欢吃苹果和香蕉。", "今天的天气很好。"]
    expected = sacrebleu_command(tmp_path, hypotheses, references, extra=("-tok", "zh"))
    value, signature = corpus_bleu(hypotheses, references, "zh")
    assert value == pytest.approx(expected["bleu"], abs=1e-6)
    assert "tok:zh" in signature


def test_unequal_or_no_lines_are_refused() -> None:
    with pytest.raises(UsageError, match=r"3 hypotheses but 2 lines in reference 1"):
        score(["a", "b", "c"], [["a", "b"]])
    with pytest.raises(UsageError, match="2 lines in reference 2"):
        score(["a", "b", "c"], [["a", "b", "c"], ["a", "b"]])
    with pytest.raises(UsageError, match="no hypotheses"):
        score([], [[]])


def test_command_prints_lines_or_json(tmp_path: Path) -> None:
    files = [write_text(tmp_path / "h", HYPOTHESES), write_text(tmp_path / "r", REFERENCES)]
    expected = sacrebleu_command(tmp_path, HYPOTHESES, REFERENCES)
    lines = run_module("training.score", *files, "--target-lang", "de", cwd=tmp_path)
    assert lines.returncode == 0
    assert lines.stdout.splitlines()[0].startswith(f"BLEU {expected['bleu']:.2f}  nrefs:1|")
    printed = run_module("training.score", *files, "--target-lang", "de", "--json", cwd=tmp_path)
    assert json.loads(printed.stdout)["bleu"]["score"] == pytest.approx(expected["bleu"], abs=1e-6)


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
