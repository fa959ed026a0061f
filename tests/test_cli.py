"""The command `vanilla-transformer translate`: lines in, lines out (B39, B41), its options, errors and signals."""

import gzip
import inspect
import io
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from tests.copier import byte_tokenizer, copier
from tests.recipes import ROOT, module_environment
from tests.tiny import reload, scale, tiny
from tests.tiny import tokenizer as word_tokenizer
from training.data import EncodedPairs
from training.trainer import TranslationTrainer, TranslationTrainingArguments
from vanilla_transformer import VanillaTransformerForConditionalGeneration, translate, translation
from vanilla_transformer.cli import build_parser, main
from vanilla_transformer.model_folder import ModelFolder, find_model, quiet

Run = Callable[..., tuple[int, bytes, str]]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def save(path: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> Path:
    with quiet():
        copier(len(tokenizer), **changes).save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that copies: what the command must print is what it is given."""
    return save(tmp_path_factory.mktemp("copier"), tokenizer)


@pytest.fixture(scope="module")
def unsure(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with little confidence: its scores are not 0."""
    return save(tmp_path_factory.mktemp("unsure"), tokenizer, confidence=0.08)


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `translate` here: exit status, stdout, stderr."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main(["translate", *map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    return run


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the weights fails the test."""

    def load(*arguments: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(ModelFolder, "load", load)


def start(*arguments: object) -> subprocess.Popen[bytes]:
    """The command as a process of its own, with pipes, its output buffered as Python does by default."""
    environment = {name: value for name, value in module_environment().items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "vanilla_transformer.cli", "translate", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


@contextmanager
def killed_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process that does not answer fails its test instead of stopping all."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


HOSTILE = (
    *("", " ", "\t", "\u2028", "\u200b", "\x0c", "\u00a0\u3000"),
    *("a\u2028b", "a\u2029b", "a\x85b", "a\x0bb\x0cc", "a\x1cb\x1db\x1eb", "a\x00b", "lone\rreturn", "two\r\rreturns"),
    *("</s>", "<pad> <s> <unk>", "a ||| b ||| -1.0", '{"json": "\\n"}', "\\n", "%s %d {} $HOME"),
    *("  leading", "trailing  ", "a\tb", "\ufeffmark", "\ufffd", "x\u200dy", "e\u0301\u0301\u0301", "\u202eRTL\u202c"),
    *("שלום עולם", "मानक हिन्दी", "漢字かな交じり文", "🏳️‍🌈👩‍👩‍👧", "𝔘𝔫𝔦", "ﷺ"),
)
LONG = ("A" * 300, "字" * 90, "alpha " * 80)


def test_every_line_comes_back_in_its_place(folder: Path, tmp_path: Path, run: Run) -> None:
    """B39, B41: 10,000 lines, a tenth of them of every hostile kind, in one output line each."""
    rng = random.Random(4)
    words = ["alpha", "beta", "gamma", "delta", "x", "12"]
    lines = [
        rng.choice(HOSTILE) if rng.random() < 0.1 else " ".join(rng.choices(words, k=rng.randint(1, 6)))
        for _ in range(10_000)
    ]
    assert set(HOSTILE) <= set(lines)
    lines[1::2500] = LONG[:1] * 4
    lines[-2:] = LONG[1:]
    (tmp_path / "source.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    arguments = ("--input", tmp_path / "source.txt.gz", "--output", tmp_path / "target.txt.gz", "--num-beams", 1)
    assert run(folder, *arguments) == (0, b"", "")
    written = gzip.decompress((tmp_path / "target.txt.gz").read_bytes()).decode()
    assert written.endswith("\n")
    expected = [
        line.replace("\r", " ") if any(c.isprintable() and not c.isspace() for c in line) else "" for line in lines
    ]
    assert written[:-1].split("\n") == expected


@pytest.mark.parametrize("budget", [64, 512, 8192])
def test_order_and_budget_change_nothing(folder: Path, run: Run, budget: int) -> None:
    lines = list(HOSTILE)
    random.Random(budget).shuffle(lines)
    status, out, _ = run(folder, "--max-batch-tokens", budget, stdin="\n".join(lines).encode())
    assert status == 0
    visible = [line if line.strip().strip("\u200b") else "" for line in lines]
    assert out.decode()[:-1].split("\n") == [line.replace("\r", " ") for line in visible]


def test_where_a_line_ends(folder: Path, tmp_path: Path, run: Run) -> None:
    """B39: CRLF and LF end lines; a byte-order mark at the beginning is no text; the last line needs no end."""
    text = "\ufeffone\r\ntwo\n\ufeffthree\r\r\n\r\nlast".encode()
    expected = "one\ntwo\n\ufeffthree \n\nlast\n".encode()
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text))
    assert run(folder, stdin=text) == (0, expected, "")
    assert run(folder, "--input", tmp_path / "text") == (0, expected, "")
    assert run(folder, "--input", tmp_path / "text.gz") == (0, expected, "")
    assert run(folder, stdin=b"") == (0, b"", "")
    assert run(folder, stdin=b"\n") == (0, b"\n", "")


def test_generated_line_ends_become_spaces(
    folder: Path, run: Run, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PreTrainedTokenizerBase, "batch_decode", lambda self, rows, **options: ["a\nb\r\nc\u2028d"] * len(rows)
    )
    assert run(folder, stdin=b"x\ny\n") == (0, "a b  c\u2028d\n".encode() * 2, "")


def test_best_lists(unsure: Path, run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    """N lines for each input line, blank ones too: index, text, score."""
    lines = ["alpha", "", "beta ||| gamma"]
    status, out, _ = run(unsure, "--nbest", 3, stdin="\n".join(lines).encode())
    assert status == 0
    rows = [re.fullmatch(r"(\d+) \|\|\| (.*) \|\|\| (-?\d+\.\d{4})", line) for line in out.decode()[:-1].split("\n")]
    found = [row.groups() for row in rows if row is not None]
    assert [index for index, _, _ in found] == list("000111222")
    with quiet():
        model = find_model(str(unsure)).load()
    expected = list(translation.hypotheses(model, tokenizer, lines, num_return_sequences=3, with_scores=True))
    assert [row[1:] for row in found] == [(h.text, f"{h.score:.4f}") for several in expected for h in several]
    assert found[0][1] == "alpha" and found[3][1:] == ("", "0.0000") and found[6][1] == "beta ||| gamma"
    assert float(found[0][2]) > float(found[1][2]) >= float(found[2][2])


def test_which_formula_the_length_penalty_is(unsure: Path, run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    """B19: ((5+L)/6)^alpha or L^alpha, as the option says, or else the generation config."""
    length = len(tokenizer("alpha beta")["input_ids"])

    def best(*options: object) -> tuple[str, float]:
        _, out, _ = run(unsure, "--nbest", 1, *options, stdin=b"alpha beta\n")
        _, text, score = out.decode().split(" ||| ")
        return text, float(score)

    total = best("--length-penalty", 0)[1]
    assert total < -0.5
    power = ("--length-penalty-kind", "power")
    gnmt_base, power_base = (5 + length) / 6, length
    for options, penalty in (
        ((), gnmt_base**0.6),
        (("--length-penalty", 0.5), gnmt_base**0.5),
        (("--length-penalty", 0.5, "--num-beams", 1), gnmt_base**0.5),
        (("--length-penalty", 0.5, *power), power_base**0.5),
        (("--length-penalty", 2, "--num-beams", 1, *power), power_base**2),
    ):
        text, score = best(*options)
        assert text == "alpha beta"
        assert score == pytest.approx(total / penalty, abs=2e-4)
    # The formulas rank differently: here L^2 is for a longer one, ((5+L)/6)^2 is not.
    assert best("--length-penalty", 2)[0] == "alpha beta"
    assert len(best("--length-penalty", 2, *power)[0]) > len("alpha beta")


def test_decoding_options_reach_generate(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given, and nothing else: the generation config holds for the rest."""
    seen: list[dict[str, Any]] = []
    generate = VanillaTransformerForConditionalGeneration.generate

    def watched(self: Any, **options: Any) -> Any:
        seen.append({name: value for name, value in options.items() if name not in ("input_ids", "attention_mask")})
        return generate(self, **options)

    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "generate", watched)
    always = {"num_return_sequences": 1, "return_dict_in_generate": False}
    options = ("--num-beams", 3, "--length-penalty", -0.5, "--length-penalty-kind", "power")
    assert run(folder, stdin=b"a\n")[0] == run(folder, *options, stdin=b"a\n")[0] == 0
    chosen = {"num_beams": 3, "length_penalty": -0.5, "length_penalty_kind": "power"}
    assert seen == [always, always | chosen]


def test_attention_file(unsure: Path, tmp_path: Path, run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    """One object a line, against a pass through the model written down here."""
    path = tmp_path / "attention.jsonl"
    lines = ["alpha beta", "", "é\u2028"]
    status, out, err = run(unsure, "--attention", path, stdin="\n".join(lines).encode())
    assert (status, out.decode()[:-1].split("\n"), err) == (0, lines, "")
    found = [json.loads(line) for line in path.read_text("utf-8")[:-1].split("\n")]
    assert found[1] == {"source": [], "target": [], "attention": [], "alignment": []}
    with quiet():
        model = find_model(str(unsure)).load()
        model.set_attn_implementation("eager")
    for line, entry in ((lines[0], found[0]), (lines[2], found[2])):
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        with torch.no_grad():
            weights = model(input_ids=ids, labels=ids, output_attentions=True).cross_attentions[-1][0].mean(dim=0)
        assert entry["source"] == entry["target"] == tokenizer.convert_ids_to_tokens(ids[0].tolist())
        assert torch.tensor(entry["attention"]).sub(weights).abs().max() < 6e-5
        assert all(round(value, 4) == value for row in entry["attention"] for value in row)
        assert entry["alignment"] == [[t, t] for t in range(ids.shape[1])]


def test_attention_is_of_the_last_layer_target_by_source(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A random model of two layers and two heads, its translation not as long as its source; nothing is logged."""
    line = "w7 w8 w9"
    with quiet():
        model, words = scale(tiny(seed=4), 2.0), word_tokenizer()
        model.generation_config.max_length_margin = 3
        words.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
        model.save_pretrained(tmp_path / "model")
        words.save_pretrained(tmp_path / "model")
    logging.warning_once.cache_clear()
    path = tmp_path / "attention.gz"
    status, _, err = run(tmp_path / "model", "--attention", path, stdin=line.encode())
    assert (status, err, caplog.records) == (0, "", [])
    entry = json.loads(gzip.decompress(path.read_bytes()))
    best = next(translation.hypotheses(model, words, [line]))[0]
    source = torch.tensor([words(line)["input_ids"]])
    with torch.no_grad():
        output = model(input_ids=source, labels=torch.tensor([best.ids]), output_attentions=True)
    weights = output.cross_attentions[1][0].mean(dim=0)
    assert weights.shape == (len(entry["target"]), len(entry["source"])) and weights.shape[0] != weights.shape[1]
    assert torch.tensor(entry["attention"]).sub(weights).abs().max() < 6e-5
    assert [source for source, _ in entry["alignment"]] == weights.argmax(dim=1).tolist()
    assert [target for _, target in entry["alignment"]] == list(range(len(best.ids)))


def test_paragraphs_are_split_and_stay_paragraphs(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encode = PreTrainedTokenizerBase.__call__

    def watched(self: Any, text: Any, **options: Any) -> Any:
        seen.extend(text)
        return encode(self, text, **options)

    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", watched)
    text = "  Dr. Smith went home. He slept!  Why?\n\nOne sentence\n"
    arguments = (folder, "--split-sentences", "--source-lang", "en_GB")
    assert run(*arguments, stdin=text.encode()) == (0, b"Dr. Smith went home. He slept! Why?\n\nOne sentence\n", "")
    assert seen == ["Dr. Smith went home.", "He slept!", "Why?", "One sentence"]
    seen.clear()
    german = "Am 3. Mai kam er. Er ging."
    assert run(folder, "--split-sentences", "--source-lang", "de", "--interactive", stdin=german.encode())[0] == 0
    assert seen == ["Am 3. Mai kam er.", "Er ging."]


def test_long_lines_are_told_once_and_translated(folder: Path, run: Run) -> None:
    text = "alpha " * 30
    status, out, err = run(folder, "--max-source-tokens", 20, stdin=f"a\n{text}\n".encode())
    assert (status, out.decode()) == (0, f"a\n{text}\n")
    assert err == "warning: stdin: line 2 has 61 tokens, more than --max-source-tokens\n"
    split = (folder, "--max-source-tokens", 5, "--split-sentences", "--source-lang", "en")
    _, _, err = run(*split, stdin=b"Alpha beta gamma. Alpha beta gamma.\n")
    assert err.count("\n") == 1 and "line 1 has" in err


def test_a_line_that_learned_positions_cannot_hold(
    tmp_path: Path, run: Run, tokenizer: PreTrainedTokenizerBase
) -> None:
    with quiet():
        tiny(vocab_size=len(tokenizer), position_encoding="learned", max_position_embeddings=8).save_pretrained(
            tmp_path
        )
        tokenizer.save_pretrained(tmp_path)
    assert run(tmp_path, stdin=b"a\n#######\n")[0] == 0
    status, out, err = run(tmp_path, "--output", tmp_path / "out", stdin=b"a\n########\n")
    assert (status, out) == (2, b"")
    assert err == "error: stdin: line 2 has 9 tokens, the model 8 learned positions: shorten it\n"
    assert not list(tmp_path.glob("out*"))


def test_sixty_tokens_come_back_whole(
    folder: Path, tmp_path: Path, run: Run, tokenizer: PreTrainedTokenizerBase
) -> None:
    """B18: nowhere a ceiling of twenty: `generate` after reloading, evaluation of the trainer, the command."""
    line = "#" * 59
    ids = torch.tensor([tokenizer(line)["input_ids"]])
    assert ids.shape == (1, 60)
    assert run(folder, stdin=f"{line}\n".encode()) == (0, f"{line}\n".encode(), "")
    with quiet():
        model = reload(copier(len(tokenizer)))
        assert model.generate(ids)[0, 1:].tolist() == ids[0].tolist()
        arguments = TranslationTrainingArguments(
            output_dir=str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True
        )
        encoded = EncodedPairs([(line, line)], tokenizer, tokenizer)
        TranslationTrainer(model, arguments, tokenizer, encoded, encoded, pairs={"eval": [(line, line)]}).evaluate()
    assert (tmp_path / "eval_hypotheses.txt").read_text() == line + "\n"


def test_types_and_int8(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.dtype, type]] = []
    generate = VanillaTransformerForConditionalGeneration.generate

    def watched(self: Any, **options: Any) -> Any:
        seen.append((self.dtype, type(self.lm_head)))
        return generate(self, **options)

    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "generate", watched)
    for options in ((), ("--dtype", "bfloat16"), ("--quantize", "int8")):
        assert run(folder, *options, "--device", "cpu", stdin=b"alpha beta\n\nx\n") == (0, b"alpha beta\n\nx\n", "")
    assert seen[:2] == [(torch.float32, nn.Linear), (torch.bfloat16, nn.Linear)]
    assert seen[2][0] == torch.float32 and seen[2][1] is not nn.Linear


def test_a_target_tokenizer_beside_the_source_s(tmp_path: Path, run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    save(tmp_path, tokenizer)
    word_tokenizer().save_pretrained(tmp_path / "target_tokenizer")
    ids = tokenizer("#$")["input_ids"]
    out = " ".join(f"w{i}" for i in ids[:-1])
    assert run(tmp_path, "--attention", tmp_path / "attention", stdin=b"#$\n") == (0, f"{out}\n".encode(), "")
    entry = json.loads((tmp_path / "attention").read_bytes())
    assert (entry["source"], entry["target"]) == (["#", "$", "</s>"], [*out.split(), "</s>"])


def test_bytes_that_are_not_text(folder: Path, tmp_path: Path, run: Run) -> None:
    """On stdin they are replaced and told; a file with such is refused before work starts."""
    text = b"one\ntwo \xff\xfe.\nthree\n"
    status, out, err = run(folder, stdin=text)
    assert (status, out.decode()) == (0, "one\ntwo \ufffd\ufffd.\nthree\n")
    assert err == "warning: stdin: line 2 is not UTF-8 (invalid start byte): what is wrong is read as U+FFFD\n"
    for name, content in (("text", text), ("text.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
        arguments = ("--input", tmp_path / name, "--output", tmp_path / "out")
        status, out, err = run(folder, *arguments)
        assert (status, out) == (2, b"")
        assert err == f"error: {tmp_path / name}: line 2 is not UTF-8 (invalid start byte): convert the file\n"
        assert not list(tmp_path.glob("out*"))


def test_output_is_whole_or_as_it_was(folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").write_text("old\n")
    (tmp_path / "link").symlink_to("real")
    steps: list[str] = []

    def interrupted(*arguments: Any) -> Any:
        steps.append((tmp_path / "real").read_text())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(translation._Translator, "translate_window", interrupted)
        assert run(folder, "--output", tmp_path / "link", stdin=b"new\n") == (130, b"", "")
    assert steps == ["old\n"]
    assert (tmp_path / "real").read_text() == "old\n"
    assert run(folder, "--output", tmp_path / "link", "--input", tmp_path / "link")[0] == 0
    assert run(folder, "--output", tmp_path / "link", stdin=b"new\n") == (0, b"", "")
    assert (tmp_path / "real").read_text() == "new\n" and (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    for name in ("a.gz", "b.gz"):
        assert run(folder, "--output", tmp_path / name, stdin=b"same\n")[0] == 0
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_output_leaves_other_files_and_permissions_alone(folder: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "out").write_text("old\n")
    (tmp_path / "out").chmod(0o640)
    (tmp_path / "out.tmp").write_text("kept\n")
    arguments = ("--output", tmp_path / "out", "--attention", tmp_path / "out.tmp.2")
    assert run(folder, *arguments, stdin=b"new\n") == (0, b"", "")
    assert (tmp_path / "out").read_text() == "new\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "out.tmp").read_text() == "kept\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp", "out.tmp.2"]
    assert (tmp_path / "out.tmp.2").stat().st_mode == (tmp_path / "out.tmp").stat().st_mode
    (tmp_path / "link").symlink_to("out")
    status, _, err = run(folder, "--output", tmp_path / "link", "--attention", tmp_path / "." / "out", stdin=b"a\n")
    assert status == 2 and err.endswith("error: --attention and --output name the same file\n")
    assert (tmp_path / "out").read_text() == "new\n"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no open files by name here")
def test_pipes_that_the_shell_names(folder: Path, run: Run) -> None:
    """As `--output >(gzip > target.gz)`."""
    read, write = os.pipe()
    try:
        assert run(folder, "--output", f"/dev/fd/{write}", stdin=b"a\n") == (0, b"", "")
        assert os.read(read, 9) == b"a\n"
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.skipif(not Path("/dev/stderr").exists(), reason="no open files by name here")
def test_files_that_the_shell_appends_to(folder: Path, tmp_path: Path) -> None:
    """As `--attention /dev/stderr 2>> log`."""
    log = tmp_path / "log"
    log.write_text("old\n")
    command = [sys.executable, "-m", "vanilla_transformer.cli", "translate", str(folder), "--attention", "/dev/stderr"]
    with log.open("ab") as end:
        out = subprocess.run(
            command, cwd=ROOT, env=module_environment(), input=b"a\n", stdout=subprocess.PIPE, stderr=end, check=True
        ).stdout
    assert out == b"a\n"
    first, second = log.read_text().splitlines()
    assert first == "old" and json.loads(second)["target"]


@pytest.mark.usefixtures("unloaded")
def test_closed_streams_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `<&-` and `>&-` leave them."""
    for name, option in (("stdin", "--input"), ("stdout", "--output")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
            patch.setattr(sys, name, None)
            assert main(["translate", str(folder)]) == 2
        assert capsys.readouterr().err == f"error: {name} is closed: name a file with {option}\n"


def test_a_closed_stdout_that_nothing_is_written_to(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["translate", str(folder), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "a\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipes_are_read_and_written_as_they_are(folder: Path, tmp_path: Path, run: Run) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    os.mkfifo(source)
    os.mkfifo(target)
    read: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: source.write_bytes(b"a \xff\nb\n"), daemon=True),
        threading.Thread(target=lambda: read.append(target.read_bytes()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    status, out, err = run(folder, "--input", source, "--output", target)
    for thread in threads:
        thread.join(timeout=60)
    assert (status, out, read) == (0, b"", ["a \ufffd\nb\n".encode()])
    assert f"{source}: line 1 is not UTF-8" in err
    assert target.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full here")
def test_a_full_disk_is_one_line(folder: Path, run: Run) -> None:
    status, out, err = run(folder, "--output", "/dev/full", stdin=b"a\n")
    assert (status, out) == (1, b"")
    assert err.startswith("error: ") and err.endswith("free some space and run the same command again\n")


def test_interactive_answers_at_once_and_ends_quietly(folder: Path) -> None:
    """From a pipe: each line is answered before the next is sent; Ctrl-C ends without a traceback."""
    with start(folder, "--interactive") as process, killed_after(120, process):
        assert process.stdin and process.stdout and process.stderr
        for line in ("alpha\n", "\n", "  beta\u2028 \n"):
            process.stdin.write(line.encode())
            process.stdin.flush()
            answer = process.stdout.readline().decode()
            assert answer == line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_a_reader_that_goes_ends_it_quietly(folder: Path) -> None:
    """As `yes | vanilla-transformer translate … | head -1`."""
    with start(folder, "--num-beams", 1) as process, killed_after(120, process):
        assert process.stdin and process.stdout and process.stderr

        def feed(stdin: Any) -> None:
            try:
                while True:
                    stdin.write(b"a line\n")
            except BrokenPipeError:
                pass

        thread = threading.Thread(target=feed, args=(process.stdin,), daemon=True)
        thread.start()
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
        thread.join(timeout=60)
        process.stdin = None  # closed with an error by its feeder


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--num-beams 0", "'0' is no whole number of 1 or more"),
        ("--nbest -1", "'-1' is no whole number"),
        ("--max-batch-tokens many", "'many' is no whole number"),
        ("--length-penalty nan", "'nan' is no number"),
        ("--length-penalty-kind wu", "invalid choice: 'wu'"),
        ("--dtype int8", "invalid choice: 'int8'"),
        ("--beams 3", "unrecognized arguments: --beams 3"),
        ("--interactive --input x", "--interactive reads stdin: leave --input out"),
        ("--interactive --output x", "--interactive writes stdout: leave --output out"),
        ("--split-sentences", "--split-sentences needs --source-lang"),
        ("--source-lang en", "--source-lang is for --split-sentences"),
        ("--split-sentences --source-lang en --nbest 2", "--nbest lists translations of one sentence"),
        ("--split-sentences --source-lang en --attention x", "--attention is of one sentence"),
        ("--attention x --output x", "name the same file"),
        ("--nbest 3 --num-beams 2", "--nbest needs as many --num-beams"),
        ("--num-beams 99999999999999999999", "more than the 286 pieces that a translation can begin with"),
        ("--nbest 5", "--nbest 5 needs as many beams: --num-beams is 4"),
        ("--quantize int8 --dtype bfloat16", "--quantize needs --dtype float32"),
        ("--quantize int8 --device cuda", "--quantize needs --device cpu"),
        ("--device abacus", "--device abacus: no such kind of device"),
        ("--device meta", "--device meta: not in this machine"),
        ("--input /no/such/file", "/no/such/file: cannot be read (No such file or directory)"),
        ("--input .", ".: cannot be read (Is a directory)"),
        ("--output /no/such/file", "/no/such/file: cannot be written (No such file or directory)"),
        ("--output setup/../pyproject.toml/x", "cannot be written (Not a directory)"),
        ("--attention .", ".: cannot be written (Is a directory)"),
    ],
)
def test_what_is_wrong_is_one_line_before_the_model_is_loaded(
    folder: Path, run: Run, options: str, message: str
) -> None:
    status, out, err = run(folder, *options.split(), stdin=b"a\n")
    assert (status, out) == (2, b"")
    assert message in err.strip().split("\n")[-1]
    assert "Traceback" not in err


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "not a model's folder: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read (Expecting property name"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json: not an object of settings"),
        (
            lambda f: edit(f / "config.json", model_type="marian"),
            "a model of type 'marian', not 'vanilla_transformer'",
        ),
        (lambda f: edit(f / "config.json", d_model="x"), "config.json: `d_model` must be"),
        (lambda f: edit(f / "config.json", vocab_size=100), "the tokenizer has 286 pieces, the model 100 embeddings"),
        (lambda f: edit(f / "config.json", d_model=64), "the weights do not fit config.json: lm_head.weight is"),
        (
            lambda f: edit(f / "config.json", encoder_layers=2),
            "the weights do not fit config.json: model.encoder.layers.1",
        ),
        (lambda f: [path.unlink() for path in f.glob("tokenizer*")], "it has no tokenizer (tokenizer.json)"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "the tokenizer cannot be loaded (Expecting property name"),
        (lambda f: (f / "model.safetensors").unlink(), "the model cannot be loaded (Error no file named"),
        (lambda f: (f / "model.safetensors").write_bytes(b"0" * 99), "the model cannot be loaded (Error while"),
        (lambda f: edit(f / "generation_config.json", length_penalty_kind="wu"), "`length_penalty_kind` is 'gnmt'"),
        (
            lambda f: edit(f / "generation_config.json", length_penalty=1e3),
            "`length_penalty` is an exponent of at most",
        ),
        (
            lambda f: edit(f / "generation_config.json", num_beams=1, coverage_penalty=0.2),
            "`coverage_penalty` needs beam search: `num_beams` is 1",
        ),
        (lambda f: (f / "generation_config.json").write_text("{"), "generation_config.json: cannot be read"),
    ],
)
def test_what_a_folder_lacks_is_one_line(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, run: Run, change: Callable[[Path], Any], message: str
) -> None:
    change(save(tmp_path / "model", tokenizer))
    status, out, err = run(tmp_path / "model", stdin=b"a\n")
    assert (status, out) == (2, b"")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_models_that_are_not_there(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nowhere", str(tmp_path / "nowhere"), "tests/nowhere"):
        assert run(name) == (2, b"", f"error: {name}: no such folder\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    status, _, err = run("someone/some-model")
    assert status == 2 and err.startswith("error: someone/some-model: no such folder, and no such model on the Hub (")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("unloaded")
def test_a_missing_package_is_one_line_with_the_remedy(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    status, _, err = run(folder, "--split-sentences", "--source-lang", "en")
    assert (status, err) == (2, "error: --split-sentences needs sentencex: pip install 'vanilla-transformer[split]'\n")


def test_a_torch_without_int8_is_one_line(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.ao.quantization", None)
    status, _, err = run(folder, "--quantize", "int8")
    assert status == 2 and err.startswith("error: torch has no int8 for a CPU any more: ") and err.count("\n") == 1


def test_help_tells_defaults_and_the_formula(run: Run) -> None:
    status, out, _ = run("--help")
    text = " ".join(out.decode().split())
    assert status == 0
    assert "divided by ((5+L)/6)^alpha or L^alpha" in text and "gnmt: ((5+L)/6)^alpha" in text
    batch_tokens = inspect.signature(translate).parameters["max_batch_tokens"].default
    assert f"padding counted (default: {batch_tokens})" in text
    assert "(default: stdin)" in text and "(default: stdout)" in text and "(default: 1024)" in text


def test_the_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="vanilla-transformer")
    assert command.value == "vanilla_transformer.cli:main"


def test_the_readme_s_commands_are_understood() -> None:
    commands = re.findall(
        r"^vanilla-transformer (translate .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE
    )
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(command, comments=True)
        build_parser().parse_args(itertools.takewhile(lambda word: word not in "<>|", words))
