"""Translate any number of sentences with a model and its tokenizer."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from .generation_vanilla_transformer import OWN_SETTINGS, GenerationSettings, length_penalty_of
from .pipeline_vanilla_transformer import is_visible

__all__ = ["Hypothesis", "hypotheses", "translate"]

WINDOW = 2000  # sentences that are in memory, and sorted by length, together
MAX_BATCH_TOKENS = 4096
SCORED_TOKENS = 1024  # target tokens, padding counted, of which there are logits at a time


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        text: as generated, line ends included if there are any.
        score: its log-probability over the length penalty, by which beam search ranks; `None` if not asked for.
        ids: its tokens in the target vocabulary, end token included.
    """

    text: str
    score: float | None
    ids: tuple[int, ...]


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
    num_return_sequences: int = 1,
    dtype: torch.dtype | None = None,
    progress: bool = False,
    **generate_options: Any,
) -> Iterator[Any]:
    """Yield one translation for each sentence, in input order; as text is read as it is needed, it may be endless.

    Of each 2,000 sentences those of like length are translated together, so that little of a batch is padding; a
    translation does not depend on which those are. A sentence without a visible character is not given to the model:
    its translation is "". Dropout is off, whatever mode the model is in.

    Args:
        sentences: source texts, one a sentence.
        target_tokenizer: the target's, where it is not the source's.
        max_batch_tokens: rows times longest source of a batch, padding counted; one sentence alone may be longer.
        num_return_sequences: with more than 1, yield lists of that many translations, best first.
        dtype: translate with a copy of the model in this type, `torch.bfloat16` for one. Default: the model as it is.
        progress: show a bar on stderr.
        **generate_options: any setting of `model.generate`, for example `num_beams` or `length_penalty`.

    Raises:
        TypeError: `sentences` is one string.
        ValueError: at the call, for an option that does not exist or has no such value; while translating, for a
            sentence that is longer than learned positions.
    """
    results = hypotheses(
        model,
        tokenizer,
        sentences,
        target_tokenizer=target_tokenizer,
        max_batch_tokens=max_batch_tokens,
        num_return_sequences=num_return_sequences,
        dtype=dtype,
        progress=progress,
        **generate_options,
    )
    if num_return_sequences == 1:
        return (best.text for (best,) in results)
    return ([hypothesis.text for hypothesis in several] for several in results)


def hypotheses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
    num_return_sequences: int = 1,
    dtype: torch.dtype | None = None,
    with_scores: bool = False,
    window: int = WINDOW,
    on_length: Callable[[int], None] | None = None,
    progress: bool = False,
    total: int | None = None,
    **generate_options: Any,
) -> Iterator[list[Hypothesis]]:
    """As `translate`, with what is known of each translation: `num_return_sequences` of them a sentence, best first.

    Those of a blank sentence are "" with score 0 and no tokens.

    Args:
        with_scores: compute them where decoding does not give them anyway.
        window: sentences that are read before the first of them is translated.
        on_length: is told the number of source tokens of each sentence, in order, before it is translated; 0 for a
            blank one. What it raises ends the translating.
        total: sentences that there will be, for the bar. Default: the length of `sentences`, where it has one.
    """
    if isinstance(sentences, str):
        raise TypeError("`sentences` is one string: give a list, or another iterable, of strings")
    counts = {"max_batch_tokens": max_batch_tokens, "num_return_sequences": num_return_sequences, "window": window}
    if generate_options.get("num_beams") is not None:
        counts["num_beams"] = generate_options["num_beams"]
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"`{name}` must be 1 or more, got {value}")
    options = _generate_options(model, num_return_sequences, with_scores, generate_options)
    if total is None and isinstance(sentences, Sized):
        total = len(sentences)

    def work() -> Iterator[list[Hypothesis]]:
        translator = _Translator(
            model if dtype in (None, model.dtype) else copy.deepcopy(model).to(dtype),
            tokenizer,
            target_tokenizer or tokenizer,
            max_batch_tokens,
            num_return_sequences,
            with_scores,
            options,
        )
        source = iter(sentences)
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not progress) as bar:
            while lines := list(islice(source, window)):
                yield from translator.translate_window(lines, on_length, bar.update)

    return work()


def _generate_options(
    model: PreTrainedModel, candidates: int, with_scores: bool, options: dict[str, Any]
) -> dict[str, Any]:
    """The keywords of each call of `generate`; refused here is what it would refuse in the first batch."""
    chosen = GenerationSettings(options, options.get("generation_config"), model.generation_config)
    beams = chosen.get("num_beams") or 1
    if candidates > beams and not chosen.get("do_sample"):
        raise ValueError(f"`num_return_sequences`={candidates} needs as many beams: `num_beams` is {beams}")
    length_penalty_of(chosen)
    if chosen.get("coverage_penalty") and beams == 1:
        raise ValueError("`coverage_penalty` needs beam search: `num_beams` is 1")
    of_generate = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "inputs", "kwargs"}
    arguments = {name: value for name, value in options.items() if name in of_generate}
    settings = {name: value for name, value in options.items() if name not in of_generate}
    settings |= {"num_return_sequences": candidates, "return_dict_in_generate": with_scores}
    given = arguments.pop("generation_config", None)
    config = copy.deepcopy(given or model.generation_config)
    known = {*vars(GenerationConfig()), *vars(config), *OWN_SETTINGS}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(f"`generate` has no setting {', '.join(f'`{name}`' for name in unknown)}")
    config.update(**settings, allow_custom_entries=True)
    return arguments | (settings if given is None else {"generation_config": config})


@dataclass
class _Translator:
    """A model with its tokenizers and the options of one call."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    max_batch_tokens: int
    candidates: int
    with_scores: bool
    options: dict[str, Any]

    def translate_window(
        self, lines: Sequence[str], on_length: Callable[[int], None] | None, on_done: Callable[[int], Any]
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each line, in order, each as soon as those before it are there."""
        sources = self._encode(lines)
        if on_length is not None:
            for i in range(len(lines)):
                on_length(len(sources.get(i, ())))
        blank = Hypothesis("", 0.0 if self.with_scores else None, ())
        results = {i: [blank] * self.candidates for i in range(len(lines)) if i not in sources}
        on_done(len(results))
        place = 0
        for rows in ([], *_batches({i: len(ids) for i, ids in sources.items()}, self.max_batch_tokens)):
            if rows:
                results |= zip(rows, self._translate_batch([sources[i] for i in rows]), strict=True)
                on_done(len(rows))
            while place in results:
                yield results.pop(place)
                place += 1

    def _encode(self, lines: Sequence[str]) -> dict[int, list[int]]:
        """The ids of each line that is not blank, by its index."""
        filled = [i for i, line in enumerate(lines) if is_visible(line)]
        if not filled:
            return {}
        # Not verbose: the tokenizer's own idea of the longest text is not the model's.
        encoded = self.tokenizer([lines[i] for i in filled], verbose=False)["input_ids"]
        return {i: ids for i, ids in zip(filled, encoded, strict=True) if ids}

    def _translate_batch(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        model, longest = self.model, max(map(len, sources))
        padding = model.config.pad_token_id or 0
        ids = torch.tensor([row + [padding] * (longest - len(row)) for row in sources], device=model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in sources], device=model.device)
        with _without_dropout(model):
            output = model.generate(input_ids=ids, attention_mask=mask, **self.options)
            if isinstance(output, Tensor):
                sequences, scores = output, None
            else:
                sequences, scores = output.sequences, output.get("sequences_scores")
            settings = GenerationSettings(self.options, self.options.get("generation_config"), model.generation_config)
            targets = _without_padding(sequences, settings)
            if self.with_scores and scores is None:
                scores = _score(model, ids, mask, sequences, targets, settings)
        texts = self.target_tokenizer.batch_decode(sequences, skip_special_tokens=True)
        found = [
            Hypothesis(text, None if scores is None else float(scores[row]), tuple(target))
            for row, (text, target) in enumerate(zip(texts, targets, strict=True))
        ]
        return [found[i : i + self.candidates] for i in range(0, len(found), self.candidates)]


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


@contextmanager
def _without_dropout(model: PreTrainedModel) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _without_padding(sequences: Tensor, settings: GenerationSettings) -> list[list[int]]:
    """The tokens of each row after the start token, up to the end token or to padding."""
    end = settings.get("eos_token_id")
    ends = {end} if isinstance(end, int) else set(end or ())
    targets = []
    for row in sequences[:, 1:].tolist():
        length = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        while length and row[length - 1] not in ends and row[length - 1] == settings.get("pad_token_id"):
            length -= 1
        targets.append(row[:length])
    return targets


@torch.no_grad()
def _score(
    model: PreTrainedModel,
    ids: Tensor,
    mask: Tensor,
    sequences: Tensor,
    targets: list[list[int]],
    settings: GenerationSettings,
) -> list[float]:
    """What beam search would have given each sequence for a score, by one pass over all its tokens."""
    penalty = length_penalty_of(settings)
    each = len(sequences) // len(ids)
    rows = max(1, SCORED_TOKENS // sequences.shape[1])
    scores: list[float] = []
    for begin in range(0, len(sequences), rows):
        part = slice(begin, begin + rows)
        chosen = torch.arange(len(sequences), device=ids.device)[part] // each
        logits = model(
            input_ids=ids[chosen], attention_mask=mask[chosen], decoder_input_ids=sequences[part, :-1]
        ).logits.float()
        log_p = logits.gather(2, sequences[part, 1:, None])[..., 0] - logits.logsumexp(dim=-1)
        scores += [
            float(row[: len(target)].sum()) / len(target) ** penalty if target else 0.0
            for row, target in zip(log_p, targets[part], strict=True)
        ]
    return scores
