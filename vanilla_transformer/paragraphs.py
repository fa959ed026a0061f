"""Splitting paragraphs into sentences, which is what a translation model reads."""

from collections.abc import Callable

from .errors import UsageError


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """A function from a paragraph to its sentences, without the space between them; a blank one is one sentence, "".

    Args:
        language: its code, "en" or "de-AT" for example; it decides which dots end an abbreviation. One that the
            splitter does not know is split by rules common to all.

    Raises:
        UsageError: the splitter is not installed.
    """
    try:
        from sentencex import segment
    except ImportError as error:
        raise UsageError("--split-sentences needs sentencex: pip install 'vanilla-transformer[split]'") from error
    code = language.replace("_", "-").split("-")[0].lower()

    def split(paragraph: str) -> list[str]:
        return [stripped for sentence in segment(code, paragraph) if (stripped := sentence.strip())] or [""]

    return split
