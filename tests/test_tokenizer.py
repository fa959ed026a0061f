import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from training.tokenizer import train_tokenizer

Algorithm = Literal["bpe", "wordpiece", "unigram"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
MINIMUM: dict[Algorithm, int] = {"bpe": 260, "wordpiece": 516, "unigram": 260}

ROOT = Path(__file__).resolve().parents[1]
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k" / "train.en.gz"

CORPUS = [
    "the lower the better, said the lowest bidder",
    "a newer and wider road is better than an older one",
    "der neue breite Weg ist besser als der alte",
    "l'été (fin), a long été",
    "He said: don't, 3.5 % !",
    "</s> <s> <pad> <unk> </s></s><s><s>",
    "\ttabs\tand  double  blanks",
    "日本語のテスト 日本語",
] * 3

TEXTS = [
    "",
    "the lowest bidder",
    "He said: don't, 3.5 % !",
    "x , y !",
    "l'été (fin).",
    " leading",
    "trailing ",
    "double  blanks   and    more",
    "\ttab\t\ttabs\t",
    "line\nbreak\r\nand\rreturn\n",
    "a\u2028b\u2029c\u0085d\x0be\x0cf",
    "nul\0nul",
    "日本語のテスト",
    "👩‍👩‍👧‍👦 👍🏽",
    "e\u0301 a\u0308\u0323 q\u0307\u0323",
    "▁low ▁ ##er ##",
    "Ġlow ĠĠ Ċ",
    "low@@ er @@ ",
    "‿ x‿y ‿the",
    "\ufeffmark \ufffd \xa0 \u200b \U0010ffff",
    "</s>",
    "<s> a </s><pad> <unk>b</s >",
    "x" * 3000,
    "日本" * 1500,
]


def random_texts() -> list[str]:
    """Fifty texts of code points from all of Unicode but surrogates, which are no characters."""
    rng = random.Random(0)
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    ranges = (range(0x80), range(0x3000), points)
    return ["".join(chr(rng.choice(rng.choice(ranges))) for _ in range(40)) for _ in range(50)]


@dataclass
class Trained:
    algorithm: Algorithm
    folder: Path
    trained: PreTrainedTokenizerFast
    reloaded: PreTrainedTokenizerFast

    @property
    def both(self) -> list[PreTrainedTokenizerFast]:
        return [self.trained, self.reloaded]


@pytest.fixture(scope="module", params=ALGORITHMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = train_tokenizer((line for line in CORPUS), 600, request.param)
    tokenizer.save_pretrained(folder)
    return Trained(request.param, folder, tokenizer, AutoTokenizer.from_pretrained(folder))


def test_settings(made: Trained) -> None:
    for tokenizer in made.both:
        assert tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "</s>", "<unk>"]) == [0, 1, 2, 3]
        ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
        assert ids == (0, 1, 2, 3)
        assert tokenizer.all_special_ids == [1, 2, 3, 0]
        assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
        assert list(tokenizer("low", return_tensors="pt")) == ["input_ids", "attention_mask"]
        assert tokenizer.padding_side == "right"
        assert tokenizer.model_max_length == 1024
        assert tokenizer.clean_up_tokenization_spaces is False
        assert tokenizer.split_special_tokens is True


def test_a_text_ends_in_one_end_token(made: Trained) -> None:
    for tokenizer in made.both:
        plain = {text: tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
        assert not any({0, 1, 2, 3} & set(ids) for ids in plain.values())
        for text, ids in plain.items():
            assert tokenizer.encode(text) == [*ids, 2]
            assert tokenizer(text)["input_ids"] == [*ids, 2]
            assert tokenizer(text_target=text)["input_ids"] == [*ids, 2]
        batch = tokenizer(TEXTS, text_target=TEXTS[::-1])
        assert batch["input_ids"] == [[*plain[text], 2] for text in TEXTS]
        assert batch["labels"] == [[*plain[text], 2] for text in TEXTS[::-1]]
        assert tokenizer("a", "b")["input_ids"] == [*tokenizer.encode("a"), *tokenizer.encode("b")]


def test_truncation_cuts_the_text_and_keeps_the_end_token(made: Trained) -> None:
    text = "the lowest bidder said: don't"
    for tokenizer in made.both:
        cut = [*tokenizer.encode(text)[:3], 2]
        assert tokenizer(text, truncation=True, max_length=4)["input_ids"] == cut
        assert tokenizer(text_target=[text], truncation=True, max_length=4)["input_ids"] == [cut]
        assert tokenizer("", truncation=True, max_length=4)["input_ids"] == [2]


def test_padding_is_on_the_right(made: Trained) -> None:
    for tokenizer in made.both:
        long, short = tokenizer.encode("the lower the better"), tokenizer.encode("the")
        batch = tokenizer(["the lower the better", "the"], padding=True)
        rest = len(long) - len(short)
        assert batch["input_ids"] == [long, short + [0] * rest]
        assert batch["attention_mask"] == [[1] * len(long), [1] * len(short) + [0] * rest]


def test_any_text_comes_back(made: Trained) -> None:
    texts = [*TEXTS, *random_texts()]
    for tokenizer in made.both:
        batch = tokenizer(texts)["input_ids"]
        assert tokenizer.batch_decode(batch, skip_special_tokens=True) == texts
        assert [tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) for text in texts] == texts
        assert not any(3 in ids for ids in batch)


def test_markers_in_text_are_ordinary_pieces(made: Trained) -> None:
    markers = ["<pad>", "<s>", "</s>", "<unk>"]
    texts = [*markers, *(f"a {marker}{marker} b" for marker in markers)]
    for tokenizer in made.both:
        encoded = [
            *tokenizer(texts)["input_ids"],
            *tokenizer(text_target=texts)["input_ids"],
            *(tokenizer(text)["input_ids"] for text in texts),
            *(tokenizer(text_target=text)["input_ids"] for text in texts),
        ]
        assert all(min(ids[:-1]) > 3 and ids[-1] == 2 for ids in encoded)
        assert tokenizer.batch_decode(encoded, skip_special_tokens=True) == texts * 4
        assert not set(markers) & set(tokenizer.tokenize(" ".join(texts)))


def test_vocabulary(made: Trained) -> None:
    data = json.loads((made.folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = made.trained.get_vocab()
    assert made.reloaded.get_vocab() == vocab
    assert MINIMUM[made.algorithm] < len(made.trained) == len(made.reloaded) <= 600
    assert sorted(vocab.values()) == list(range(len(made.trained)))
    assert [token["content"] for token in data["added_tokens"]] == ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == 256
    assert alphabet <= vocab.keys()
    if made.algorithm == "wordpiece":
        assert {f"‿{byte}" for byte in alphabet} <= vocab.keys()
    characters = {character for piece in vocab for character in piece}
    assert characters - alphabet == ({"‿"} if made.algorithm == "wordpiece" else set())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vocabulary_size(algorithm: Algorithm) -> None:
    minimum = MINIMUM[algorithm]
    assert len(train_tokenizer(["x"], 10_000, algorithm)) == minimum
    assert len(train_tokenizer(CORPUS, minimum, algorithm)) == minimum
    assert len(train_tokenizer(CORPUS, minimum + 7, algorithm)) == minimum + 7
    assert minimum < len(train_tokenizer(CORPUS, 10_000, algorithm)) < 1000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_model_max_length(algorithm: Algorithm, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(CORPUS, 600, algorithm, model_max_length=6)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.model_max_length == 6
        ids = loaded.encode("x y z x y z x y z", truncation=True)
        assert ids == [*loaded.encode("x y z x y z x y z")[:5], 2]
        assert loaded([CORPUS[0]], text_target=[CORPUS[0]], truncation=True)["labels"][0][5:] == [2]


def test_bpe_worked_by_hand() -> None:
    # a a a b d a a a b a c: "aa" occurs 4 times. Then (a, b) and (aa, a) twice each: the lower ids go first, "ab".
    # Then "aa" + "ab" twice. Every other pair occurs once, which is less than `min_frequency`.
    tokenizer = train_tokenizer(["aaabdaaabac"], 1000)
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    assert data["model"]["merges"] == [["a", "a"], ["a", "b"], ["aa", "ab"]]
    assert tokenizer.convert_ids_to_tokens([260, 261, 262]) == ["aa", "ab", "aaab"]
    assert len(tokenizer) == 263
    assert tokenizer.tokenize("aaabdaaabac") == ["aaab", "d", "aaab", "a", "c"]
    assert tokenizer.encode("aab é") == [260, tokenizer.convert_tokens_to_ids("b"), *tokenizer.encode(" é")]
    assert len(train_tokenizer(["aaabdaaabac"], 1000, min_frequency=3)) == 261
    assert len(train_tokenizer(["aaabdaaabac"], 262)) == 262


def test_wordpiece_worked_by_hand() -> None:
    # a ‿a ‿a ‿b ‿d ‿a ‿a ‿a ‿b ‿a ‿c: "‿aa" occurs 3 times; after this merge every pair occurs once.
    tokenizer = train_tokenizer(["aaabdaaabac"], 1000, "wordpiece")
    assert tokenizer.convert_ids_to_tokens([516]) == ["‿aa"]
    assert len(tokenizer) == 517
    assert tokenizer.tokenize("aaabdaaabac") == ["a", "‿aa", "‿b", "‿d", "‿aa", "‿a", "‿b", "‿a", "‿c"]


def test_unigram_takes_a_frequent_word_whole() -> None:
    tokenizer = train_tokenizer(["lower lower lower lower", "low lower"] * 10, 300, "unigram")
    assert tokenizer.tokenize("lower lower") == ["lower", "Ġlower"]


def test_unigram_learns_rare_characters() -> None:
    tokenizer = train_tokenizer(["the lower the better"] * 2000 + ["zqzq zqzq"], 300, "unigram")
    assert tokenizer.tokenize("zqzq") == ["zqzq"]


def test_lines_are_not_split_further() -> None:
    tokenizer = train_tokenizer(["a\r\r\r\r\u2028\u2028"] * 2, 1000)
    assert tokenizer.tokenize("\r\r\r\r") == ["čččč"]
    assert tokenizer.tokenize("\r\r\r\r\u2028\u2028") == ["ččččâĢ¨âĢ¨"]


SAVE_ALL = """
import gzip, random, sys
from pathlib import Path
from training.tokenizer import train_tokenizer

source, folder = sys.argv[1:]
if source == "ties":
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 7))) for _ in range(400)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(300)]
else:
    with gzip.open(source, "rt", encoding="utf-8") as file:
        lines = [next(file) for _ in range(3000)]
for algorithm in ("bpe", "wordpiece", "unigram"):
    train_tokenizer(iter(lines), 1500, algorithm).save_pretrained(Path(folder) / algorithm)
"""


def run_python(script: str, *arguments: str | Path, cwd: Path, **environment: str) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "ties",
        pytest.param(
            str(MULTI30K),
            marks=pytest.mark.skipif(not MULTI30K.exists(), reason=f"{MULTI30K} is absent"),
            id="multi30k",
        ),
    ],
)
def test_two_processes_write_the_same_bytes(source: str, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        run_python(SAVE_ALL, source, tmp_path / seed, cwd=ROOT, PYTHONHASHSEED=seed)
    for algorithm in ALGORITHMS:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            first, second = ((tmp_path / seed / algorithm / name).read_bytes() for seed in ("1", "2"))
            assert first == second, (algorithm, name)


LOAD_ALONE = """
import json, sys
sys.modules["training"] = sys.modules["vanilla_transformer"] = None  # an import of either raises
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps(tokenizer(json.loads(sys.argv[2]))["input_ids"]))
"""


def test_loads_without_this_package(made: Trained, tmp_path: Path) -> None:
    texts = ["", "the lowest bidder", "</s> 日本語\u2028 ##x"]
    output = run_python(LOAD_ALONE, made.folder, json.dumps(texts), cwd=tmp_path)
    assert json.loads(output) == made.trained(texts)["input_ids"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_is_silent(algorithm: Algorithm, capfd: pytest.CaptureFixture[str]) -> None:
    train_tokenizer(CORPUS, 600, algorithm)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lines", [[], ["", " ", "\t\n\u2028"]])
def test_corpus_without_text(algorithm: Algorithm, lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^lines hold no text: there is nothing to train a tokenizer on$"):
        train_tokenizer(iter(lines), 600, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vocabulary_too_small(algorithm: Algorithm) -> None:
    minimum = MINIMUM[algorithm]
    message = rf"^vocab_size must be at least {minimum} for {algorithm}, got {minimum - 1}$"
    with pytest.raises(ValueError, match=message):
        train_tokenizer(CORPUS, minimum - 1, algorithm)


def test_wrong_arguments() -> None:
    wrong: Any = "word"
    with pytest.raises(ValueError, match=r"^algorithm must be one of 'bpe', 'wordpiece', 'unigram', got 'word'$"):
        train_tokenizer(CORPUS, 600, wrong)
    with pytest.raises(ValueError, match=r"^model_max_length must be at least 1, got 0$"):
        train_tokenizer(CORPUS, 600, model_max_length=0)
    with pytest.raises(TypeError, match=r"^lines must be an iterable of strings, got one string$"):
        train_tokenizer("one line", 600)
