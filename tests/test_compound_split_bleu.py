"""The paper's BLEU equals its script: Moses' tokens, the hyphens, multi-bleu.perl's arithmetic (B50, B54)."""

import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.recipes import ROOT
from training.errors import UsageError
from training.metrics.compound_split_bleu.paper_bleu import CompoundSplitBLEU, split_compounds
from training.score import score

MODULE = ROOT / "training" / "metrics" / "compound_split_bleu"


def multi_bleu(hypotheses: Sequence[str], *references: Sequence[str]) -> float:
    """multi-bleu.perl in a few words: words between spaces, case kept, nothing smoothed."""
    matches, totals, length, reference_length = [0] * 4, [0] * 4, 0, 0
    for hypothesis, *own_references in zip(hypotheses, *references, strict=True):
        words = hypothesis.split()
        reference_words = [reference.split() for reference in own_references]
        length += len(words)
        reference_length += min((abs(len(each) - len(words)), len(each)) for each in reference_words)[1]
        for n in range(1, 5):
            found = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            most: Counter[tuple[str, ...]] = Counter()
            for each in reference_words:
                most |= Counter(tuple(each[i : i + n]) for i in range(len(each) - n + 1))
            matches[n - 1] += sum((found & most).values())
            totals[n - 1] += sum(found.values())
    if 0 in matches:
        return 0.0
    mean = math.prod(match / total for match, total in zip(matches, totals, strict=True)) ** 0.25
    return 100 * mean * min(1.0, math.exp(1 - reference_length / length))


def paper_bleu(hypotheses: Sequence[str], *references: Sequence[str], tokenized: bool = True) -> float:
    value = CompoundSplitBLEU("de", tokenized).corpus_score(list(hypotheses), [list(each) for each in references])
    return float(value.score)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("3-4", "3 ##AT##-##AT## 4"),
        ("-a b- - c", "-a b- - c"),
        ("a -b", "a -b"),
        ("a–b a—b", "a–b a—b"),
        ("rich-text-format", "rich ##AT##-##AT## text ##AT##-##AT## format"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("w-x-y-z", "w ##AT##-##AT## x-y ##AT##-##AT## z"),
        ("a-ä-b", "a ##AT##-##AT## ä ##AT##-##AT## b"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a---b", "a ##AT##-##AT## --b"),
        ("Ärzte-Ökologie", "Ärzte ##AT##-##AT## Ökologie"),
        ("", ""),
    ],
)
def test_hyphens_are_split_as_perl_splits_them(text: str, split: str) -> None:
    """The right column is what `perl -ple` 5.36 prints: a used byte is not read again, and a letter may be two."""
    assert split_compounds(text) == split


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Er sagte: „Ja, z. B. 3,5 %!“", "Er sagte : „ Ja , z. B. 3,5 % ! “"),
        ('Das "R&D"-Team [A|B] isst\'s.', "Das &quot; R &amp; D &quot; -Team &#91; A &#124; B &#93; isst &apos; s."),
        ("Am 5. Mai kam Dr. Müller... und ging.", "Am 5. Mai kam Dr. Müller ... und ging ."),
        ("Der Spieler trägt die Nummer 10.", "Der Spieler trägt die Nummer 10."),
        ("Ein T-Shirt-Träger mit <Hut>", "Ein T ##AT##-##AT## Shirt ##AT##-##AT## Träger mit &lt; Hut &gt;"),
    ],
)
def test_words_are_those_of_the_tokenizer_of_2017(text: str, tokens: str) -> None:
    """The right column is what Moses' tokenizer.perl of 2017-06 and the script's expression print."""
    assert CompoundSplitBLEU("de")._preprocess_segment(text).split() == tokens.split()


def test_worked_by_hand() -> None:
    """7 tokens each: 6/7, 4/6, 3/5 and 2/4 n-grams match; whole, "rich-text" leaves no 4-gram that does."""
    hypothesis, reference = "the rich-text format is old", "the rich-text format was old"
    precisions = 6 / 7 * 4 / 6 * 3 / 5 * 2 / 4
    assert paper_bleu([hypothesis], [reference]) == pytest.approx(100 * precisions**0.25)
    assert paper_bleu([hypothesis], [f"{reference} now"]) == pytest.approx(100 * precisions**0.25 * math.exp(-1 / 7))
    assert multi_bleu([hypothesis], [reference]) == 0
    # Of two references as close, 6 and 8 words to 7, the shorter one counts: no penalty.
    two = ["the rich-text format was", "the rich-text format was old now"]
    assert paper_bleu([hypothesis], *([each] for each in two)) == pytest.approx(100 * precisions**0.25)


def test_equals_multi_bleu() -> None:
    """Random corpora with empty lines and hyphens, scored against one, two and three sets of references."""
    draw = random.Random(5)

    def line() -> str:
        words = draw.choices(
            ["Haus", "haus", "a-b", "x-y-z", "Ost-West", "und", "3-4", "-"], k=draw.choice((0, 3, 9, 12))
        )
        return " ".join(words)

    def changed(text: str) -> str:
        return " ".join(word for word in text.split() if draw.random() < 0.8)

    for sets in (1, 2, 3) * 5:
        hypotheses = [line() for _ in range(20)]
        references = [[changed(text) if draw.random() < 0.8 else line() for text in hypotheses] for _ in range(sets)]
        split = [[split_compounds(text) for text in lines] for lines in (hypotheses, *references)]
        expected = multi_bleu(*split)
        assert 10 < expected < 99
        assert paper_bleu(hypotheses, *references) == pytest.approx(expected)


def test_nothing_is_smoothed() -> None:
    assert paper_bleu(["a b c x d e f"], ["a b c y d e f"]) == 0
    assert paper_bleu(["", "a b"], ["a b c d", ""]) == 0
    assert paper_bleu(["a b c D"], ["a b c d"]) == 0  # case counts


def test_signature_names_every_choice() -> None:
    metric = CompoundSplitBLEU("fr")
    metric.corpus_score(["a b c d"], [["a b c d"], ["a"]])
    pattern = (
        r"nrefs:2\|case:mixed\|eff:no\|tok:moses-fr\|smooth:none\|split:compound\|sacremoses:[\d.]+\|version:[\d.]+"
    )
    assert re.fullmatch(pattern, str(metric.get_signature()))
    assert re.fullmatch(
        r"#:2\|c:mixed\|e:no\|tok:moses-fr\|s:none\|sp:compound\|sm:.+\|v:.+", metric.get_signature().format(True)
    )
    tokens = CompoundSplitBLEU("fr", tokenized=True)
    tokens.corpus_score(["a b c d"], [["a b c d"]])
    assert "tok:none|smooth:none|split:compound|version:" in str(tokens.get_signature())


def test_a_missing_tokenizer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tokens, and text that Moses cannot tokenise, need none."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match="pip install sacremoses"):
        score(["ein Haus"], [["ein Haus"]], "de")
    assert score(["我喜欢"], [["我喜欢"]], "zh")["bleu_compound_split"] is None
    assert score(["a b c d"], [["a b c d"]], "de", tokenized=True)["bleu_compound_split"]["score"] == pytest.approx(
        100
    )


EVALUATE = """
import json, sys
import evaluate
case = json.load(sys.stdin)
metric = evaluate.load(case["module"])
one, two = case["references"]
results = [
    metric.compute(predictions=case["hypotheses"], references=one),
    metric.compute(predictions=case["hypotheses"], references=[list(both) for both in zip(one, two)]),
    metric.compute(predictions=case["hypotheses"], references=one, target_lang="en", tokenized=True),
]
try:
    metric.compute(predictions=["a", "b"], references=[["a", "b"], ["c"]])
except ValueError as error:
    results.append(str(error))
print(json.dumps(results))
"""


def test_evaluate_loads_the_folder_and_gives_the_same_number(tmp_path: Path) -> None:
    """B50: `evaluate` lists references by sentence, sacrebleu by set; without network, from another directory."""
    pytest.importorskip("evaluate")
    hypotheses = ["Ein Mann, z. B. der U-Boot-Fahrer, liest.", "", "Zwei Hunde laufen durch den Schnee."]
    one = ["Ein Mann, z. B. ein U-Boot-Fahrer, liest.", "Nichts.", "Zwei Hunde rennen durch den Schnee."]
    two = ["Der U-Boot-Fahrer liest.", "", "Zwei Hunde laufen im Schnee."]
    case = {"module": str(MODULE), "hypotheses": hypotheses, "references": [one, two]}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EVALUATE],
        input=json.dumps(case),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    single, double, tokens, error = json.loads(done.stdout)
    assert single == score(hypotheses, [one], "de")["bleu_compound_split"]
    assert double == score(hypotheses, [one, two], "de")["bleu_compound_split"]
    assert tokens == score(hypotheses, [one], "en", tokenized=True)["bleu_compound_split"]
    assert len({single["score"], double["score"], tokens["score"]}) == 3
    assert "same number of references" in error
