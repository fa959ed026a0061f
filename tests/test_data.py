"""Reading parallel text: what a line is (B39), pairing (B40), data sets with a `translation` column (B44)."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from tests.recipes import write_text
from training.data import Corpus, DataOptions, load_corpus, load_pairs, read_lines
from training.encoding import Pair
from training.errors import UsageError


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `datasets`, empty, and no network."""
    folder = tmp_path_factory.mktemp("cache") / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


INNER = ["\u2028", "\u2029", "\u0085", "\x0c", "\x0b", "\x1c", "\x1d", "\x1e", "\r", "\x00"]


@pytest.mark.parametrize("inner", INNER, ids=[f"U+{ord(c):04X}" for c in INNER])
def test_only_line_feed_ends_a_line(tmp_path: Path, inner: str) -> None:
    """B39: a separator inside a sentence is text, on either side and at either end of it."""
    source = [f"line {i}" for i in range(10)]
    source[3] = f"{inner}left{inner}right{inner}"
    target = [f"Zeile {i}" for i in range(10)]
    pairs = load_pairs([write_text(tmp_path / "s", source)], [write_text(tmp_path / "t", target)])
    # A carriage return at the very end belongs to the line's end, CRLF.
    source[3] = source[3].removesuffix("\r")
    assert pairs == list(zip(source, target, strict=True))


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"a\n\n \n", ["a", "", " "]),
        (b"a\r", ["a\r"]),
        (b"", []),
        (b"\n", [""]),
    ],
)
def test_line_ends_and_byte_order_mark(tmp_path: Path, raw: bytes, lines: list[str]) -> None:
    (tmp_path / "plain").write_bytes(raw)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(raw))
    assert list(read_lines(tmp_path / "plain")) == lines
    assert list(read_lines(tmp_path / "packed.gz")) == lines


def test_undecodable_bytes_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes("ok\nok\nl'\u00e9t\u00e9\n".encode("latin-1"))
    with pytest.raises(UsageError, match=rf"{path}: line 3 is not UTF-8"):
        list(read_lines(path))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "fake.gz").write_text("not packed\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"some text\n" * 1000)[:-12])
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(b"some text\n")[:10] + b"\xff" * 20)
    for name in ("fake.gz", "cut.gz", "damaged.gz"):
        with pytest.raises(UsageError, match=f"{name}: cannot be read"):
            list(read_lines(tmp_path / name))
    with pytest.raises(UsageError, match=r"absent\.txt: no such file"):
        load_pairs([str(tmp_path / "absent.txt")], [])


def test_unequal_sides_are_refused_with_both_counts(tmp_path: Path) -> None:
    """B40: never the common prefix."""
    ten, nine = write_text(tmp_path / "s", ["x"] * 10), write_text(tmp_path / "t", ["y"] * 9)
    with pytest.raises(UsageError, match=r"s has 10 lines but .*t has 9"):
        load_pairs([ten], [nine])
    with pytest.raises(UsageError, match=r"2 source files .* but 1 target files"):
        load_pairs([ten, ten], [ten])


def test_several_files_and_patterns_are_paired_in_order(tmp_path: Path) -> None:
    for part in ("1", "2"):
        write_text(tmp_path / f"part{part}.en", [f"en {part}"])
        write_text(tmp_path / f"part{part}.de", [f"de {part}"])
    pairs = load_pairs([str(tmp_path / "part*.en")], [str(tmp_path / "part*.de")])
    assert pairs == [("en 1", "de 1"), ("en 2", "de 2")]


def train_pairs(corpus: Corpus) -> list[Pair]:
    return list(zip(corpus.texts("source"), corpus.texts("target"), strict=True))


def test_training_text_of_files_is_on_disk_and_the_same_as_in_memory(cache: Path, tmp_path: Path) -> None:
    source = ["a", "", "b\u2028c", "d\re", " "]
    target = ["A", "B", "", "D\u0085E", "F"]
    files = [write_text(tmp_path / "s", source)], [write_text(tmp_path / "t", target)]
    corpus = load_corpus(DataOptions(train_source=files[0], train_target=files[1]), seed=0)
    assert train_pairs(corpus) == load_pairs(*files) == list(zip(source, target, strict=True))
    assert list(corpus.texts("source", "target")) == [*source, *target]
    assert Path(corpus.train.cache_files[0]["filename"]).is_relative_to(cache)
    assert (corpus.validation, corpus.test) == ([], [])


def test_text_on_disk_goes_by_what_the_files_hold(cache: Path, tmp_path: Path) -> None:
    """Packed files, other names and times give the same text; one changed byte gives its own."""
    options = DataOptions(train_source=[write_text(tmp_path / "s", ["a"])], train_target=[])
    for content in ("x", "y", "x"):
        options.train_target = [write_text(tmp_path / "t", [content])]
        assert train_pairs(load_corpus(options, seed=0)) == [("a", content)]
    assert len(list(cache.glob("parallel_text/*.arrow"))) == 2
    (tmp_path / "s.gz").write_bytes(gzip.compress(b"a\n"))
    options.train_source = [str(tmp_path / "s.gz")]
    assert train_pairs(load_corpus(options, seed=0)) == [("a", "x")]
    write_text(tmp_path / "b.gz.copy", ["unpacked"])
    (tmp_path / "named").write_bytes((tmp_path / "s.gz").read_bytes())
    options.train_source = [str(tmp_path / "named")]
    with pytest.raises(UsageError, match="named: line 1 is not UTF-8"):
        load_corpus(options, seed=0)


def test_errors_in_training_files_leave_nothing_behind(cache: Path, tmp_path: Path) -> None:
    ten, nine = write_text(tmp_path / "s", ["x"] * 10), write_text(tmp_path / "t", ["y"] * 9)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"s has 10 lines but .*t has 9"):
            load_corpus(DataOptions(train_source=[ten], train_target=[nine]), seed=0)
    assert list(cache.glob("parallel_text/*")) == []
    with pytest.raises(UsageError, match=r"cannot be read \(training text is read more than once"):
        load_corpus(DataOptions(train_source=[str(tmp_path)], train_target=[nine]), seed=0)
    empty = write_text(tmp_path / "empty", [])
    with pytest.raises(UsageError, match="empty: no lines to train on"):
        load_corpus(DataOptions(train_source=[empty], train_target=[empty]), seed=0)


def test_a_cache_that_cannot_be_written_is_named(cache: Path, tmp_path: Path) -> None:
    cache.write_text("a file where the folder should be")
    line = write_text(tmp_path / "s", ["x"])
    with pytest.raises(UsageError, match=r"parallel_text: cannot be written .*: set HF_DATASETS_CACHE"):
        load_corpus(DataOptions(train_source=[line], train_target=[line]), seed=0)


def test_corpus_without_text_says_what_to_give(cache: Path) -> None:
    with pytest.raises(UsageError, match="--train_source"):
        load_corpus(DataOptions(), seed=0)
    with pytest.raises(UsageError, match="xx"):
        load_corpus(DataOptions(dataset="builtin", target_lang="xx"), seed=0)
    with pytest.raises(UsageError, match="--dataset builtin and --train_source: give one of them"):
        load_corpus(DataOptions(dataset="builtin", train_source=["x"]), seed=0)
    with pytest.raises(UsageError, match="--dataset_config de-en: give the data set that has it with --dataset"):
        load_corpus(DataOptions(train_source=["x"], dataset_config="de-en"), seed=0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_ratio", 0.5, "`max_ratio` must be at least 1, got 0.5"),
        ("preprocessing_num_workers", 0, "`preprocessing_num_workers` must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be(option: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataOptions(**{option: value})  # type: ignore[arg-type]


def test_builtin_corpus_has_three_splits(cache: Path, tmp_path: Path) -> None:
    corpus = load_corpus(DataOptions(dataset="builtin"), seed=0)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (20_000, 500, 500)
    own = {"test_source": [write_text(tmp_path / "s", ["a"])], "test_target": [write_text(tmp_path / "t", ["b"])]}
    corpus = load_corpus(DataOptions(dataset="builtin", **own), seed=0)  # type: ignore[arg-type]
    assert (len(corpus.validation), corpus.test) == (500, [("a", "b")])


# English and German: line separators inside, digits and words that a table reader may take for something else.
SENTENCES = [("one\u2028two", "eins\u0085zwei"), ("007", "NA"), ("null", "1.0"), ('say "a, b"', "x\ty"), ("3", "4")]


def write_parquet(path: Path, pairs: list[Pair]) -> None:
    datasets.Dataset.from_list([{"translation": {"de": de, "en": en}, "id": 1} for en, de in pairs]).to_parquet(path)


def write_jsonl(path: Path, pairs: list[Pair]) -> None:
    rows = [json.dumps({"translation": {"de": de, "en": en}}, ensure_ascii=False) for en, de in pairs]
    write_text(path, rows)


def write_csv(path: Path, pairs: list[Pair]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        rows.writerows([("id", "de", "en"), *((i, de, en) for i, (en, de) in enumerate(pairs))])


FORMATS = {"parquet": write_parquet, "jsonl": write_jsonl, "csv": write_csv, "tsv": write_csv}


@pytest.mark.parametrize("ending", FORMATS)
def test_folders_of_each_format_in_both_directions(cache: Path, tmp_path: Path, ending: str) -> None:
    """B44, B39: the direction asked for, and text as it is."""
    for split, pairs in {"train": SENTENCES, "validation": SENTENCES[:2], "test": SENTENCES[2:]}.items():
        FORMATS[ending](tmp_path / f"{split}.{ending}", pairs)
    corpus = load_corpus(DataOptions(dataset=str(tmp_path)), seed=0)
    assert train_pairs(corpus) == SENTENCES
    assert (corpus.validation, corpus.test) == (SENTENCES[:2], SENTENCES[2:])
    assert corpus.train.column_names == ["source", "target"]
    back = load_corpus(DataOptions(dataset=str(tmp_path), source_lang="de", target_lang="en"), seed=0)
    assert train_pairs(back) == [(de, en) for en, de in SENTENCES]
    assert back.validation == [(de, en) for en, de in SENTENCES[:2]]


@pytest.mark.parametrize(
    "train", ["data/train-00000-of-00001.parquet", "train/0.parquet", "train.parquet", "corpus.parquet"]
)
def test_layouts_of_a_folder(cache: Path, tmp_path: Path, train: str) -> None:
    (tmp_path / train).parent.mkdir(exist_ok=True)
    write_parquet(tmp_path / train, SENTENCES)
    assert train_pairs(load_corpus(DataOptions(dataset=str(tmp_path)), seed=0)) == SENTENCES


def wmt_folder(folder: Path, readme: bool) -> str:
    """The layout of WMT14 on the Hub: a folder for each pair of languages, train in several parts."""
    for config, count in {"de-en": 4, "fr-en": 1}.items():
        (folder / config).mkdir(parents=True)
        for part in range(2):
            half = SENTENCES[:count][part * count // 2 : (part + 1) * count // 2] or SENTENCES[:1]
            write_parquet(folder / config / f"train-0000{part}-of-00002.parquet", half)
        write_parquet(folder / config / "validation-00000-of-00001.parquet", SENTENCES[:1])
    if readme:
        names = "".join(
            f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*\n"
            for name in ("de-en", "fr-en")
        )
        (folder / "README.md").write_text(f"---\nconfigs:\n{names}---\n")
    return str(folder)


@pytest.mark.parametrize("readme", [False, True], ids=["sub-folders", "README"])
def test_a_configuration_is_picked(cache: Path, tmp_path: Path, readme: bool) -> None:
    name = wmt_folder(tmp_path / "wmt", readme)
    corpus = load_corpus(DataOptions(dataset=name, dataset_config="de-en"), seed=0)
    assert train_pairs(corpus) == SENTENCES[:4]
    assert len(corpus.validation) == (0 if readme else 1)
    with pytest.raises(UsageError, match=r"--dataset_config cs-en: not in .*wmt, which has de-en, fr-en"):
        load_corpus(DataOptions(dataset=name, dataset_config="cs-en"), seed=0)


def test_a_configuration_must_be_chosen_where_there_are_several(cache: Path, tmp_path: Path) -> None:
    name = wmt_folder(tmp_path / "wmt", readme=True)
    with pytest.raises(UsageError, match=r"Config name is missing.*\['de-en', 'fr-en'\].*and --dataset_config where"):
        load_corpus(DataOptions(dataset=name), seed=0)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("streaming", [False, True], ids=["at once", "streaming"])
def test_missing_text_in_a_data_set_is_empty(cache: Path, tmp_path: Path, streaming: bool, ending: str) -> None:
    """A language, or a whole row: null everywhere; of JSON also left out."""
    rows: list[dict[str, object]] = [{"translation": {"de": "x", "en": t}} for t in ("y", None)]
    rows += [{"translation": None}, {"translation": {"de": "z", "en": "y"}}]
    if ending == "jsonl":
        rows += [{"translation": {"en": "w"}}, {"translation": {}}, {"id": 3}]
    for split in ("train", "validation", "test"):
        if ending == "jsonl":
            write_text(tmp_path / f"{split}.jsonl", [json.dumps(row) for row in rows])
        else:
            datasets.Dataset.from_list(rows).to_parquet(tmp_path / f"{split}.parquet")
    options = DataOptions(dataset=str(tmp_path), source_lang="de", target_lang="en", streaming=streaming)
    corpus = load_corpus(options, seed=0)
    expected = [("x", "y"), ("x", ""), ("", ""), ("z", "y"), ("", "w"), ("", ""), ("", "")][: len(rows)]
    assert train_pairs(corpus) == corpus.validation == corpus.test == expected


@pytest.mark.parametrize("streaming", [False, True], ids=["at once", "streaming"])
def test_text_that_is_a_number_in_some_rows_is_refused(cache: Path, tmp_path: Path, streaming: bool) -> None:
    write_text(tmp_path / "train.jsonl", [json.dumps({"translation": {"de": "x", "en": t}}) for t in ("y", 3)])
    with pytest.raises(UsageError, match=f"^--dataset {tmp_path}: "):
        load_corpus(DataOptions(dataset=str(tmp_path), streaming=streaming), seed=0)


def parquet_of(**columns: list[object]) -> Callable[[Path], None]:
    return lambda folder: datasets.Dataset.from_dict(columns).to_parquet(folder / "train.parquet")


def only_test(folder: Path) -> None:
    write_parquet(folder / "test.parquet", SENTENCES)


def not_parquet(folder: Path) -> None:
    (folder / "train.parquet").write_text("not parquet")


def only_a_header(folder: Path) -> None:
    (folder / "train.csv").write_text("en,de\n")


def two_languages(folder: Path) -> None:
    parquet_of(translation=[{"de": "x", "en": "y"}])(folder)
    datasets.Dataset.from_dict({"translation": [{"fr": "x", "en": "y"}]}).to_parquet(folder / "train-2.parquet")


def saved_to_disk(folder: Path) -> None:
    datasets.Dataset.from_dict({"de": ["x"]}).save_to_disk(folder)


ASKED = "asked for: from en to de; set --source_lang and --target_lang to two of its languages"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (parquet_of(text=["x"], label=["y"]), f"its columns: label, text; {ASKED}"),
        (parquet_of(de=["x"]), f"its columns: de; {ASKED}"),
        (parquet_of(translation=[{"de": "x", "fr": "y"}]), f"its `translation` column: de, fr; {ASKED}"),
        (parquet_of(translation=["x"]), f"its `translation` column: none; {ASKED}"),
        (parquet_of(en=["x"], de=[1]), "its columns: de holds int64, not text"),
        (parquet_of(en=[], de=[]), 'cannot be loaded: Instruction "train" corresponds to no data'),
        (only_test, "no `train` split to train on; it has test"),
        (not_parquet, "cannot be loaded: Parquet magic bytes not found"),
        (only_a_header, 'cannot be loaded: Instruction "train" corresponds to no data'),
        (two_languages, "cannot be loaded: Couldn't cast array of type struct<"),
        (saved_to_disk, "cannot be loaded: You are trying to load a dataset that was saved using `save_to_disk`"),
        (lambda folder: None, "cannot be loaded: The directory at"),
    ],
    ids=lambda value: "" if callable(value) else value[:30],
)
def test_what_is_wrong_with_a_data_set_is_one_line(
    cache: Path, tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder)
    with pytest.raises(UsageError) as caught:
        load_corpus(DataOptions(dataset=str(folder)), seed=0)
    assert str(folder) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_two_languages_must_differ(cache: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", SENTENCES)
    with pytest.raises(UsageError, match="`translation` column: de, en; asked for: from de to de; set"):
        load_corpus(DataOptions(dataset=str(tmp_path), source_lang="de", target_lang="de"), seed=0)


@pytest.mark.parametrize("name", ["nowhere", "nobody/nowhere", "./no/such/folder"])
def test_a_data_set_that_is_not_there_without_a_network(cache: Path, name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^--dataset {name}: cannot be loaded: Couldn't .*; give a folder or a name"
    ):
        load_corpus(DataOptions(dataset=name), seed=0)
