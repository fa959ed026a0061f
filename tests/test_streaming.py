"""A streamed corpus: the same batches every time, continued where it was, and nothing of it held but a block (B32)."""

import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerBase

from tests.recipes import SMALL_TRAINING, run_module, write_recipe, write_text
from training.data import DataOptions, Pair, load_corpus
from training.encoding import PairEncoder, encode_texts
from training.errors import UsageError
from training.recipe import parse_recipe
from training.streaming import StreamedBatches, StreamPosition
from training.tokenizer import train_tokenizer
from training.train import TrainedModel, train

PAIRS: list[Pair] = [
    (f"the cat {i}" + " sleeps" * (i % 5), f"die Katze {i}" + " schläft" * (i % 3)) for i in range(50)
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([side for pair in PAIRS for side in pair], 400)


def stream(pairs: list[Pair]) -> datasets.IterableDataset:
    columns = {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}
    return datasets.Dataset.from_dict(columns).to_iterable_dataset()


@pytest.fixture
def batches(tokenizer: PreTrainedTokenizerBase) -> Any:
    def make(pairs: list[Pair] = PAIRS, buffer_size: int = 20, max_length: int | None = None, **options: Any) -> Any:
        encoder = PairEncoder(tokenizer, tokenizer, max_length, None)
        return StreamedBatches(stream(pairs), encoder, 64, buffer_size, **options)

    return make


def texts(batch: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase) -> list[Pair]:
    def text(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    return [(text(pair["input_ids"]), text(pair["labels"])) for pair in batch]


def a_pass(made: StreamedBatches, pairs: int = len(PAIRS)) -> list[list[dict[str, list[int]]]]:
    """The batches of one pass over so many usable pairs."""
    taken: list[list[dict[str, list[int]]]] = []
    for batch in made:
        taken.append(batch)
        if sum(map(len, taken)) >= pairs:
            break
    return taken


def test_a_pass_gives_each_pair_once_within_the_budget(batches: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    taken = a_pass(batches())
    assert Counter(pair for batch in taken for pair in texts(batch, tokenizer)) == Counter(PAIRS)
    for batch in taken:
        for side in ("input_ids", "labels"):
            assert len(batch) * max(len(pair[side]) for pair in batch) <= 64


def test_only_a_block_is_shuffled_together(batches: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """The first batches hold the pairs of the first block alone, in another order than the text's."""
    taken = [pair for batch in a_pass(batches(), 20) for pair in texts(batch, tokenizer)]
    assert sorted(taken) == sorted(PAIRS[:20])
    assert taken != PAIRS[:20]


@pytest.mark.parametrize("buffer_size", [3, 10, 16, 50])
def test_a_block_is_what_the_buffer_holds(
    batches: Any, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, buffer_size: int
) -> None:
    """However many pairs are encoded at once; and the next block begins where it ends."""
    monkeypatch.setattr("training.streaming.ENCODED_AT_ONCE", 10)
    blocks: dict[int, list[Pair]] = {}
    made, starts = batches(buffer_size=buffer_size), {}
    for number, batch in enumerate(made, start=1):
        position = made.position_after(number - 1)
        if position.epoch:
            break
        blocks.setdefault(position.block, []).extend(texts(batch, tokenizer))
        starts[position.block] = position.pair
    expected = [PAIRS[i : i + buffer_size] for i in range(0, len(PAIRS), buffer_size)]
    assert [sorted(pairs) for pairs in blocks.values()] == [sorted(pairs) for pairs in expected]
    assert list(starts.values()) == list(range(0, len(PAIRS), buffer_size))


def test_order_is_the_seeds(batches: Any) -> None:
    first, again = (list(islice(batches(seed=5), 60)) for _ in range(2))
    assert first == again
    assert first != list(islice(batches(seed=6), 60))
    one_pass = len(a_pass(batches(seed=5)))
    assert first[:one_pass] != first[one_pass : 2 * one_pass]


def test_processes_take_equal_shares_of_one_list(batches: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """What two processes take together is what one takes, but for what fills up the end of a block."""
    alone = [texts(batch, tokenizer) for batch in islice(batches(buffer_size=50), 12)]
    shares = [list(islice(batches(buffer_size=50, num_replicas=2, rank=rank), 6)) for rank in range(2)]
    together = [texts(batch, tokenizer) for pair in zip(*shares, strict=True) for batch in pair]
    assert together == alone


@pytest.mark.parametrize("start", [0, 1, 7, 20, 43])
def test_a_stream_goes_on_from_any_batch(batches: Any, start: int) -> None:
    """The position after n batches, kept as JSON, gives batch n + 1 onwards, over blocks and passes."""
    made = batches(seed=3)
    taken = list(islice(made, 60))
    before = batches(seed=3)
    for _ in islice(before, start + 1):  # a loader reads one ahead
        pass
    kept = json.loads(json.dumps(vars(before.position_after(start))))
    later = batches(seed=3)
    later.start = StreamPosition(**kept)
    assert list(islice(later, 60 - start)) == taken[start:]
    assert later.position_after(3) == made_position(batches, start + 3)


def made_position(batches: Any, n: int) -> StreamPosition:
    made = batches(seed=3)
    for _ in islice(made, n + 1):
        pass
    position: StreamPosition = made.position_after(n)
    return position


def test_what_is_left_out_is_counted(batches: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    pairs = [*PAIRS, ("", "leer"), (" ".join(["long"] * 30), "kurz"), (" ".join(["very"] * 99), "sehr")]
    lengths = [len(ids) for ids in encode_texts(tokenizer, [source for source, _ in pairs])]
    limit = lengths[-2]
    made = batches(pairs, buffer_size=100, max_length=limit)
    over_budget = sum(length > 64 for length in lengths[:-1])
    assert over_budget == 1
    for _ in islice(made, 3 * len(a_pass(batches()))):
        pass
    position = made.position_after(3 * len(a_pass(batches())) - 1)
    assert position.epoch >= 1
    assert position.used == len(PAIRS) * position.epoch
    counts = made.counts(position)
    expected = {"with an empty side": 1, f"longer than {limit} tokens": 1, "over 64 tokens": 1}
    assert counts == {name: count * position.epoch for name, count in expected.items()}


def test_nothing_usable_is_an_error_and_no_endless_loop(batches: Any) -> None:
    with pytest.raises(UsageError, match=r"no pair of the corpus can be used: .*'with an empty side': 2"):
        next(iter(batches([("", "a"), ("b", " ")])))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = write_recipe(tmp_path / "tiny", training=SMALL_TRAINING.replace("max_steps: 3", "max_steps: 20"))
    options = [str(recipe), "--streaming", "--disable_tqdm", "true", "--max_batch_tokens", "64"]
    for side, number in (("source", 0), ("target", 1)):
        options += [f"--train_{side}", write_text(tmp_path / f"train.{side}", [pair[number] for pair in PAIRS[:10]])]
    return options


def run(command: list[str], folder: Path, *options: str) -> TrainedModel:
    return train(parse_recipe([*command, "--output_dir", str(folder), *options]))


@pytest.mark.parametrize(("accumulation", "ended_at"), [("1", 5), ("3", 5), ("1", 20)])
def test_a_streamed_run_is_finished_and_continued_exactly(
    command: list[str], tmp_path: Path, accumulation: str, ended_at: int
) -> None:
    """Ten pairs are enough for twenty updates; ended at the fifth or the last, the run goes on to the same results."""
    options = ["--save_steps", "5", "--gradient_accumulation_steps", accumulation, "--shuffle_buffer_size", "4"]
    whole = run(command, tmp_path / "whole", *options)
    last = f"checkpoint-{ended_at}"
    shutil.copytree(tmp_path / "whole" / last, tmp_path / "again" / last)
    again = run(command, tmp_path / "again", *options)
    assert whole.trainer.state.global_step == again.trainer.state.global_step == 20
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert weights[0] == weights[1]
    names = ("loss", "learning_rate", "grad_norm", "epoch", "padding_share", "train_loss")
    logs = [[[e.get(name) for name in names] for e in made.trainer.state.log_history] for made in (whole, again)]
    assert logs[0] == logs[1]
    assert whole.results["epoch"] >= 2
    assert whole.results["train_pairs"] == again.results["train_pairs"]
    assert whole.results["train_pairs"]["used"] >= 10
    assert whole.results["train_padding_share"] == again.results["train_padding_share"]


def test_a_finished_streamed_run_is_evaluated_again(command: list[str], tmp_path: Path) -> None:
    first, second = (run(command, tmp_path / "run", "--max_steps", "4") for _ in range(2))
    assert second.results["train_pairs"] == first.results["train_pairs"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_data_set_is_streamed_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in PAIRS]
    (folder / "train.jsonl").write_text("\n".join(rows))
    (folder / "validation.jsonl").write_text("\n".join(rows[:3]))
    corpus = load_corpus(DataOptions(dataset=str(folder), source_lang="de", streaming=streaming, target_lang="en"), 1)
    assert isinstance(corpus.train, datasets.IterableDataset) == streaming
    assert [(row["source"], row["target"]) for row in corpus.train] == [(target, source) for source, target in PAIRS]
    assert list(corpus.texts("target", "source"))[49:51] == [PAIRS[49][0], PAIRS[0][1]]
    assert corpus.validation == [(target, source) for source, target in PAIRS[:3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_steps", "-1"], "--streaming needs --max_steps"),
        (["--save_strategy", "epoch"], "--streaming needs `save_strategy: steps`"),
        (["--shuffle_buffer_size", "0"], "`shuffle_buffer_size` must be at least 1, got 0"),
    ],
)
def test_what_a_stream_cannot_do_is_said_at_once(
    command: list[str], tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(command, tmp_path / "run", *options)


def test_unequal_files_end_the_command_before_training(command: list[str], tmp_path: Path) -> None:
    write_text(tmp_path / "train.target", [target for _, target in PAIRS[:9]])
    done = run_module("training.train", *command, "--output_dir", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path}/train.source has 10 lines but ")
    assert not (tmp_path / "run").exists()
