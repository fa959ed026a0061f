"""The paper's BLEU for `evaluate`: `evaluate.load("training/metrics/compound_split_bleu")`."""

from collections.abc import Sequence

import datasets
import evaluate

from .paper_bleu import CompoundSplitBLEU

DESCRIPTION = "Tokenised BLEU with compounds split, as in `Attention Is All You Need`: Moses' tokens, `x-y` in three."

INPUTS = """
Args:
    predictions: translations, one string a sentence.
    references: their references; a list of strings a sentence where there are several, equally many for each.
    target_lang: the language whose abbreviations Moses' tokenizer knows (default: `de`).
    tokenized: the text is Moses' tokens already (default: False).

Returns:
    score: BLEU over all sentences together, from 0 to 100.
    signature: how it was made.
"""

CITATION = """
@inproceedings{vaswani2017attention,
  title = {Attention Is All You Need},
  author = {Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and
            Gomez, Aidan N. and Kaiser, {\\L}ukasz and Polosukhin, Illia},
  booktitle = {Advances in Neural Information Processing Systems 30},
  year = {2017}
}
"""


class CompoundSplitBleu(evaluate.Metric):
    """`CompoundSplitBLEU` behind the interface of `evaluate`, where references are listed by sentence."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]],
        target_lang: str = "de",
        tokenized: bool = False,
    ) -> dict[str, float | str]:
        by_sentence = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
        counts = sorted({len(own) for own in by_sentence})
        if len(counts) != 1 or counts[0] == 0:
            raise ValueError(f"every sentence needs the same number of references, at least one; found {counts}")
        metric = CompoundSplitBLEU(target_lang, tokenized)
        value = metric.corpus_score(predictions, [list(one_set) for one_set in zip(*by_sentence, strict=True)])
        return {"score": value.score, "signature": str(metric.get_signature())}
