"""BLEU as the paper's authors took it: tokenised, compounds split, counted by multi-bleu.perl.

tensor2tensor's `get_ende_bleu.sh` (2017-06-29) does the following, to a reference of which step 1 was
done before and which is tokenised here:

1. Moses' `tokenizer.perl -l de`, whose result has `&`, `|`, `<`, `>`, `'`, `"`, `[` and `]` written as XML entities;
2. `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`, "rich-text format" -> "rich ##AT##-##AT## text format";
3. Moses' `multi-bleu.perl`, case kept.

A hyphenated word so counts as three tokens, of which the middle one matches whenever the reference has any such word
there. On newstest2014 published numbers of this kind are 0.7 to 1.5 above sacrebleu's for the same translations: never
compare one kind with the other.

The tensor2tensor team's copy of the reference of newstest2014 had its typographic quotes normalised as well
(tensor2tensor issue 317); that is a matter of the file, and nothing here does it.

This file needs nothing else of this project, so that its folder is a module that `evaluate` can load.
"""

import re
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.bleu import BLEU, BLEUSignature

# The script's expression reads bytes, and a byte once used as $2 is no $1 of the next match: in "a-b-c" the second
# hyphen stays, in "a-ä-c", where "ä" is two bytes, both are split.
HYPHEN = re.compile(rb"(\S)-(\S)")


def split_compounds(tokens: str) -> str:
    """`x-y` -> `x ##AT##-##AT## y` wherever a hyphen stands between characters that are no white space."""
    return HYPHEN.sub(rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()


class CompoundSplitSignature(BLEUSignature):
    """sacrebleu's signature of BLEU; it says in addition that compounds were split, and by whose tokenizer."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self._abbr.update({"split": "sp", "sacremoses": "sm"})
        self.info.update({"split": "compound", "sacremoses": args["sacremoses_version"]})


class CompoundSplitBLEU(BLEU):
    """The paper's BLEU as a metric of sacrebleu, so that its corpus score, bootstrap and paired test apply.

    With c the length of all translations, r the sum over lines of the reference length closest to the translation's
    (the shorter of two equally close) and p_n the clipped precision of n-grams over all lines together:

        BLEU = 100 · min(1, exp(1 - r/c)) · (p_1 · p_2 · p_3 · p_4)^(1/4)

    No smoothing: without one matching 4-gram the score is 0.

    The tokenizer is sacremoses', a port of the `tokenizer.perl` of 2017. Since November 2018 Moses' own separates
    every full stop at a line's end; this one, as then, keeps it on a number or an abbreviation ("Nummer 10.").

    Args:
        target_lang: the language whose abbreviations the tokenizer knows; one unknown to Moses is taken as English.
        tokenized: the text is Moses' tokens already, with a space between two of them; only compounds are split.

    Raises:
        ImportError: sacremoses is not installed, and the text is not tokenised.
    """

    _SIGNATURE_TYPE = CompoundSplitSignature

    def __init__(self, target_lang: str = "de", tokenized: bool = False) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True)
        self.sacremoses_version: str | None = None
        if not tokenized:
            from sacremoses import MosesTokenizer  # files of tokens, and training, do without it

            self._moses = MosesTokenizer(target_lang)
            self.tokenizer_signature = f"moses-{target_lang}"
            self.sacremoses_version = version("sacremoses")

    def _preprocess_segment(self, sent: str) -> str:
        if self.sacremoses_version is not None:
            sent = self._moses.tokenize(sent, return_str=True, escape=True)
        return split_compounds(sent)
