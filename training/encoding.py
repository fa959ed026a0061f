"""Parallel text as Arrow tables on disk: its two columns, and the ids they become."""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import tokenizers
import transformers
from datasets.arrow_writer import ArrowWriter
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.errors import UsageError

Pair = tuple[str, str]

CACHE_FORMAT = 1  # part of every cache's name: raise it when a change of the code gives other lines or other ids
TEXT = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})
IDS = datasets.List(datasets.Value("int32"))
ENCODED = datasets.Features({"input_ids": IDS, "labels": IDS, "verdict": datasets.Value("int8")})


def store_pairs(pairs: Iterable[Pair], key: str) -> datasets.Dataset:
    """The pairs as a memory-mapped data set with the columns `source` and `target`, kept in the cache of `datasets`.

    They are read only where the cache does not hold them yet under `key`: other text must have another.

    Raises:
        UsageError: the cache cannot be written.
    """
    path = Path(datasets.config.HF_DATASETS_CACHE) / "parallel_text" / f"{key}-{CACHE_FORMAT}.arrow"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                unfinished = Path(folder) / path.name
                with ArrowWriter(path=str(unfinished), features=TEXT) as writer:
                    for source, target in pairs:
                        writer.write({"source": source, "target": target})
                    writer.finalize()
                unfinished.replace(path)
        except OSError as error:
            raise UsageError(
                f"{path.parent}: cannot be written ({error}): set HF_DATASETS_CACHE to another"
            ) from error
    return datasets.Dataset.from_file(str(path))


class Verdict(IntEnum):
    """What became of a pair: the first rule that it breaks."""

    USED = 0
    EMPTY = 1
    TOO_LONG = 2
    OVER_RATIO = 3


@dataclass(frozen=True)
class PairEncoder:
    """Encodes batches of pairs by the rules of `EncodedPairs`; a pair that is left out has no ids."""

    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    max_length: int | None
    max_ratio: float | None

    def __call__(self, batch: dict[str, list[str | None]]) -> dict[str, list[Any]]:
        pairs = list(zip(batch["source"], batch["target"], strict=True))
        filled = [(row, s, t) for row, (s, t) in enumerate(pairs) if s and t and s.strip() and t.strip()]
        input_ids: list[list[int]] = [[] for _ in pairs]
        labels: list[list[int]] = [[] for _ in pairs]
        verdicts = [Verdict.EMPTY] * len(pairs)
        sources = encode_texts(self.tokenizer, [source for _, source, _ in filled])
        targets = encode_texts(self.target_tokenizer, [target for _, _, target in filled], target=True)
        for (row, _, _), source_ids, target_ids in zip(filled, sources, targets, strict=True):
            verdicts[row] = self.verdict(len(source_ids), len(target_ids))
            if verdicts[row] is Verdict.USED:
                input_ids[row], labels[row] = source_ids, target_ids
        return {"input_ids": input_ids, "labels": labels, "verdict": [int(verdict) for verdict in verdicts]}

    def verdict(self, source_length: int, target_length: int) -> Verdict:
        """The verdict on a pair with text on both sides, of these many tokens."""
        shorter, longer = sorted((source_length, target_length))
        if self.max_length is not None and longer > self.max_length:
            return Verdict.TOO_LONG
        if self.max_ratio is not None and longer > self.max_ratio * shorter:
            return Verdict.OVER_RATIO
        return Verdict.USED

    def reasons(self) -> dict[Verdict, str]:
        """What is wrong with a pair of a verdict, in words; rules that were not set are not named."""
        reasons = {Verdict.EMPTY: "with an empty side"}
        if self.max_length is not None:
            reasons[Verdict.TOO_LONG] = f"longer than {self.max_length} tokens"
        if self.max_ratio is not None:
            reasons[Verdict.OVER_RATIO] = f"with one side over {self.max_ratio:g} times the other"
        return reasons

    def fingerprint(self, text: datasets.Dataset) -> str:
        """Names the result for `text`: other text, tokenizers, rules or versions of the libraries, another name."""
        digests = tokenizer_digest(self.tokenizer), tokenizer_digest(self.target_tokenizer)
        versions = CACHE_FORMAT, datasets.__version__, tokenizers.__version__, transformers.__version__
        parts = text._fingerprint, digests, self.max_length, self.max_ratio, versions
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: list[str], target: bool = False) -> Iterable[list[int]]:
    """The ids that calling the tokenizer gives, without what else a call computes."""
    if not texts:
        return []
    if type(tokenizer) is not PreTrainedTokenizerFast:  # a subclass may encode in its own way, a target in another
        return tokenizer(**{"text_target" if target else "text": texts}, verbose=False)["input_ids"]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return [encoding.ids for encoding in backend.encode_batch_fast(texts)]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what decides the ids: the same after saving and loading, and whatever the last call truncated to."""
    if type(tokenizer) is PreTrainedTokenizerFast:
        settings = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
        return hashlib.sha256(json.dumps([settings, tokenizer.split_special_tokens]).encode()).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())]
    return hashlib.sha256(repr(files).encode()).hexdigest()


class EncodedPairs(Dataset[dict[str, list[int]]]):
    """Pairs as ids, `input_ids` and `labels`, both ending in the end token; those that break a rule are left out.

    A data set is encoded once for its text, tokenizers and rules, into the cache of `datasets`; a list, in memory.

    Args:
        pairs: a data set with the columns `source` and `target`, or a list.
        tokenizer, target_tokenizer: the source's and the target's.
        max_length: most tokens of either side, end token counted. Default: no rule.
        max_ratio: most tokens of one side for each of the other, end tokens counted. Default: no rule.
        num_workers: processes that encode a data set. Default 1, which uses the tokenizer's own threads.

    Attributes:
        verdicts: how many pairs met each `Verdict`.
    """

    def __init__(
        self,
        pairs: Sequence[Pair] | datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        max_ratio: float | None = None,
        num_workers: int = 1,
    ) -> None:
        self.encoder = encoder = PairEncoder(tokenizer, target_tokenizer, max_length, max_ratio)
        if isinstance(pairs, datasets.Dataset) and len(pairs) > 0:
            encoded = pairs.map(
                encoder,
                batched=True,
                remove_columns=pairs.column_names,
                features=ENCODED,
                num_proc=num_workers if num_workers > 1 else None,
                new_fingerprint=encoder.fingerprint(pairs),
                desc="Tokenising",
            )
        else:
            batch = {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}
            encoded = datasets.Dataset.from_dict(encoder(batch), features=ENCODED)
        verdicts = encoded.data.column("verdict").to_numpy()
        self.verdicts: list[int] = np.bincount(verdicts, minlength=len(Verdict)).tolist()
        self.rows = np.flatnonzero(verdicts == Verdict.USED)
        self.ids = encoded.select_columns(["input_ids", "labels"])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.ids[int(self.rows[index])]

    def __getitems__(self, indices: list[int]) -> list[dict[str, list[int]]]:
        """Several at once, as a data loader asks for them: several times faster than one by one."""
        return self.ids.__getitems__(self.rows[indices].tolist())

    def lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens of each source and of each target, end token counted."""
        # Arrow keeps where each list begins, so the ids themselves are not read.
        columns = (self.ids.data.column(name).chunks for name in ("input_ids", "labels"))
        source, target = (np.concatenate([part.value_lengths() for part in column]) for column in columns)
        return source[self.rows], target[self.rows]

    def counts(self) -> dict[str, int]:
        """How many pairs each rule left out, by what was wrong with them; rules that were not set are not named."""
        return {reason: self.verdicts[verdict] for verdict, reason in self.encoder.reasons().items()}
