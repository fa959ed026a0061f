"""Score translations: BLEU, chrF and TER by sacrebleu, each with the signature that says how it was made.

python -m training.score HYPOTHESES REFERENCES... --target-lang de
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from training.data import read_lines
from training.errors import UsageError, run_command

LANGUAGE_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], target_lang: str = "") -> dict[str, Any]:
    """Corpus scores of detokenised text, one value for all lines together; empty lines count.

    Args:
        hypotheses: one translation a line.
        references: one list for each set of reference translations, each as long as `hypotheses`.
        target_lang: language code; Chinese, Japanese and Korean need words found first, others take `13a`.

    Returns:
        `{"bleu": {"score", "signature"}, "chrf": ..., "ter": ..., "settings": {...}}`.

    Raises:
        UsageError: no lines, unequal numbers of lines, or a word finder that is not installed.
    """
    if not hypotheses:
        raise UsageError("no hypotheses to score: the file is empty")
    for number, reference in enumerate(references, start=1):
        if len(reference) != len(hypotheses):
            raise UsageError(
                f"{len(hypotheses)} hypotheses but {len(reference)} lines in reference {number}: "
                "line n of one must translate line n of the other"
            )
    metrics = {"bleu": bleu_metric(target_lang), "chrf": CHRF(), "ter": TER()}
    scores: dict[str, Any] = {name: _measure(metric, hypotheses, references) for name, metric in metrics.items()}
    scores["settings"] = {
        "target_lang": target_lang or None,
        "sentences": len(hypotheses),
        "reference_sets": len(references),
    }
    return scores


def bleu_metric(target_lang: str = "") -> BLEU:
    """BLEU with the tokenizer of the language.

    Raises:
        UsageError: that tokenizer needs a package that is not installed.
    """
    tokenizer = LANGUAGE_TOKENIZERS.get(target_lang, "13a")
    try:
        return BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError) as error:
        extra = tokenizer.split("-")[0]
        raise UsageError(
            f"BLEU for `{target_lang}` needs another package: pip install 'sacrebleu[{extra}]'"
        ) from error


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], target_lang: str = "") -> tuple[float, str]:
    """BLEU of detokenised translations against one reference each, and its signature."""
    measured = _measure(bleu_metric(target_lang), hypotheses, [references])
    return measured["score"], measured["signature"]


def _measure(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    value = metric.corpus_score(list(hypotheses), [list(reference) for reference in references])
    return {"score": value.score, "signature": str(metric.get_signature())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.score", description=__doc__)
    parser.add_argument("hypotheses", help="translations, one a line, plain or .gz")
    parser.add_argument("references", nargs="+", help="reference translations, one file for each set")
    parser.add_argument(
        "--target-lang", default="", help="language of the text, for BLEU's tokenizer (default: 13a's)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines (default: lines)")
    arguments = parser.parse_args()
    hypotheses = list(read_lines(arguments.hypotheses))
    references = [list(read_lines(path)) for path in arguments.references]
    scores = score(hypotheses, references, arguments.target_lang)
    if arguments.json:
        print(json.dumps(scores, indent=2))
        return
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF"), ("ter", "TER")):
        print(f"{label} {scores[name]['score']:.2f}  {scores[name]['signature']}")


if __name__ == "__main__":
    run_command(main)
