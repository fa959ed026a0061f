"""Moses' text by the command: its own scripts' output, lines kept as lines (B39), results and errors."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recipes import ROOT, run_module, write_text
from training import moses
from training.data import read_lines
from training.errors import UsageError, run_command
from training.moses import convert_files, moses_detokenizer, moses_tokenizer

MULTI30K = ROOT.parent / "shared" / "data" / "multi30k" / "test_2016_flickr.de.gz"

# Text, its tokens by normalize-punctuation.perl and tokenizer.perl, and text again by detokenizer.perl.
MOSES = [
    (
        "en",
        "Mr. Smith's “test” – it's a well-known [1] <b> & | case, isn't it?",
        "Mr. Smith &apos;s &quot; test &quot; - it &apos;s a well-known &#91; 1 &#93; &lt; b &gt; &amp; &#124; case ,"
        " isn &apos;t it ?",
        "Mr. Smith's \"test\" - it's a well-known [1] < b > & | case, isn't it?",
    ),
    ("en", "He said ``yes''.", "He said &quot; yes &quot; .", 'He said "yes".'),
    (
        "en",
        "A man, 1.80 m tall, pays 1,000.50 dollars (about 10%) -- twice…",
        "A man , 1.80 m tall , pays 1,000.50 dollars ( about 10 % ) -- twice ...",
        "A man, 1.80 m tall, pays 1,000.50 dollars (about 10%) -- twice...",
    ),
    (
        "en",
        "Two-year-old twins on a dog-sled; they're happy!",
        "Two-year-old twins on a dog-sled ; they &apos;re happy !",
        "Two-year-old twins on a dog-sled; they're happy!",
    ),
    (
        "de",
        "„Hallo“, sagte er: z.B. Dr. Müller bezahlt 1.000,50 € (ca. 10%)...",
        "&quot; Hallo &quot; , sagte er : z.B. Dr. Müller bezahlt 1.000,50 € ( ca. 10 % ) ...",
        '"Hallo", sagte er: z.B. Dr. Müller bezahlt 1.000,50 €(ca. 10%)...',
    ),
    (
        "de",
        "Zwei Jungen essen ihr McDonald's-Menü im Außenbereich.",
        "Zwei Jungen essen ihr McDonald &apos; s-Menü im Außenbereich .",
        "Zwei Jungen essen ihr McDonald 's-Menü im Außenbereich.",
    ),
    (
        "fr",
        "l’homme qu’il voit « ici » n° 5",
        "l&apos; homme qu&apos; il voit &quot; ici &quot; n ° 5",
        "l'homme qu'il voit \"ici\" n ° 5",
    ),
]
# Plain sentences, which come back as they were.
SENTENCES = [
    "Ein Mann, der ein gestreiftes Hemd trägt, lächelt.",
    "Zwei Hunde (schwarz und weiß) rennen!",
    "Was macht sie? Sie liest: ein Buch; zwei Hefte.",
    "",
    "Ein Kind mit einem blau-weißen Ball für 3,50 Euro.",
]


@pytest.mark.parametrize(("lang", "text", "tokens", "back"), MOSES, ids=[text for _, text, _, _ in MOSES])
def test_what_the_scripts_give(lang: str, text: str, tokens: str, back: str) -> None:
    """Entities, quotes made plain, hyphens kept, abbreviations whole; and back."""
    assert moses_tokenizer(lang)(text) == tokens
    assert moses_detokenizer(lang)(tokens) == back


def test_lowercasing_is_first() -> None:
    """Lowercased tokens are the tokens of lowercased text; case stays unless asked for."""
    text = "Dr. Müller's ÄRGER, I. Teil."
    assert moses_tokenizer("de", lowercase=True)(text) == moses_tokenizer("de")(text.lower())
    assert moses_tokenizer("de", lowercase=True)(text) == "dr. müller &apos; s ärger , i. teil ."
    assert moses_tokenizer("de")(text) == "Dr. Müller &apos; s ÄRGER , I. Teil ."


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"{MULTI30K} is absent")
def test_tokens_of_the_literature() -> None:
    """Multi30k's German test set has as many tokens as the literature's reference, 12,103, and 1,000 lines."""
    tokenize = moses_tokenizer("de", lowercase=True)
    lines = [tokenize(line) for line in read_lines(MULTI30K)]
    assert (len(lines), sum(len(line.split(" ")) for line in lines)) == (1000, 12_103)


def test_detokenizing_undoes_tokenizing(tmp_path: Path) -> None:
    """Plain sentences come back as they were, through files too."""
    write_text(tmp_path / "text.de", SENTENCES)
    [tokens] = convert_files(moses_tokenizer("de"), [str(tmp_path / "text.de")], tmp_path / "tokens")
    [text] = convert_files(moses_detokenizer("de"), [str(tokens)], tmp_path / "again")
    assert list(read_lines(text)) == SENTENCES
    assert list(read_lines(tokens)) != SENTENCES


INNER = ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r", "\x00", "\u00a0", "\u3000"]


@pytest.mark.parametrize("make", [moses_tokenizer, moses_detokenizer])
def test_a_line_stays_a_line(make: Callable[[str], Callable[[str], str]], tmp_path: Path) -> None:
    """Separators inside a sentence, and lines of nothing, make neither more lines nor fewer (B39)."""
    lines = ["first", *(f"left{inner}right {inner}" for inner in INNER), *INNER, "", " ", "last"]
    write_text(tmp_path / "text", lines)
    [result] = convert_files(make("en"), [str(tmp_path / "text")], tmp_path / "results")
    raw = result.read_bytes()
    assert raw.endswith(b"\n")
    converted = raw.decode().removesuffix("\n").split("\n")
    assert len(converted) == len(lines)
    assert (converted[0], converted[-3:]) == ("first", ["", "", "last"])
    for line in converted[1 : 1 + len(INNER)]:
        assert line.startswith("left")
        assert line.rstrip(" \x00").endswith("right")
        # Whatever reads lines sees one.
        assert len(line.splitlines()) == 1


def test_packed_in_plain_out(tmp_path: Path) -> None:
    """Results have the inputs' names without .gz, in the order given, in a folder made for them."""
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"Yes, no.\nIt's on.\n"))
    write_text(tmp_path / "a.en", ["A (b)."])
    files = [str(tmp_path / name) for name in ("b.en.gz", "a.en")]
    results = convert_files(moses_tokenizer("en"), files, tmp_path / "new" / "folder")
    assert results == [tmp_path / "new" / "folder" / name for name in ("b.en", "a.en")]
    assert [path.read_text() for path in results] == ["Yes , no .\nIt &apos;s on .\n", "A ( b ) .\n"]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["a.en", "b.en"]


def test_a_packed_file_may_be_unpacked_beside_itself(tmp_path: Path) -> None:
    """The result of text.gz in the same folder is text, which is another file."""
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"Yes, no.\n"))
    [result] = convert_files(moses_tokenizer("en"), [str(tmp_path / "text.gz")], tmp_path)
    assert result == tmp_path / "text"
    assert result.read_text() == "Yes , no .\n"


def test_a_linked_folder_is_the_folder(tmp_path: Path) -> None:
    """A file is not written over itself under another name of its folder."""
    text = write_text(tmp_path / "text", ["a."])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="would overwrite another file"):
        convert_files(moses_tokenizer("en"), [text], tmp_path / "link")
    assert list(read_lines(text)) == ["a."]


def overwriting(file: str, result: str) -> str:
    return f"{file}: its result, {result}, would overwrite another file: give another OUTPUT_DIR"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenize", "out", "a/text", "b/text"], overwriting("a/text", "out/text")),
        (["tokenize", "out", "a/text", "b/text.gz"], overwriting("a/text", "out/text")),
        (["tokenize", "out", "a/text", "a/text"], overwriting("a/text", "out/text")),
        (["tokenize", "a", "a/text"], overwriting("a/text", "a/text")),
        (["detokenize", "b/../a", "a/text"], overwriting("a/text", "b/../a/text")),
        (["tokenize", "out", "absent"], "absent: cannot be read ([Errno 2] No such file or directory: 'absent')"),
        (["tokenize", "out", "a"], "a: cannot be read ([Errno 21] Is a directory: 'a')"),
        (["tokenize", "out", "latin1"], "latin1: line 2 is not UTF-8 (invalid continuation byte): convert the file"),
        (["tokenize", "out", "fake.gz"], "fake.gz: cannot be read (Not a gzipped file (b'no'))"),
        (["detokenize", "out", "a/text", "--lowercase"], "--lowercase goes with `tokenize` only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be done ends with status 2 and one line, before anything is written."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        write_text(Path(folder, "text"), [folder])
    Path("b/text.gz").write_bytes(gzip.compress(b"b\n"))
    Path("latin1").write_bytes("ok\nl'été\n".encode("latin-1"))
    Path("fake.gz").write_text("not packed\n")
    monkeypatch.setattr("sys.argv", ["moses", *arguments, "--lang", "en"])
    with pytest.raises(SystemExit) as caught:
        run_command(moses.main)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert not Path("out").exists()
    assert [Path(folder, "text").read_text() for folder in ("a", "b")] == ["a\n", "b\n"]


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_a_file_in_the_folders_place(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An OUTPUT_DIR that is a file ends the command with one line that names it."""
    text, taken = write_text(tmp_path / "text", ["a"]), write_text(tmp_path / "taken", ["b"])
    monkeypatch.setattr("sys.argv", ["moses", "tokenize", str(Path(taken, below)), text, "--lang", "en"])
    with pytest.raises(SystemExit) as caught:
        run_command(moses.main)
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert taken in err
    assert list(read_lines(taken)) == ["b"]


def test_command(tmp_path: Path) -> None:
    """stdout lists the results and nothing else; stderr is still where no one watches."""
    write_text(tmp_path / "x.de", ["Ein Mann, ein Hund."])
    write_text(tmp_path / "y.de", SENTENCES)
    done = run_module("training.moses", "tokenize", "out", "x.de", "y.de", "--lang", "de", "--lowercase", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out/x.de\nout/y.de\n", "")
    assert (tmp_path / "out" / "x.de").read_text() == "ein mann , ein hund .\n"
    assert len(list(read_lines(tmp_path / "out" / "y.de"))) == len(SENTENCES)
