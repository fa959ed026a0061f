"""Codes of languages, as people write them."""

import re

from babel.core import get_global

from training.errors import UsageError


def language_part(code: str) -> str | None:
    """The language of a code of ISO 639: `zh` for zh-CN, zh_Hans, ZH and zho; `None` where it is no such code."""
    found = re.match(r"[a-z]{2,3}(?![^-_])", code.lower())
    if found is None:
        return None
    # Of two codes for one language the one of two letters is what tokenizers and the Hub know.
    aliases = get_global("language_aliases") if len(found[0]) == 3 else {}
    return str(aliases.get(found[0], found[0])).partition("_")[0]


def check_language(code: str) -> str:
    """The language of a code of ISO 639, for a tokenizer; "" of none.

    Raises:
        UsageError: it is no such code.
    """
    language = language_part(code) if code else ""
    if language is None:
        raise UsageError(f"language `{code}`: no code of ISO 639; write `de` for German, `zh` or `zh-CN` for Chinese")
    return language
