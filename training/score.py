"""Score translations: BLEU, chrF and TER by sacrebleu, and the paper's own BLEU, each with its signature.

python -m training.score HYPOTHESES REFERENCES... --target-lang de
"""

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from training.data import read_lines
from training.errors import UsageError, run_command
from training.files import read_object
from training.languages import check_language
from training.metrics.compound_split_bleu.paper_bleu import CompoundSplitBLEU

LANGUAGE_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
LABELS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "bleu_compound_split": "BLEU, compounds split"}
RESAMPLES = 1000
RUN_HYPOTHESES = ("eval_hypotheses.txt", "test_hypotheses.txt")  # of the model at the top of a run's folder

# What decides a translation beside the model, and what holds where a generation config says nothing of it.
DECODING = {"num_beams": 1, "length_penalty": 1.0, "length_penalty_kind": "power", "max_length_margin": None}
NOT_OF_THE_SEARCH = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "transformers_version")


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_lang: str = "",
    *,
    tokenized: bool = False,
    confidence: bool = False,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Corpus scores, one value for all lines together; empty lines count.

    The confidence interval holds the middle 95 % of the scores of 1000 corpora of as many lines, drawn from these
    lines with replacement (Koehn 2004). The p-value is sacrebleu's: with d the difference between the two systems,
    absolute, on all lines and d_i on corpus i, (1 + the number of i with d_i - mean(d_i) > d) / 1001. It says nothing
    of two systems that score the same on every corpus: there it is 1/1001. sacrebleu's seed, 12345 unless the
    environment's `SACREBLEU_SEED` says otherwise, stands in the signature.

    Args:
        hypotheses: one translation a line.
        references: one list for each set of reference translations, each as long as `hypotheses`.
        target_lang: code of ISO 639, a region or script behind it counts for nothing; Chinese, Japanese and Korean
            need words found first, others take `13a`.
        tokenized: the text is tokens already, with spaces between them: BLEU counts them as they are.
        confidence: add to each score its 95 % interval.
        baseline: the translations of another system, to test the difference with; adds the interval too.

    Returns:
        `{"bleu": {"score", "signature"}, "chrf": ..., "ter": ..., "bleu_compound_split": ..., "settings": {...}}`,
        and in each score, where asked for, `"confidence": {"mean", "half_width", "n"}` and
        `"baseline": {"score", "p_value"}`. `bleu_compound_split` is None where Moses' tokenizer finds no words:
        without a target language, and for those written without spaces.

    Raises:
        UsageError: no lines, unequal numbers of lines, no language code, or a word finder that is not installed.
    """
    if not hypotheses:
        raise UsageError("no hypotheses to score: the file is empty")
    others = [(f"reference {number}", reference) for number, reference in enumerate(references, start=1)]
    if baseline is not None:
        others.append(("the baseline", baseline))
    for name, lines in others:
        if len(lines) != len(hypotheses):
            raise UsageError(
                f"{len(hypotheses)} hypotheses but {len(lines)} lines in {name}: "
                "line n of one must translate line n of the other"
            )
    compound_split = _compound_split_metric(target_lang, tokenized)
    metrics: dict[str, Metric | None] = {
        "bleu": bleu_metric(target_lang, tokenized),
        "chrf": CHRF(),
        "ter": TER(),
        "bleu_compound_split": compound_split,
    }
    scores: dict[str, Any] = {
        name: metric and _measure(metric, hypotheses, references, confidence, baseline)
        for name, metric in metrics.items()
    }
    scores["settings"] = {
        "target_lang": target_lang or None,
        "sentences": len(hypotheses),
        "reference_sets": len(references),
        "tokenized": tokenized,
        "versions": {
            "sacrebleu": version("sacrebleu"),
            "sacremoses": compound_split and compound_split.sacremoses_version,
        },
    }
    return scores


def bleu_metric(target_lang: str = "", tokenized: bool = False) -> BLEU:
    """BLEU with the tokenizer of the language, or of tokens as they are.

    Raises:
        UsageError: there is no such language code, or that tokenizer needs a package that is not installed.
    """
    language = check_language(target_lang)
    tokenizer = "none" if tokenized else LANGUAGE_TOKENIZERS.get(language, "13a")
    try:
        return BLEU(tokenize=tokenizer, force=tokenized)
    except (ImportError, RuntimeError) as error:
        extra = tokenizer.split("-")[0]
        raise UsageError(
            f"BLEU for `{target_lang}` needs another package: pip install 'sacrebleu[{extra}]'"
        ) from error


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], target_lang: str = "", tokenized: bool = False
) -> tuple[float, str]:
    """BLEU of translations against one reference each, and its signature."""
    measured = _measure(bleu_metric(target_lang, tokenized), hypotheses, [references])
    return measured["score"], measured["signature"]


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """chrF of translations against one reference each, and its signature."""
    measured = _measure(CHRF(), hypotheses, [references])
    return measured["score"], measured["signature"]


def decoding_settings(folder: Path) -> dict[str, Any] | None:
    """What the `generation_config.json` of a folder says of the search; `None` without such a file.

    Raises:
        UsageError: the file is damaged.
    """
    settings = read_object(folder / "generation_config.json")
    if settings is None:
        return None
    said = {name: value for name, value in settings.items() if value is not None and name not in NOT_OF_THE_SEARCH}
    return DECODING | said


def averaged_checkpoints(folder: Path) -> list[str] | None:
    """The names of the checkpoints whose average the model in a folder is; `None` without an `averaging.json`.

    Raises:
        UsageError: the file is damaged.
    """
    averaging = read_object(folder / "averaging.json")
    if averaging is not None and not isinstance(averaging.get("checkpoints"), list):
        raise UsageError(f"{folder / 'averaging.json'}: has no list of `checkpoints`; mend or remove it")
    return None if averaging is None else averaging["checkpoints"]


def run_settings(hypotheses_file: str | Path) -> dict[str, Any]:
    """How a training run made its translations: `{"decoding": {...}, "checkpoints_averaged": n}`.

    The first is read from the `generation_config.json` beside the file, the second from the `averaging.json`; None
    stands for a file that is not there. Both are None for translations that no run wrote, whatever lies beside them.

    Raises:
        UsageError: one of the two is not what its name says.
    """
    path = Path(hypotheses_file)
    if path.name not in RUN_HYPOTHESES:
        return {"decoding": None, "checkpoints_averaged": None}
    averaged = averaged_checkpoints(path.parent)
    number = None if averaged is None else len(averaged)
    return {"decoding": decoding_settings(path.parent), "checkpoints_averaged": number}


def _compound_split_metric(target_lang: str, tokenized: bool) -> CompoundSplitBLEU | None:
    language = check_language(target_lang)
    if not tokenized and (not language or language in LANGUAGE_TOKENIZERS):
        return None
    try:
        return CompoundSplitBLEU(language, tokenized)
    except ImportError as error:
        raise UsageError("BLEU with compounds split needs another package: pip install sacremoses") from error


def _measure(
    metric: Metric,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    confidence: bool = False,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    reference_sets = [list(reference) for reference in references]
    if not confidence and baseline is None:
        value = metric.corpus_score(list(hypotheses), reference_sets)
        return {"score": value.score, "signature": str(metric.get_signature())}
    systems: list[tuple[str, Sequence[str]]] = [("hypotheses", list(hypotheses))]
    if baseline is not None:
        systems.insert(0, ("baseline", list(baseline)))
    test = PairedTest(systems, {"metric": metric}, reference_sets, test_type="bs", n_samples=RESAMPLES)
    signatures, results = test()
    [(name, signature)] = signatures.items()
    outcomes: list[Any] = results[name]
    first, last = outcomes[0], outcomes[-1]
    measured: dict[str, Any] = {
        "score": last.score,
        "signature": str(signature),
        "confidence": {"mean": float(last.mean), "half_width": float(last.ci), "n": RESAMPLES},
    }
    if baseline is not None:
        measured["baseline"] = {"score": first.score, "p_value": last.p_value}
    return measured


def _line(label: str, measured: dict[str, Any]) -> str:
    value = f"{measured['score']:.2f}"
    if "confidence" in measured:
        value += f" ± {measured['confidence']['half_width']:.2f}"
    if "baseline" in measured:
        value += f" (baseline {measured['baseline']['score']:.2f}, p = {measured['baseline']['p_value']:.4f})"
    return f"{label} {value}  {measured['signature']}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.score", description=__doc__)
    parser.add_argument("hypotheses", help="translations, one a line, plain or .gz")
    parser.add_argument("references", nargs="+", help="reference translations, one file for each set")
    parser.add_argument(
        "--target-lang", default="", help="language code of the text, for the tokenizers (default: BLEU takes 13a's)"
    )
    parser.add_argument(
        "--tokenized",
        action="store_true",
        help="the files hold tokens with spaces between them: count these (default: the text is as people write it)",
    )
    parser.add_argument(
        "--confidence",
        action="store_true",
        help="add 95 %% intervals, from 1000 bootstrap samples; takes a while (default: the scores alone)",
    )
    parser.add_argument(
        "--baseline",
        metavar="OTHER_HYPOTHESES",
        help="another system's translations: add the intervals and a paired bootstrap test (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines (default: lines)")
    arguments = parser.parse_args()
    scores = score(
        list(read_lines(arguments.hypotheses)),
        [list(read_lines(path)) for path in arguments.references],
        arguments.target_lang,
        tokenized=arguments.tokenized,
        confidence=arguments.confidence,
        baseline=None if arguments.baseline is None else list(read_lines(arguments.baseline)),
    )
    if arguments.json:
        files = {name: getattr(arguments, name) for name in ("hypotheses", "references", "baseline")}
        scores["settings"] |= {"files": files, **run_settings(arguments.hypotheses)}
        print(json.dumps(scores, indent=2))
        return
    for name, label in LABELS.items():
        if scores[name] is not None:
            print(_line(label, scores[name]))


if __name__ == "__main__":
    run_command(main)
