"""Translate any number of sentences with a model and its tokenizer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["translate"]


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    max_batch_tokens: int = 4096,
    num_return_sequences: int = 1,
    progress: bool = False,
    **generate_options: Any,
) -> Iterator[Any]:
    """Yield one translation for each sentence, in input order.

    Sentences of like length are translated together, so that little of a batch is padding; a translation does not
    depend on which those are. A sentence without a visible character is not given to the model: its translation is "".

    Args:
        sentences: source texts, one a sentence.
        target_tokenizer: the target's, where it is not the source's.
        max_batch_tokens: rows times longest source of a batch, padding counted; one sentence alone may be longer.
        num_return_sequences: with more than 1, yield lists of that many translations, best first.
        progress: show a bar on stderr.
        **generate_options: any setting of `model.generate`, for example `num_beams` or `length_penalty`.

    Raises:
        ValueError: `max_batch_tokens` or `num_return_sequences` is less than 1.
    """
    for name, value in (("max_batch_tokens", max_batch_tokens), ("num_return_sequences", num_return_sequences)):
        if value < 1:
            raise ValueError(f"`{name}` must be 1 or more, got {value}")
    return _translate(
        model,
        tokenizer,
        list(sentences),
        target_tokenizer or tokenizer,
        max_batch_tokens,
        progress,
        {"num_return_sequences": num_return_sequences, **generate_options},
    )


def _translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    target_tokenizer: PreTrainedTokenizerBase,
    max_batch_tokens: int,
    progress: bool,
    options: dict[str, Any],
) -> Iterator[Any]:
    candidates = options["num_return_sequences"]
    empty = "" if candidates == 1 else [""] * candidates
    translations: list[Any] = [empty] * len(sentences)
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    sources = dict(zip(filled, tokenizer([sentences[i] for i in filled])["input_ids"], strict=True)) if filled else {}
    with tqdm(total=len(sentences), desc="Translating", unit=" sentences", disable=not progress) as bar:
        bar.update(len(sentences) - len(filled))
        for rows in _batches({i: len(ids) for i, ids in sources.items()}, max_batch_tokens):
            inputs = tokenizer.pad({"input_ids": [sources[i] for i in rows]}, return_tensors="pt").to(model.device)
            output = model.generate(**inputs, **options)
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            texts = target_tokenizer.batch_decode(sequences, skip_special_tokens=True)
            for row, i in enumerate(rows):
                group = texts[row * candidates : (row + 1) * candidates]
                translations[i] = group[0] if candidates == 1 else group
            bar.update(len(rows))
    yield from translations


def _batches(lengths: dict[int, int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of at most `max_batch_tokens`, longest sentences first."""
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
