"""Reading parallel text: what a line is (B39), pairing (B40), what is left out of training (B41)."""

import gzip
from pathlib import Path

import pytest

from tests.recipes import write_text
from training.data import DataOptions, EncodedPairs, load_corpus, load_pairs, read_lines
from training.errors import UsageError
from training.tokenizer import train_tokenizer

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
    for name in ("fake.gz", "cut.gz"):
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


def test_corpus_without_text_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="--train_source"):
        load_corpus(DataOptions(), seed=0)
    with pytest.raises(UsageError, match="nowhere"):
        load_corpus(DataOptions(dataset="nowhere"), seed=0)
    with pytest.raises(UsageError, match="xx"):
        load_corpus(DataOptions(dataset="builtin", target_lang="xx"), seed=0)


def test_builtin_corpus_has_three_splits() -> None:
    corpus = load_corpus(DataOptions(dataset="builtin"), seed=0)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (20_000, 500, 500)


def test_empty_and_long_pairs_are_left_out_and_counted() -> None:
    """B41: a pair with an empty side teaches nothing; it goes, and is counted."""
    tokenizer = train_tokenizer(["a b c"] * 3, 300)
    pairs = [("a", "b"), ("", "b"), ("a", "  "), ("\u3000", "b"), ("a " * 50, "b"), ("b", "c")]
    encoded = EncodedPairs(pairs, tokenizer, tokenizer, max_length=20)
    assert (len(encoded), encoded.empty, encoded.too_long) == (2, 3, 1)
    assert encoded[0] == {"input_ids": tokenizer("a")["input_ids"], "labels": tokenizer("b")["input_ids"]}
    assert encoded.lengths() == ([2, 2], [2, 2])
    assert len(EncodedPairs([], tokenizer, tokenizer)) == 0
