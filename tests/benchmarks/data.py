"""Speed of what comes before training: text to ids, and the plan of an epoch of WMT's size."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from training.batching import TokenBatchSampler
from training.encoding import EncodedPairs, Pair, store_pairs

from .measure import Comparison, Row, in_own_process, resident_bytes, take_turns
from .setting import Sizes, load_text

CORPORA = ("multi30k", "wmt_sample")
MAX_LENGTH = 256
CORES = 2
PLANNED_MAX_BATCH_TOKENS = 3125  # an eighth of the paper's 25,000, for eight GPUs
SAMPLE_MAX_BATCH_TOKENS = 4096


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """Encoding against a stock `datasets.map` of the tokenizer; planning by itself."""
    for corpus in CORPORA:
        compared = in_own_process(encoding, corpus, sizes, rounds)
        yield compared.row(f"encoding {corpus}, {CORES} processes, pairs a second", "{:,.0f}", "ours ≥ 20,000")
    planned = [in_own_process(planning, sizes.planned_pairs) for _ in range(rounds)]
    seconds, gigabytes, real = (statistics.median(side) for side in zip(*planned, strict=True))
    work = f"planning and first epoch, {sizes.planned_pairs:,} pairs, {PLANNED_MAX_BATCH_TOKENS:,} tokens a batch"
    yield Row(f"{work}: time", f"{seconds:.1f} s", bar="ours ≤ 10 s")
    yield Row(f"{work}: memory", f"{gigabytes:.2f} GB", bar="ours ≤ 1 GB")
    yield Row(f"{work}: positions that hold tokens", f"{real:.1%}", bar="ours ≥ 97 %")
    pairs, tokenizer = load_text("wmt_sample", sizes)
    lengths = EncodedPairs(pairs, tokenizer, tokenizer, MAX_LENGTH).lengths()
    real = 1 - TokenBatchSampler(*lengths, SAMPLE_MAX_BATCH_TOKENS).padding_share()
    work = f"{len(pairs):,} pairs of wmt_sample, {SAMPLE_MAX_BATCH_TOKENS:,} tokens a batch"
    yield Row(f"{work}: positions that hold tokens", f"{real:.1%}", bar="ours ≥ 97 %")


def encoding(corpus: str, sizes: Sizes, rounds: int) -> Comparison:
    """Pairs a second of ours and of the stock way, each in as many processes as there are cores.

    The corpus is gone through until the pairs are as many as make the start of the processes small, as in a real one.
    That favours nothing: the tokenizer keeps the words that it meets first, and no others.
    """
    datasets.disable_progress_bars()
    pairs, tokenizer = load_text(corpus, sizes)
    pairs = list(islice(cycle(pairs), sizes.encoded_pairs))
    works = {f"{name}, {corpus}": partial(_speed, name, pairs, tokenizer) for name in ("ours", "stock")}
    return Comparison(*take_turns(works, rounds).values())


def _speed(name: str, pairs: list[Pair], tokenizer: PreTrainedTokenizerBase) -> float:
    """Pairs a second from text on disk to ids on disk, in an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        datasets.config.HF_DATASETS_CACHE = Path(folder)
        text = store_pairs(pairs, "text")
        start = time.perf_counter()
        if name == "ours":
            EncodedPairs(text, tokenizer, tokenizer, max_length=MAX_LENGTH, num_workers=CORES)
        else:
            text.map(partial(_tokenize, tokenizer), batched=True, remove_columns=text.column_names, num_proc=CORES)
        return len(pairs) / (time.perf_counter() - start)


def _tokenize(tokenizer: PreTrainedTokenizerBase, batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    return tokenizer(batch["source"], text_target=batch["target"], max_length=MAX_LENGTH, truncation=True)


def planning(pairs: int) -> tuple[float, float, float]:
    """Seconds and gigabytes of making the plan and going through its first epoch; its share of real positions.

    The logarithms of the lengths and of the sides' ratio have the means and deviations of wmt_sample's.
    """
    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(3.36, 0.52, pairs), 2, MAX_LENGTH).astype(np.int32)
    target = np.clip(source * rng.lognormal(0.08, 0.25, pairs), 2, MAX_LENGTH).astype(np.int32)
    before = resident_bytes()
    start = time.perf_counter()
    sampler = TokenBatchSampler(source, target, PLANNED_MAX_BATCH_TOKENS)
    planned = sum(len(batch) for batch in sampler)
    seconds = time.perf_counter() - start
    gigabytes = (resident_bytes(peak=True) - before) / 1e9
    assert planned == pairs
    return seconds, gigabytes, 1 - sampler.padding_share()
