"""A parallel corpus that needs no download: English with German or French, out of sentence frames.

The sentences are real, everyday ones. Their dates, times, numbers, prices, quantities and names of countries and
languages are those of CLDR (package `babel`) and `num2words`, and the frames around them put both languages' grammar
to work: agreement, cases, word order, elision. CLDR's no-break spaces (U+00A0, U+202F) are written as plain spaces
and its typographic apostrophe (U+2019) as a plain one.
"""

import random
from collections.abc import Sequence

from training import builtin_frames_de, builtin_frames_fr, builtin_words_de, builtin_words_fr
from training.builtin_cldr import cldr_slots
from training.builtin_frames import Frame, Pair, build_frame
from training.builtin_phrases import phrase_slots

__all__ = ["LANGUAGE_PAIRS", "Pair", "builtin_corpus", "corpus_frames"]

LANGUAGE_PAIRS = (("en", "de"), ("en", "fr"))


def builtin_corpus(
    source_lang: str = "en",
    target_lang: str = "de",
    *,
    seed: int = 0,
    train_size: int = 20_000,
    held_out_size: int = 500,
) -> dict[str, list[Pair]]:
    """Distinct sentence pairs for training, and others to validate and test on.

    Every sentence has one translation only, in both directions. So no sentence of a split occurs in another, on
    neither side. All frames give equally many pairs, as far as the small ones can.

    Args:
        source_lang: Language of the first sentence of a pair. Default "en".
        target_lang: Language of the second one, default "de". A pair of languages, and either of its directions,
            is one of `LANGUAGE_PAIRS`; both directions have the same sentences in the same order.
        seed: Of the choice and the order of the pairs. Default 0. The same arguments and versions of the packages
            give the same corpus.
        train_size: Number of pairs in "train", at least 1. Default 20,000.
        held_out_size: Number of pairs in "validation", and again in "test", at least 1. Default 500.

    Returns:
        The lists of (source, target) pairs under "train", "validation" and "test".

    Raises:
        ValueError: The languages are none of those above, or a size is below 1 or more than the frames can give.
    """
    reverse = (target_lang, source_lang) in LANGUAGE_PAIRS
    if not reverse and (source_lang, target_lang) not in LANGUAGE_PAIRS:
        known = ", ".join(f"{one}-{two}, {two}-{one}" for one, two in LANGUAGE_PAIRS)
        raise ValueError(f"no built-in corpus for {source_lang}-{target_lang}: there are {known}")
    if min(train_size, held_out_size) < 1:
        raise ValueError(f"train_size and held_out_size must be at least 1, not {train_size} and {held_out_size}")
    frames = corpus_frames(source_lang if reverse else target_lang)
    total = train_size + 2 * held_out_size
    available = sum(frame.size for frame in frames)
    if total > available:
        raise ValueError(
            f"train_size + 2 * held_out_size is {total:,}, but {source_lang}-{target_lang} has {available:,} pairs"
        )

    rng = random.Random(seed)
    pairs = [
        frame.pair(index)
        for frame, quota in zip(frames, _quotas([frame.size for frame in frames], total), strict=True)
        for index in rng.sample(range(frame.size), quota)
    ]
    rng.shuffle(pairs)
    if reverse:
        pairs = [(target, source) for source, target in pairs]
    return {
        "train": pairs[2 * held_out_size :],
        "validation": pairs[:held_out_size],
        "test": pairs[held_out_size : 2 * held_out_size],
    }


def corpus_frames(lang: str) -> list[Frame]:
    """All frames between English and `lang`, "de" or "fr"."""
    templates = {"de": builtin_frames_de.TEMPLATES, "fr": builtin_frames_fr.TEMPLATES}[lang]
    words = {"de": builtin_words_de.word_slots, "fr": builtin_words_fr.word_slots}[lang]
    slots = cldr_slots(lang) | phrase_slots() | words()
    return [build_frame(english, foreign, slots) for english, foreign in templates]


def _quotas(sizes: Sequence[int], total: int) -> list[int]:
    """How many of `total` pairs to draw from frames of these sizes: equally many, or all where that is fewer."""
    quotas = [0] * len(sizes)
    frames_left = len(sizes)
    # The smallest come first, so that the larger ones share what those cannot give.
    for index in sorted(range(len(sizes)), key=lambda position: sizes[position]):
        quotas[index] = min(sizes[index], total // frames_left)
        total -= quotas[index]
        frames_left -= 1
    return quotas
