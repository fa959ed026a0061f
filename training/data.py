"""Parallel text: where it comes from, what a line is, how the two sides are paired."""

import glob
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import datasets

from training.builtin import builtin_corpus
from training.encoding import TEXT, EncodedPairs, Pair, store_pairs
from training.errors import UsageError
from training.translation_dataset import Split, load_splits, split_pairs

__all__ = ["Corpus", "DataOptions", "EncodedPairs", "Pair", "load_corpus", "load_pairs", "read_lines"]


@dataclass
class DataOptions:
    """Where the text is and how it becomes ids."""

    dataset: str | None = field(
        default=None,
        metadata={
            "help": "name on the Hub, or folder, of a data set with a `translation` column or a column for each "
            "language; `builtin`: the corpus made without a download. Otherwise give text files"
        },
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "which of the data set's configurations or sub-folders, such as `de-en`"}
    )
    train_source: list[str] = field(
        default_factory=list, metadata={"help": "source text files, plain or .gz, a sentence a line; patterns allowed"}
    )
    train_target: list[str] = field(default_factory=list, metadata={"help": "their translations, file for file"})
    validation_source: list[str] = field(
        default_factory=list,
        metadata={"help": "held-out source text; goes over the data set's own, as test text does"},
    )
    validation_target: list[str] = field(default_factory=list, metadata={"help": "its translation"})
    test_source: list[str] = field(default_factory=list, metadata={"help": "source text translated at the end"})
    test_target: list[str] = field(default_factory=list, metadata={"help": "its translation, to score against"})
    source_lang: str = field(default="en", metadata={"help": "language code of the source"})
    target_lang: str = field(default="de", metadata={"help": "language code of the target"})
    tokenized: bool = field(
        default=False,
        metadata={"help": "the text is tokens with spaces between them, as Moses': BLEU counts them as they are"},
    )
    tokenizer_algorithm: str = field(default="bpe", metadata={"help": "bpe, wordpiece or unigram"})
    vocab_size: int = field(default=37000, metadata={"help": "entries of the vocabulary that is trained, at most"})
    joint_vocabulary: bool = field(
        default=True,
        metadata={"help": "one vocabulary for both languages; false: one each (share no embeddings then)"},
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "read the training text as it is used, anew in each epoch: for a corpus that does not fit"},
    )
    shuffle_buffer_size: int = field(
        default=100_000, metadata={"help": "with --streaming, the pairs that are shuffled, and batched, together"}
    )
    max_length: int = field(
        default=256, metadata={"help": "longest side of a training pair in tokens, end token counted; longer ones go"}
    )
    max_ratio: float | None = field(
        default=None,
        metadata={"help": "most tokens of one side of a training pair for each of the other; none: any, as the paper"},
    )
    preprocessing_num_workers: int = field(
        default=1, metadata={"help": "processes that tokenise training text; 1 uses the tokenizer's own threads"}
    )

    def __post_init__(self) -> None:
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ValueError(f"`max_ratio` must be at least 1, got {self.max_ratio:g}")
        for name in ("preprocessing_num_workers", "shuffle_buffer_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")


@dataclass
class Corpus:
    """The pairs of a run: `train`, on disk or a stream, has columns `source` and `target`; the others may be empty."""

    train: Split
    validation: list[Pair]
    test: list[Pair]

    def texts(self, *sides: str) -> Iterator[str]:
        """The training text of one side, "source" or "target", after that of another, read as it is used."""
        for side in sides:
            for batch in self.train.select_columns([side]).iter(batch_size=1000):
                yield from (text or "" for text in batch[side])


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
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def load_pairs(source_files: Sequence[str], target_files: Sequence[str]) -> list[Pair]:
    """Pair the lines of source and target files, file for file, in the order given; patterns are expanded and sorted.

    Raises:
        UsageError: a file is missing or unreadable, or the two sides differ in files or in lines.
    """
    return list(_read_pairs(_pair_files(source_files, target_files)))


def _pair_files(source_files: Sequence[str], target_files: Sequence[str]) -> list[tuple[str, str]]:
    sources, targets = _expand(source_files), _expand(target_files)
    if len(sources) != len(targets):
        raise UsageError(
            f"{len(sources)} source files ({' '.join(sources)}) but {len(targets)} target files "
            f"({' '.join(targets)}): they are paired one by one"
        )
    return list(zip(sources, targets, strict=True))


def _expand(patterns: Sequence[str]) -> list[str]:
    files: list[str] = []
    for pattern in patterns:
        matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise UsageError(f"{pattern}: no such file")
        files.extend(matches)
    return files


def _read_pairs(files: Iterable[tuple[str, str]]) -> Iterator[Pair]:
    for source, target in files:
        source_lines = target_lines = 0
        for left, right in zip_longest(read_lines(source), read_lines(target)):
            source_lines += left is not None
            target_lines += right is not None
            if left is not None and right is not None:
                yield left, right
        if source_lines != target_lines:
            raise UsageError(
                f"{source} has {source_lines} lines but {target} has {target_lines}: "
                "line n of one must translate line n of the other"
            )


def _store_files(files: Sequence[tuple[str, str]]) -> datasets.Dataset:
    """The pairs of text files, on disk under a name made of what the files hold."""
    key = hashlib.sha256()
    for path in (path for pair in files for path in pair):
        try:
            if not Path(path).is_file():
                raise OSError("training text is read more than once: not a folder or a pipe")
            with open(path, "rb") as file:
                content = hashlib.sha256()
                while block := file.read(1 << 20):
                    content.update(block)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error})") from error
        key.update(content.digest() + (b"gz" if path.endswith(".gz") else b"--"))
    return store_pairs(_read_pairs(files), key.hexdigest())


def _stream_files(files: list[tuple[str, str]]) -> datasets.IterableDataset:
    """The pairs of text files, read anew each time they are asked for."""

    def rows() -> Iterator[dict[str, str]]:
        for source, target in _read_pairs(files):
            yield {"source": source, "target": target}

    return datasets.IterableDataset.from_generator(rows, features=TEXT)


def load_corpus(options: DataOptions, seed: int) -> Corpus:
    """The training, validation and test pairs that the options name; held-out text files go over a data set's own.

    Raises:
        UsageError: no training text, an unknown corpus or language, or sides that do not fit each other.
    """
    name, languages = options.dataset, (options.source_lang, options.target_lang)
    if name is not None and options.train_source:
        raise UsageError(f"--dataset {name} and --train_source: give one of them")
    if options.dataset_config is not None and name in (None, "builtin"):
        raise UsageError(f"--dataset_config {options.dataset_config}: give the data set that has it with --dataset")
    validation = load_pairs(options.validation_source, options.validation_target)
    test = load_pairs(options.test_source, options.test_target)
    train: Split
    if name == "builtin":
        try:
            made = builtin_corpus(*languages, seed=seed)
        except ValueError as error:
            raise UsageError(str(error)) from error
        train = store_pairs(made["train"], hashlib.sha256(repr(made["train"]).encode()).hexdigest())
        train = train.to_iterable_dataset() if options.streaming else train
        validation, test = validation or made["validation"], test or made["test"]
    elif name is not None:
        splits = load_splits(name, options.dataset_config, *languages, streaming=options.streaming)
        train = splits["train"]
        validation, test = validation or split_pairs(splits, "validation"), test or split_pairs(splits, "test")
    elif options.train_source:
        files = _pair_files(options.train_source, options.train_target)
        train = _stream_files(files) if options.streaming else _store_files(files)
    else:
        raise UsageError("no training text: give --dataset (`builtin`, for one), or --train_source and --train_target")
    if next(iter(train), None) is None:
        raise UsageError(f"{name or ' '.join(options.train_source)}: no lines to train on")
    return Corpus(train, validation, test)
