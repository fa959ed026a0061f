"""Parallel text: reading it, pairing it, turning it into ids."""

import glob
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from training.builtin import builtin_corpus
from training.errors import UsageError

Pair = tuple[str, str]


@dataclass
class DataOptions:
    """Where the text is and how it becomes ids."""

    dataset: str | None = field(
        default=None, metadata={"help": "`builtin`: the corpus made without a download. Otherwise give text files"}
    )
    train_source: list[str] = field(
        default_factory=list, metadata={"help": "source text files, plain or .gz, a sentence a line; patterns allowed"}
    )
    train_target: list[str] = field(default_factory=list, metadata={"help": "their translations, file for file"})
    validation_source: list[str] = field(default_factory=list, metadata={"help": "held-out source text"})
    validation_target: list[str] = field(default_factory=list, metadata={"help": "its translation"})
    test_source: list[str] = field(default_factory=list, metadata={"help": "source text translated at the end"})
    test_target: list[str] = field(default_factory=list, metadata={"help": "its translation, to score against"})
    source_lang: str = field(default="en", metadata={"help": "language code of the source"})
    target_lang: str = field(default="de", metadata={"help": "language code of the target"})
    tokenizer_algorithm: str = field(default="bpe", metadata={"help": "bpe, wordpiece or unigram"})
    vocab_size: int = field(default=37000, metadata={"help": "entries of the vocabulary that is trained, at most"})
    joint_vocabulary: bool = field(
        default=True,
        metadata={"help": "one vocabulary for both languages; false: one each (share no embeddings then)"},
    )
    max_length: int = field(
        default=256, metadata={"help": "longest side of a training pair in tokens, end token counted; longer ones go"}
    )


@dataclass
class Corpus:
    """The pairs of a run; `validation` and `test` may be empty."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a UTF-8 text file, plain or .gz. A line ends at LF or CRLF and nowhere else.

    U+2028, U+0085, form feeds and lone carriage returns are text; a byte-order mark is not.

    Raises:
        UsageError: the file cannot be read, or a line is not UTF-8.
    """
    number = 0
    try:
        with gzip.open(path) if str(path).endswith(".gz") else open(path, "rb") as file:
            # Binary files are split at LF alone, whatever else a line holds.
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
                yield line.removesuffix("\r") if raw.endswith(b"\n") else line
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: line {number} is not UTF-8 ({error.reason}): convert the file") from error
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def load_pairs(source_files: Sequence[str], target_files: Sequence[str]) -> list[Pair]:
    """Pair the lines of source and target files, file for file, in the order given; patterns are expanded and sorted.

    Raises:
        UsageError: a file is missing or unreadable, or the two sides differ in files or in lines.
    """
    sources, targets = _expand(source_files), _expand(target_files)
    if len(sources) != len(targets):
        raise UsageError(
            f"{len(sources)} source files ({' '.join(sources)}) but {len(targets)} target files "
            f"({' '.join(targets)}): they are paired one by one"
        )
    pairs: list[Pair] = []
    for source, target in zip(sources, targets, strict=True):
        source_lines, target_lines = list(read_lines(source)), list(read_lines(target))
        if len(source_lines) != len(target_lines):
            raise UsageError(
                f"{source} has {len(source_lines)} lines but {target} has {len(target_lines)}: "
                "line n of one must translate line n of the other"
            )
        pairs.extend(zip(source_lines, target_lines, strict=True))
    return pairs


def _expand(patterns: Sequence[str]) -> list[str]:
    files: list[str] = []
    for pattern in patterns:
        matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise UsageError(f"{pattern}: no such file")
        files.extend(matches)
    return files


def load_corpus(options: DataOptions, seed: int) -> Corpus:
    """The training, validation and test pairs that the options name.

    Raises:
        UsageError: no training text, an unknown corpus or language, or files that do not fit each other.
    """
    if options.dataset == "builtin":
        try:
            splits = builtin_corpus(options.source_lang, options.target_lang, seed=seed)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return Corpus(splits["train"], splits["validation"], splits["test"])
    if options.dataset is not None:
        raise UsageError(f"--dataset {options.dataset}: only `builtin` is known; give text files with --train_source")
    if not options.train_source:
        raise UsageError("no training text: give --train_source and --train_target, or --dataset builtin")
    corpus = Corpus(
        load_pairs(options.train_source, options.train_target),
        load_pairs(options.validation_source, options.validation_target),
        load_pairs(options.test_source, options.test_target),
    )
    if not corpus.train:
        raise UsageError(f"{' '.join(options.train_source)}: no lines to train on")
    return corpus


class EncodedPairs(Dataset[dict[str, list[int]]]):
    """Pairs as ids, `input_ids` and `labels`, both ending in the end token.

    Pairs with an empty side, or a side of more than `max_length` tokens, are left out; the two kinds are counted.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
    ) -> None:
        filled = [(source, target) for source, target in pairs if source.strip() and target.strip()]
        self.empty = len(pairs) - len(filled)
        self.input_ids: list[list[int]] = []
        self.labels: list[list[int]] = []
        if filled:
            sources = tokenizer([source for source, _ in filled])["input_ids"]
            targets = target_tokenizer(text_target=[target for _, target in filled])["input_ids"]
            for source_ids, target_ids in zip(sources, targets, strict=True):
                if max_length is None or max(len(source_ids), len(target_ids)) <= max_length:
                    self.input_ids.append(source_ids)
                    self.labels.append(target_ids)
        self.too_long = len(filled) - len(self.input_ids)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.input_ids[index], "labels": self.labels[index]}

    def lengths(self) -> tuple[list[int], list[int]]:
        """Tokens of each source and of each target."""
        return [len(ids) for ids in self.input_ids], [len(ids) for ids in self.labels]
