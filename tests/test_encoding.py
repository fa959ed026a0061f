"""Training text as ids: the rules (B41), the cache (B44), and the same ids as a direct call gives."""

import gzip
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import tokenizers
import transformers
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tests.recipes import ROOT
from training.encoding import EncodedPairs, Pair, PairEncoder, Verdict, store_pairs, tokenizer_digest
from training.tokenizer import train_tokenizer

WMT = ROOT.parent / "shared" / "data" / "wmt_sample"
PAIRS: list[Pair] = [
    (f"the cat number {i} sleeps", f"die Katze Nummer {i} schläft" + " tief" * (i % 5)) for i in range(50)
]
# No piece is made of "x" or "q": the tokens of a side are its letters and one more.
RULED: list[Pair] = [
    ("x", "q"),
    ("", "q"),
    ("x", "  "),
    ("\u3000", "q"),
    ("x" * 20, "q" * 20),
    ("x", "q" * 19),
    ("x", "q" * 5),
    ("xx", "q"),
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([side for pair in PAIRS for side in pair], 300)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each batch held that was encoded in this process."""
    seen: list[int] = []
    encode = PairEncoder.__call__

    def counting(self: PairEncoder, batch: dict[str, list[str | None]]) -> dict[str, list[Any]]:
        seen.append(len(batch["source"]))
        return encode(self, batch)

    monkeypatch.setattr(PairEncoder, "__call__", counting)
    return seen


def ids(pairs: EncodedPairs) -> list[dict[str, list[int]]]:
    return [pairs[i] for i in range(len(pairs))]


def direct(pairs: list[Pair], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, list[int]]]:
    return [
        {"input_ids": tokenizer(s)["input_ids"], "labels": tokenizer(text_target=t)["input_ids"]} for s, t in pairs
    ]


@pytest.mark.parametrize("on_disk", [False, True], ids=["list", "data set"])
def test_rules_and_their_counts(cache: Path, tokenizer: PreTrainedTokenizerBase, on_disk: bool) -> None:
    """B41: a pair that breaks a rule goes, and is counted once, for the first."""
    pairs = store_pairs(RULED, "ruled") if on_disk else RULED
    for max_length, max_ratio, kept, counts in [
        (None, None, [0, 4, 5, 6, 7], {"with an empty side": 3}),
        (21, None, [0, 4, 5, 6, 7], {"with an empty side": 3, "longer than 21 tokens": 0}),
        (20, None, [0, 5, 6, 7], {"with an empty side": 3, "longer than 20 tokens": 1}),
        (None, 3.0, [0, 4, 6, 7], {"with an empty side": 3, "with one side over 3 times the other": 1}),
        (
            20,
            2.9,
            [0, 7],
            {"with an empty side": 3, "longer than 20 tokens": 1, "with one side over 2.9 times the other": 2},
        ),
        (1, 1.0, [], {"with an empty side": 3, "longer than 1 tokens": 5, "with one side over 1 times the other": 0}),
    ]:
        encoded = EncodedPairs(pairs, tokenizer, tokenizer, max_length, max_ratio)
        assert encoded.counts() == counts
        assert ids(encoded) == direct([RULED[i] for i in kept], tokenizer)
        assert sum(encoded.verdicts) == len(RULED)
        assert encoded.verdicts[Verdict.USED] == len(encoded)


def test_lengths_and_batches(cache: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = EncodedPairs(store_pairs(RULED, "ruled"), tokenizer, tokenizer, max_length=20)
    source, target = encoded.lengths()
    assert (source.tolist(), target.tolist()) == ([2, 2, 2, 3], [2, 20, 6, 2])
    assert encoded.__getitems__([3, 0]) == [encoded[3], encoded[0]]
    loader: DataLoader[Any] = DataLoader(encoded, batch_sampler=[[1, 0], [2, 3]], collate_fn=list)
    assert list(loader) == [[encoded[1], encoded[0]], [encoded[2], encoded[3]]]
    assert ids(pickle.loads(pickle.dumps(encoded))) == ids(encoded)


@pytest.mark.parametrize("on_disk", [False, True], ids=["list", "data set"])
def test_no_pairs_at_all(cache: Path, tokenizer: PreTrainedTokenizerBase, on_disk: bool) -> None:
    encoded = EncodedPairs(store_pairs([], "none") if on_disk else [], tokenizer, tokenizer, 20)
    assert (len(encoded), encoded.counts()) == (0, {"with an empty side": 0, "longer than 20 tokens": 0})
    assert [len(side) for side in encoded.lengths()] == [0, 0]


def test_missing_text_counts_as_empty(cache: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    text = datasets.Dataset.from_dict({"source": ["a", None, "a"], "target": [None, "b", "b"]})
    encoded = EncodedPairs(text, tokenizer, tokenizer)
    assert encoded.verdicts == [1, 2, 0, 0]


def test_second_start_reads_the_cache(cache: Path, tokenizer: PreTrainedTokenizerBase, calls: list[int]) -> None:
    """B44: also with a tokenizer that was used, or saved and loaded, in between."""
    first = EncodedPairs(store_pairs(PAIRS, "key"), tokenizer, tokenizer, 256)
    assert calls == [50]
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=2)
    tokenizer.save_pretrained(cache / "tokenizer")
    again = AutoTokenizer.from_pretrained(cache / "tokenizer")
    for other in (tokenizer, again):
        second = EncodedPairs(store_pairs(iter(()), "key"), other, other, 256)
        assert ids(second) == ids(first) == direct(PAIRS, again)
    assert calls == [50]
    files = sorted(path.name for path in cache.glob("parallel_text/*"))
    assert len(files) == 2
    assert files[1] == "key-1.arrow"


def test_another_tokenizer_never_sees_old_ids(
    cache: Path, tokenizer: PreTrainedTokenizerBase, calls: list[int]
) -> None:
    """B44: other merges of the same number, another end of the sentence, another treatment of markers."""
    text = [side for pair in PAIRS for side in pair]
    others = [train_tokenizer([line[::-1] for line in text], 300)]
    for change in ("post-processor", "split_special_tokens"):
        others.append(train_tokenizer(text, 300))
        if change == "post-processor":
            processor = others[-1].backend_tokenizer.post_processor
            others[-1].backend_tokenizer.post_processor = type(processor)(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
            )
        else:
            others[-1].split_special_tokens = False
    pairs = [*PAIRS, ("</s>", "a </s>")]
    assert len({len(other) for other in (tokenizer, *others)}) == 1
    seen = [EncodedPairs(store_pairs(pairs, "key"), tokenizer, tokenizer)]
    for other in others:
        seen.append(EncodedPairs(store_pairs(pairs, "key"), other, other))
        assert ids(seen[-1]) == direct(pairs, other)
    mixed = EncodedPairs(store_pairs(pairs, "key"), tokenizer, others[0])
    assert [row["input_ids"] for row in ids(mixed)] == [row["input_ids"] for row in ids(seen[0])]
    assert [row["labels"] for row in ids(mixed)] == [row["labels"] for row in ids(seen[1])]
    assert calls == [51] * 5
    assert all(ids(one) != ids(seen[0]) for one in seen[1:])


def test_other_rules_text_and_versions_are_other_caches(
    cache: Path, tokenizer: PreTrainedTokenizerBase, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"max_length": 10},
        {"max_length": 11},
        {"max_ratio": 2.0},
        {"max_ratio": 1.5},
    ]
    for options in settings * 2:
        EncodedPairs(store_pairs(PAIRS, "key"), tokenizer, tokenizer, **options)
    assert len(calls) == 5
    EncodedPairs(store_pairs(PAIRS[1:], "other"), tokenizer, tokenizer)
    assert calls[5:] == [49]
    for module in (datasets, tokenizers, transformers):
        monkeypatch.setattr(module, "__version__", "0.0")
        EncodedPairs(store_pairs(PAIRS, "key"), tokenizer, tokenizer)
    assert len(calls) == 9


SCRIPT = """
import sys
from pathlib import Path
from training.data import DataOptions, load_corpus
from training.encoding import EncodedPairs, PairEncoder
from training.tokenizer import train_tokenizer
if sys.argv[2] == "read":
    PairEncoder.__call__ = None
corpus = load_corpus(DataOptions(dataset=sys.argv[1]), seed=0)
tokenizer = train_tokenizer(corpus.texts("source", "target"), 300)
print(len(EncodedPairs(corpus.train, tokenizer, tokenizer)))
"""


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_new_process_reads_the_cache_of_a_folder(tmp_path: Path, ending: str) -> None:
    """B44: text that is written over is read and encoded anew."""

    def start(mode: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "text"), mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else done.stderr

    (tmp_path / "text").mkdir()
    for count in (3, 4):
        columns = {"en": [source for source, _ in PAIRS[:count]], "de": [target for _, target in PAIRS[:count]]}
        text = datasets.Dataset.from_dict(columns)
        getattr(text, f"to_{ending}")(tmp_path / "text" / f"train.{ending}")
        assert start("encode") == str(count)
        assert start("read") == str(count)


def test_processes_give_the_same_ids_in_the_same_order(cache: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    text = store_pairs(PAIRS * 3, "key")
    several = EncodedPairs(text, tokenizer, tokenizer, 20, num_workers=3)
    assert len(list(cache.glob("parallel_text/cache-*_of_00003.arrow"))) == 3
    assert ids(several) == direct(PAIRS * 3, tokenizer)
    assert [side.tolist() for side in several.lengths()] == [
        [len(row[name]) for row in ids(several)] for name in ("input_ids", "labels")
    ]


class OwnWay(PreTrainedTokenizerFast):
    """A tokenizer that encodes a target otherwise than a source."""

    def _switch_to_target_mode(self) -> None:
        self.backend_tokenizer.post_processor = None

    def _switch_to_input_mode(self) -> None:
        self.backend_tokenizer.post_processor = self.processor


def test_a_tokenizer_with_a_target_mode_is_called(tokenizer: PreTrainedTokenizerFast) -> None:
    own = OwnWay(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>")
    own.processor = tokenizer.backend_tokenizer.post_processor
    encoded = ids(EncodedPairs([("a", "b")], own, own))
    assert encoded == [
        {"input_ids": [*tokenizer.convert_tokens_to_ids(["a"]), 2], "labels": tokenizer.convert_tokens_to_ids(["b"])}
    ]
    assert tokenizer_digest(own) != tokenizer_digest(tokenizer)


@pytest.mark.skipif(not WMT.is_dir(), reason=f"no WMT text in {WMT}")
@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece", "unigram"])
def test_ids_are_those_of_direct_calls(cache: Path, algorithm: Any) -> None:
    sides = [
        gzip.decompress((WMT / f"train.{lang}.gz").read_bytes()).decode().split("\n")[:600] for lang in ("en", "de")
    ]
    tokenizer = train_tokenizer([*sides[0], *sides[1]], 2000, algorithm)
    pairs = list(zip(*sides, strict=True))
    encoded = EncodedPairs(store_pairs(pairs, "wmt"), tokenizer, tokenizer, 100)
    expected = [
        row
        for row in direct(pairs, tokenizer)
        if min(map(len, row.values())) > 1 and max(map(len, row.values())) <= 100
    ]
    assert ids(encoded) == expected
    assert sum(encoded.verdicts) == 600
    assert encoded.verdicts[Verdict.TOO_LONG] > 0
    assert np.array_equal(encoded.lengths()[0], [len(row["input_ids"]) for row in expected])
