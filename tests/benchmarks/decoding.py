"""Speed and memory of translation, with weights that copy: every side gives the same lines."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.data import read_lines
from training.errors import tell
from vanilla_transformer import translate

from .copying import copying_models, write_ctranslate2
from .measure import Comparison, Row, in_own_process, resident_bytes, take_turns
from .setting import Sizes, load_text, require_text

ROWS = 32  # sentences of a batch in the loop that a user writes
MAX_BATCH_TOKENS = 2048  # of translate() and of CTranslate2
LONGEST = 256  # new tokens, for all
SEARCH: dict[str, Any] = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False}
# transformers' own formula, which Marian and CTranslate2 have too.
OURS: dict[str, Any] = {**SEARCH, "length_penalty_kind": "power", "max_new_tokens": LONGEST}
LONG_SOURCE, WIDE = 200, {"num_beams": 8, "length_penalty": 1.0, "early_stopping": False, "max_new_tokens": 200}


@dataclass(frozen=True)
class Translators:
    """The three models with one tokenizer, and the lines to translate."""

    ours: PreTrainedModel
    marian: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ctranslate2: Any
    lines: list[str]

    def generate(self, model: PreTrainedModel, rows: int = ROWS, **options: Any) -> list[str]:
        """The loop that a user writes: so many lines at a time, in the order of the file."""
        texts: list[str] = []
        for begin in range(0, len(self.lines), rows):
            batch = self.tokenizer(self.lines[begin : begin + rows], padding=True, return_tensors="pt")
            texts += self.tokenizer.batch_decode(model.generate(**batch, **options), skip_special_tokens=True)
        return texts

    def translate(self, dtype: torch.dtype | None = None) -> list[str]:
        return list(
            translate(self.ours, self.tokenizer, self.lines, max_batch_tokens=MAX_BATCH_TOKENS, dtype=dtype, **OURS)
        )

    def by_ctranslate2(self) -> list[str]:
        sources = [self.tokenizer.convert_ids_to_tokens(ids) for ids in self.tokenizer(self.lines)["input_ids"]]
        results = self.ctranslate2.translate_batch(
            sources,
            beam_size=SEARCH["num_beams"],
            length_penalty=SEARCH["length_penalty"],
            max_batch_size=MAX_BATCH_TOKENS,
            batch_type="tokens",
            max_decoding_length=LONGEST,
        )
        tokens = [self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """Seconds for the same lines; then memory, then the latency of one sentence."""
    sizes = replace(sizes, vocab_size=sizes.decoding_vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        translators = load(sizes, Path(folder))
        yield from speed(translators, rounds)
    yield memory(sizes, rounds)
    yield latency(translators, rounds)


def load(sizes: Sizes, folder: Path) -> Translators:
    import ctranslate2

    _, tokenizer = load_text("wmt_sample", sizes)
    ours, marian = copying_models(sizes, tokenizer)
    write_ctranslate2(marian, tokenizer, folder)
    threads = torch.get_num_threads()
    engine = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=threads, compute_type="float32")
    lines = list(read_lines(require_text("wmt_sample") / "newstest.en.gz"))[: sizes.lines]
    return Translators(ours, marian, tokenizer, engine, lines)


def speed(translators: Translators, rounds: int) -> Iterator[Row]:
    works: dict[str, Callable[[], list[str]]] = {
        "Marian": partial(translators.generate, translators.marian, max_new_tokens=LONGEST, **SEARCH),
        "generate": partial(translators.generate, translators.ours, **OURS),
        "translate": translators.translate,
        "CTranslate2": translators.by_ctranslate2,
        "translate, bfloat16": partial(translators.translate, torch.bfloat16),
    }
    expected = works["Marian"]()
    for name, work in works.items():
        same = sum(ours == theirs for ours, theirs in zip(work(), expected, strict=True))
        tell(f"{name}: {same} of {len(expected)} lines are Marian's")
    seconds = take_turns({name: partial(timed, work) for name, work in works.items()}, rounds)
    for ours, peer, bar in (
        ("generate", "Marian", "≥ 2.0"),
        ("translate", "Marian", "≥ 2.5"),
        ("translate", "CTranslate2", "≥ 0.8"),
        ("translate, bfloat16", "Marian", "≥ 4"),
        ("translate, bfloat16", "CTranslate2", "> 1"),
    ):
        what = f"{ours} against {peer} float32, {len(expected)} lines, 4 beams"
        rates = ([len(expected) / second for second in seconds[name]] for name in (ours, peer))
        yield Comparison(*rates).row(what, "{:.1f} lines/s", bar)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def memory(sizes: Sizes, rounds: int) -> Row:
    """Memory that `generate` adds, at 8 beams and sources of 200 tokens, each side in a process of its own."""
    works = {side: partial(in_own_process, peak_of_generate, side, sizes) for side in ("ours", "Marian")}
    peaks = take_turns(works, min(rounds, 1))
    what = f"memory added by generate, 8 beams, {LONG_SOURCE} source tokens, {sizes.wide_rows} sentences"
    return Comparison(*peaks.values()).row(what, "{:.2f} GB", "≤ 0.5")


def peak_of_generate(side: str, sizes: Sizes) -> float:
    _, tokenizer = load_text("wmt_sample", sizes)
    ours, marian = copying_models(sizes, tokenizer)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, len(tokenizer), (sizes.wide_rows, LONG_SOURCE), generator=generator)
    ids[:, -1] = tokenizer.eos_token_id
    options = {**WIDE, "length_penalty_kind": "power"} if side == "ours" else WIDE
    before = resident_bytes()
    (ours if side == "ours" else marian).generate(ids, attention_mask=torch.ones_like(ids), **options)
    return (resident_bytes(peak=True) - before) / 1e9


def latency(translators: Translators, rounds: int) -> Row:
    """Greedy, one sentence at a time: the median time of a sentence."""
    greedy = {"num_beams": 1, "max_new_tokens": LONGEST}
    lines = translators.lines[:8]

    def median(model: PreTrainedModel) -> float:
        seconds = []
        for line in lines:
            batch = translators.tokenizer([line], return_tensors="pt")
            seconds.append(timed(partial(model.generate, **batch, **greedy)))
        return statistics.median(seconds)

    times = take_turns(
        {"ours": partial(median, translators.ours), "Marian": partial(median, translators.marian)}, rounds
    )
    rates = ([1 / second for second in side] for side in times.values())
    return Comparison(*rates).row("greedy, one sentence at a time", "{:.2f} lines/s", "≥ 1")
