"""Nothing lost: checkpoints whole or not there, and a run that was ended is the unbroken one once continued (B32)."""

import errno
import json
import logging
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

import training.checkpoints
import training.interruption
import training.resuming
from tests.recipes import module_environment, write_recipe, write_text
from tests.tiny import tiny
from training.checkpoints import INCOMPLETE, checkpoints, clear_leftovers, is_scheduled, problem
from training.continuing import find_checkpoint
from training.data import EncodedPairs, Pair
from training.errors import InterruptionError, SavingError, UsageError, run_command
from training.recipe import parse_recipe
from training.tokenizer import train_tokenizer
from training.train import TrainedModel, train
from training.trainer import TranslationTrainer, TranslationTrainingArguments, noam_rate

PAIRS: list[Pair] = [(" ".join("ab"[: 1 + i % 2]) + f" {i}", f"x {i} " + "y " * (i % 7)) for i in range(28)]
BATCHES = 7  # an epoch; two to an update
UPDATES_PER_EPOCH = 4
# 60 updates, three an epoch; a dropout of 0.1 and the paper's schedule.
TRAINING = "vocab_size: 400\nmax_batch_tokens: 256\nmax_steps: 60\nwarmup_steps: 10\nlogging_steps: 7\n"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([side for pair in PAIRS for side in pair], 300)


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[..., TranslationTrainer]:
    def trainer(folder: str = "run", **options: Any) -> TranslationTrainer:
        defaults: dict[str, Any] = {
            "report_to": "none",
            "disable_tqdm": True,
            "max_steps": 10,
            "max_batch_tokens": 36,
            "gradient_accumulation_steps": 2,
            "warmup_steps": 3,
            "logging_steps": 4,
            "save_strategy": "steps",
            "save_steps": 5,
        }
        arguments = TranslationTrainingArguments(output_dir=str(tmp_path / folder), **defaults | options)
        encoded = EncodedPairs(PAIRS, tokenizer, tokenizer)
        set_seed(3)
        model = tiny(vocab_size=len(tokenizer), dropout=0.2).train()
        made = TranslationTrainer(model, arguments, tokenizer, encoded, encoded, pairs={"eval": PAIRS[:2]})
        assert len(made.get_train_dataloader()) == BATCHES
        return made

    return trainer


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoints(folder)]


def same_weights(one: TranslationTrainer, other: TranslationTrainer) -> bool:
    weights = other.model.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in one.model.state_dict().items())


def history(trainer: TranslationTrainer) -> list[dict[str, Any]]:
    """The log without the lines and numbers that are about time."""
    timed = ("runtime", "per_second")
    return [
        {name: value for name, value in entry.items() if not name.endswith(timed)}
        for entry in trainer.state.log_history
    ]


class Spy(TrainerCallback):
    """Keeps the rate of each update, and the batches that a trainer draws."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.rates: list[float] = []
        self.batches: list[list[list[int]]] = []
        step = trainer.training_step

        def training_step(model: Any, inputs: Any, *rest: Any) -> Any:
            self.batches.append(inputs["labels"].tolist())
            return step(model, inputs, *rest)

        trainer.training_step = training_step
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **kwargs: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


class Raise(TrainerCallback):
    """Sends this process a signal in the middle of an update."""

    def __init__(self, update: int, *signums: signal.Signals) -> None:
        self.update = update
        self.signums = signums

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.update - 1:
            for signum in self.signums:
                signal.raise_signal(signum)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (5, {}),
        (5, {"eval_strategy": "steps", "eval_steps": 1}),
        (4, {"eval_strategy": "epoch", "save_steps": 4}),
        (7, {"gradient_accumulation_steps": 1, "save_steps": 7, "logging_steps": 1}),
        (3, {"save_steps": 3, "logging_steps": 5, "lr_scheduler_type": "cosine", "max_grad_norm": 1.0}),
    ],
    ids=["within an epoch", "evaluating", "between epochs", "no accumulation", "another schedule"],
)
def test_continued_run_is_the_unbroken_one(
    make: Callable[..., TranslationTrainer], caplog: pytest.LogCaptureFixture, step: int, options: dict[str, Any]
) -> None:
    """B32: ten updates, or some and then the rest: same batches, rates, log, weights and optimizer; no warning."""
    unbroken = make(**options)
    whole = Spy(unbroken)
    unbroken.train()
    assert len(whole.rates) == 10

    torch.manual_seed(99)
    np.random.seed(99)
    continued = make("other", **options)
    rest = Spy(continued)
    with caplog.at_level(logging.WARNING):
        continued.train(resume_from_checkpoint=f"{unbroken.args.output_dir}/checkpoint-{step}")
    assert not [record for record in caplog.records if "missing" in record.getMessage()]
    assert rest.rates == whole.rates[step:]
    assert rest.batches == whole.batches[-len(rest.batches) :]
    assert len(rest.batches) < len(whole.batches)
    assert same_weights(unbroken, continued)
    assert history(continued) == history(unbroken)
    ours_state, theirs_state = (t.optimizer.state_dict()["state"] for t in (continued, unbroken))
    for key, state in theirs_state.items():
        assert all(torch.equal(value, ours_state[key][name]) for name, value in state.items())


def test_a_run_of_the_paper_schedule_goes_on_with_the_rate_of_its_update(
    make: Callable[..., TranslationTrainer],
) -> None:
    """B45: no second warm-up."""
    trainer = make()
    trainer.train()
    continued = make()
    spy = Spy(continued)
    continued.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-5"))
    assert spy.rates == [noam_rate(n, 16, 3) for n in range(6, 11)]


@pytest.mark.parametrize("updates", [6, 8], ids=["within an epoch", "at its end"])
def test_nothing_is_trained_after_the_last_update(make: Callable[..., TranslationTrainer], updates: int) -> None:
    trainer = make(max_steps=updates)
    trainer.train()
    continued = make(max_steps=updates)
    spy = Spy(continued)
    metrics = continued.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / f"checkpoint-{updates}"))
    assert not spy.batches
    assert same_weights(trainer, continued)
    assert continued.state.global_step == updates
    assert metrics.metrics["train_loss"] == trainer.state.log_history[-1]["train_loss"] > 1


def test_updates_are_counted_by_the_batches_there_are(make: Callable[..., TranslationTrainer]) -> None:
    trainer = make(max_steps=-1, num_train_epochs=2.5)
    assert trainer.planned() == (3, 10)
    trainer.train()
    assert trainer.state.global_step == 10
    assert trainer.state.epoch == pytest.approx(2 + 4 / 7)
    assert make(max_steps=9).planned() == (3, 9)


def test_a_checkpoint_is_not_seen_before_it_is_whole(
    make: Callable[..., TranslationTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(save_steps=2, max_steps=4)
    folder = Path(trainer.args.output_dir)
    seen: list[list[str]] = []
    flush = training.checkpoints._flush

    def spy(path: Path) -> None:
        seen.append(names(folder))
        flush(path)

    monkeypatch.setattr(training.checkpoints, "_flush", spy)
    trainer.train()
    assert seen[0] == []
    assert seen[-2:] == [["checkpoint-2"], ["checkpoint-2", "checkpoint-4"]]
    assert [problem(path) for path in checkpoints(folder)] == [None, None]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2", "checkpoint-4"]


def test_rotation_keeps_the_newest_and_the_best_by_their_true_names(make: Callable[..., TranslationTrainer]) -> None:
    trainer = make(
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        max_steps=6,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,
        learning_rate=0.2,
    )
    trainer.train()
    folder = Path(trainer.args.output_dir)
    assert names(folder) == ["checkpoint-1", "checkpoint-6"]
    assert trainer.state.best_model_checkpoint == str(folder / "checkpoint-1")
    for path in checkpoints(folder):
        state = json.loads((path / "trainer_state.json").read_text())
        assert state["best_model_checkpoint"] == str(folder / "checkpoint-1")
    best = load_file(folder / "checkpoint-1" / "model.safetensors")
    assert all(torch.equal(trainer.model.state_dict()[name], value) for name, value in best.items())


def _no_space(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _no_space_in_tokenizers(*args: Any, **kwargs: Any) -> None:
    raise Exception("No space left on device (os error 28)")


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Have the system refuse to let files grow over so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("broken", ["weights", "optimizer", "state", "tokenizer"])
def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(
    make: Callable[..., TranslationTrainer],
    monkeypatch: pytest.MonkeyPatch,
    file_limit: Callable[[int], None],
    broken: str,
) -> None:
    trainer = make(save_steps=2, max_steps=2)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sizes = {path.name: path.stat().st_size for path in before}

    trainer = make(save_steps=2, max_steps=6)
    if broken == "weights":
        file_limit(sizes["model.safetensors"] - 1)
    elif broken == "optimizer":
        assert sizes["optimizer.pt"] > sizes["model.safetensors"]
        file_limit(sizes["optimizer.pt"] - 1)
    elif broken == "state":
        monkeypatch.setattr(training.resuming, "write_manifest", _no_space)
    else:
        monkeypatch.setattr(type(trainer.processing_class), "save_pretrained", _no_space_in_tokenizers)
    with pytest.raises(
        SavingError, match=r"run/checkpoint-4 could not be saved: .* MB free\); .*/run/checkpoint-2 is"
    ):
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert names(folder) == ["checkpoint-2"]
    assert not (folder / INCOMPLETE).exists()


def _damage(path: Path, kind: str) -> None:
    data = (path / "model.safetensors").read_bytes()
    if kind == "short":
        (path / "model.safetensors").write_bytes(data[:-100])
    elif kind == "one bit":
        (path / "model.safetensors").write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif kind == "zeros":
        file = path / "optimizer.pt"
        file.write_bytes(bytes(file.stat().st_size))
    elif kind == "missing":
        (path / "rng_state.pth").unlink()
    elif kind == "no JSON":
        (path / "trainer_state.json").write_text("{")
    else:
        for file in path.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("short", "model.safetensors is not what was written"),
        ("one bit", "model.safetensors is not what was written"),
        ("zeros", "optimizer.pt is not what was written"),
        ("missing", "rng_state.pth is missing"),
        ("no JSON", "trainer_state.json is not what was written"),
        ("empty", "checkpoint.json is missing or damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    make: Callable[..., TranslationTrainer], capsys: pytest.CaptureFixture[str], kind: str, named: str
) -> None:
    trainer = make(save_steps=2, max_steps=4)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    _damage(folder / "checkpoint-4", kind)
    capsys.readouterr()
    with pytest.raises(UsageError, match=named):
        find_checkpoint(make(resume_from_checkpoint=str(folder / "checkpoint-4")).args)
    assert find_checkpoint(trainer.args) == folder / "checkpoint-2"
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"{folder}/checkpoint-4 is damaged: its {named}; renamed to _damaged-checkpoint-4")
    assert sorted(path.name for path in folder.iterdir()) == ["_damaged-checkpoint-4", "checkpoint-2"]
    _damage(folder / "checkpoint-2", kind)
    assert find_checkpoint(trainer.args) is None


def test_leftovers_of_a_killed_run(tmp_path: Path) -> None:
    """Half written and half removed folders go; a checkpoint that was about to be replaced comes back."""
    for name in ("checkpoint-7", "replaced-checkpoint-5", "replaced-checkpoint-6"):
        (tmp_path / INCOMPLETE / name).mkdir(parents=True)
    (tmp_path / "checkpoint-6").mkdir()
    (tmp_path / "checkpoint-6" / "new").touch()
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-5", "checkpoint-6"]
    assert (tmp_path / "checkpoint-6" / "new").exists()
    clear_leftovers(tmp_path / "none")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(make: Callable[..., TranslationTrainer], signum: signal.Signals) -> None:
    """The checkpoint for it alone changes nothing later: it neither counts nor stays."""
    options = {"save_steps": 2, "save_total_limit": 2}
    unbroken = make(**options)
    unbroken.train()
    before = signal.getsignal(signum)
    trainer = make("other", **options)
    trainer.add_callback(Raise(7, signum))
    folder = Path(trainer.args.output_dir)
    with (
        pytest.raises(InterruptionError, match=f"{signum.name}: saved {folder}/checkpoint-7; the same") as caught,
        trainer.stop,
    ):
        trainer.train()
    assert caught.value.status == 128 + signum
    assert signal.getsignal(signum) == before
    assert names(folder) == ["checkpoint-4", "checkpoint-6", "checkpoint-7"]
    assert [is_scheduled(path) for path in checkpoints(folder)] == [True, True, False]

    continued = make("other", **options)
    continued.train(resume_from_checkpoint=str(folder / "checkpoint-7"))
    assert names(folder) == names(Path(unbroken.args.output_dir)) == ["checkpoint-8", "checkpoint-10"]
    assert same_weights(unbroken, continued)
    assert history(continued) == history(unbroken)


@pytest.mark.parametrize("save_steps", [2, 50])
def test_a_signal_at_the_end_of_an_epoch_waits_for_its_evaluation(
    make: Callable[..., TranslationTrainer], save_steps: int
) -> None:
    options = {"save_steps": save_steps, "eval_strategy": "epoch"}
    unbroken = make(**options)
    unbroken.train()
    trainer = make("other", **options)
    trainer.add_callback(Raise(UPDATES_PER_EPOCH, signal.SIGTERM))
    with pytest.raises(InterruptionError), trainer.stop:
        trainer.train()
    last = checkpoints(Path(trainer.args.output_dir))[-1]
    assert last.name == "checkpoint-4"
    assert is_scheduled(last) == (save_steps == 2)
    continued = make("other", **options)
    continued.train(resume_from_checkpoint=str(last))
    assert history(continued) == history(unbroken)
    assert same_weights(unbroken, continued)


@pytest.fixture
def bleu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the evaluations to come find these."""

    def found(*values: float) -> None:
        made = iter(values)
        monkeypatch.setattr("training.trainer.corpus_bleu", lambda *_: (next(made), "signature"))

    return found


EARLY = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "early_stopping_patience": 2}


def test_an_early_stop_is_remembered(make: Callable[..., TranslationTrainer], bleu: Callable[..., None]) -> None:
    """By the checkpoint of its update, and by those before what there was towards it; more patience goes on."""
    bleu(5, 4, 3)
    unbroken = make(**EARLY)
    unbroken.train()
    assert unbroken.state.global_step == 3
    folder = Path(unbroken.args.output_dir)
    for update, values in ((3, []), (2, [3.0])):
        bleu(*values)
        continued = make("other", **EARLY)
        continued.train(resume_from_checkpoint=str(folder / f"checkpoint-{update}"))
        assert continued.state.global_step == 3
        assert same_weights(unbroken, continued)
        assert history(continued) == history(unbroken)
    bleu(3, 3)
    patient = make("other", **EARLY | {"early_stopping_patience": 4})
    patient.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert patient.state.global_step == 5


BEST = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_steps": 2,
    "max_steps": 6,
    "load_best_model_at_end": True,
    "metric_for_best_model": "bleu",
}


@pytest.mark.parametrize(
    ("found", "options", "best"),
    [
        ((1, 5, 9, 2, 2, 2), {}, "checkpoint-2"),
        ((1, 5, 9, 2, 2, 2), {"save_strategy": "best"}, "checkpoint-3"),
    ],
    ids=["at an update without one", "at a new best"],
)
def test_best_checkpoint_is_never_one_of_a_signal_alone(
    make: Callable[..., TranslationTrainer],
    bleu: Callable[..., None],
    found: tuple[float, ...],
    options: dict[str, Any],
    best: str,
) -> None:
    """It would be removed; the best of the options' own is kept, wherever the run's folder is when it goes on."""
    bleu(*found)
    unbroken = make("unbroken", **BEST | options)
    unbroken.train()
    assert Path(str(unbroken.state.best_model_checkpoint)).name == best
    bleu(*found)
    trainer = make("ended", **BEST | options)
    trainer.add_callback(Raise(3, signal.SIGTERM))
    with pytest.raises(InterruptionError), trainer.stop:
        trainer.train()
    folder = Path(trainer.args.output_dir).rename(Path(trainer.args.output_dir).with_name("moved"))
    continued = make("moved", **BEST | options)
    continued.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert continued.state.best_model_checkpoint == str(folder / best)
    assert names(folder) == names(Path(unbroken.args.output_dir))
    assert same_weights(unbroken, continued)


def test_options_of_a_continued_run_are_used(make: Callable[..., TranslationTrainer]) -> None:
    """Rate, betas, decay, and when it logs, evaluates and saves; what began the run is not done again."""
    evaluating = {"eval_strategy": "steps", "eval_steps": 5, "eval_on_start": True}
    first = make(**evaluating)
    first.train()
    changed = {"learning_rate": 0.1, "adam_beta2": 0.9, "weight_decay": 0.1, "warmup_steps": 4}
    continued = make("other", **evaluating | changed | {"logging_steps": 1, "eval_steps": 3, "save_steps": 2})
    spy = Spy(continued)
    continued.train(resume_from_checkpoint=str(Path(first.args.output_dir) / "checkpoint-5"))
    assert spy.rates == [0.1 * noam_rate(n, 16, 4) for n in range(6, 11)]
    groups = continued.optimizer.param_groups
    assert [(group["betas"], group["weight_decay"]) for group in groups] == [((0.9, 0.9), 0.1), ((0.9, 0.9), 0.0)]
    log = continued.state.log_history
    assert [entry["step"] for entry in log if "loss" in entry] == [4, 6, 7, 8, 9, 10]
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [0, 5, 6, 9, 10]
    assert names(Path(continued.args.output_dir)) == ["checkpoint-6", "checkpoint-8", "checkpoint-10"]


def test_an_early_stop_at_the_end_of_an_epoch_is_made_up_for(
    make: Callable[..., TranslationTrainer], bleu: Callable[..., None]
) -> None:
    """The checkpoint of its update is older than the evaluation."""
    options = EARLY | {"eval_strategy": "epoch", "save_steps": 4, "early_stopping_patience": 1}
    bleu(5, 4)
    unbroken = make(**options)
    unbroken.train()
    assert unbroken.state.global_step == 8
    bleu(4)
    continued = make("other", **options)
    continued.train(resume_from_checkpoint=str(Path(unbroken.args.output_dir) / "checkpoint-8"))
    assert continued.state.global_step == 8
    assert same_weights(unbroken, continued)
    assert history(continued) == history(unbroken)


def test_early_stopping_can_begin_in_a_continued_run(
    make: Callable[..., TranslationTrainer], bleu: Callable[..., None]
) -> None:
    bleu(5, 4, 3)
    begun = make(**EARLY | {"early_stopping_patience": 0, "metric_for_best_model": "bleu", "max_steps": 3})
    begun.train()
    bleu(4, 3)
    continued = make(**EARLY)
    continued.train(resume_from_checkpoint=str(Path(begun.args.output_dir) / "checkpoint-1"))
    assert continued.state.global_step == 3


def test_a_signal_in_the_update_of_an_early_stop_is_one_after_training(
    make: Callable[..., TranslationTrainer], bleu: Callable[..., None]
) -> None:
    bleu(5, 4, 3)
    trainer = make(**EARLY | {"save_strategy": "epoch", "save_total_limit": 1})
    trainer.add_callback(Raise(3, signal.SIGTERM))
    with trainer.stop:
        trainer.train()
    assert trainer.stop.agreed(trainer.args) == signal.SIGTERM
    [last] = checkpoints(Path(trainer.args.output_dir))
    assert last.name == "checkpoint-3"
    assert is_scheduled(last)


def test_a_second_signal_ends_at_once(
    make: Callable[..., TranslationTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not the same one sent on by a launcher."""
    trainer = make()
    trainer.add_callback(Raise(3, signal.SIGTERM, signal.SIGINT))
    with pytest.raises(InterruptionError, match=r"SIGTERM: saved .*/checkpoint-3"), trainer.stop:
        trainer.train()
    monkeypatch.setattr(training.interruption, "SAME_SIGNAL_SECONDS", 0.0)
    trainer = make("other")
    trainer.add_callback(Raise(3, signal.SIGTERM, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), trainer.stop:
        trainer.train()
    assert trainer.state.global_step == 2
    assert names(Path(trainer.args.output_dir)) == []


def test_signals_are_left_alone_outside_the_main_thread(make: Callable[..., TranslationTrainer]) -> None:
    trainer = make(max_steps=1)
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with trainer.stop:
            assert signal.getsignal(signal.SIGTERM) == before
            trainer.train()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("no"), 2, "error: no\n"),
        (SavingError("full"), 1, "error: full\n"),
        (InterruptionError(signal.SIGTERM, "saved x"), 143, "SIGTERM: saved x\n"),
        (KeyboardInterrupt(), 130, "SIGINT: ended\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "f"),
            1,
            "error: [Errno 28] No space left on device: 'f': free some space and run the same command again\n",
        ),
    ],
)
def test_how_a_command_ends(capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        run_command(main)
    assert (caught.value.code, capsys.readouterr().err) == (status, line)


def test_sigterm_outside_training_ends_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: signal.raise_signal(signal.SIGTERM))
    assert (caught.value.code, capsys.readouterr().err) == (143, "SIGTERM: ended\n")
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(FileNotFoundError):
        run_command(lambda: Path("/nowhere").rmdir())


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """RECIPE and its options, but for the output folder."""
    folder = tmp_path_factory.mktemp("recipe")
    english = [f"the cat number {i} sleeps" for i in range(60)]
    german = [f"die Katze Nummer {i} schläft" for i in range(60)]
    return [
        *(str(write_recipe(folder / "tiny", training=TRAINING)), "--disable_tqdm", "true"),
        *("--train_source", write_text(folder / "train.en", english)),
        *("--train_target", write_text(folder / "train.de", german)),
        *("--validation_source", write_text(folder / "val.en", english[:3])),
        *("--validation_target", write_text(folder / "val.de", german[:3])),
    ]


def run(command: list[str], folder: Path, *options: str) -> TrainedModel:
    return train(parse_recipe([*command, "--output_dir", str(folder), *options]))


@pytest.fixture(scope="module")
def unbroken(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole run."""
    return run(command, tmp_path_factory.mktemp("unbroken") / "run", "--save_steps", "1").folder


def test_the_same_command_goes_on_after_kill_and_signals(command: list[str], unbroken: Path, tmp_path: Path) -> None:
    """kill -9, SIGTERM, Ctrl-C, then left alone: the final files are those of the run that was never ended."""
    folder = tmp_path / "run"
    argv = [sys.executable, "-m", "training.train", *command, "--save_steps", "1", "--output_dir", str(folder)]
    statuses = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
    reached = 0
    for signum, status in statuses.items():
        process = subprocess.Popen(argv, env=module_environment(), stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 120
        while not any(step(path) > reached + 1 for path in checkpoints(folder)):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(signum)
        error = process.communicate(timeout=120)[1]
        assert process.returncode == status, error
        if reached:
            assert f"continuing from {folder}/checkpoint-" in error
        reached = step(checkpoints(folder)[-1])
        assert reached < 60
        if signum != signal.SIGKILL:
            line = f"{signum.name}: saved {folder}/checkpoint-{reached}; the same command continues from there"
            assert error.splitlines()[-1] == line
        assert not (folder / "all_results.json").exists()
    trained = run(command, folder, "--save_steps", "1")
    for name in ("model.safetensors", "tokenizer.json", "eval_hypotheses.txt"):
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), name
    expected = json.loads((unbroken / "all_results.json").read_text())
    assert {name: value for name, value in trained.results.items() if not name.endswith(("runtime", "second"))} == {
        name: value for name, value in expected.items() if not name.endswith(("runtime", "second"))
    }


def step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def test_a_finished_run_is_evaluated_again(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint kept; the numbers of the training stay. What cannot be continued is refused in a line."""
    short = ["--max_steps", "3", "--save_strategy", "no"]
    first = run(command, tmp_path / "run", *short)
    weights = (first.folder / "model.safetensors").read_bytes()
    (first.folder / "all_results.json").unlink()
    capsys.readouterr()
    again = run(command, first.folder, *short)
    assert (
        f"{first.folder} holds the finished run, which is evaluated again; to start anew, remove"
        in capsys.readouterr().err
    )
    assert (first.folder / "model.safetensors").read_bytes() == weights
    assert {k: v for k, v in again.results.items() if not k.startswith(("eval_", "total_flos"))} == {
        k: v for k, v in first.results.items() if not k.startswith("eval_")
    }
    assert again.results["eval_loss"] == first.results["eval_loss"]
    assert same_weights(first.trainer, again.trainer)
    assert not caplog.records

    with pytest.raises(UsageError, match="holds a run of 3 updates and no checkpoint to continue from: to"):
        run(command, first.folder, "--max_steps", "4", "--save_strategy", "no")
    with pytest.raises(UsageError, match=r"`vocab_size` is 300, but 400 in the run in .*: to start anew, remove"):
        run(command, first.folder, *short, "--vocab_size", "300")
    config = Path(command[0]) / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"d_model": 32', '"d_model": 64'))
    try:
        with pytest.raises(UsageError, match=r"config.json: `d_model` is 64, but 32 in "):
            run(command, first.folder, *short)
    finally:
        config.write_text(text)
    capsys.readouterr()
    run(command, first.folder, *short, "--learning_rate", "2")
    assert "was begun with other options: learning_rate 2.0 (before: 1.0)\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "trainer_state.json"])
def test_a_damaged_finished_run_is_named(command: list[str], tmp_path: Path, name: str) -> None:
    options = ["--max_steps", "2", "--save_strategy", "no"]
    folder = run(command, tmp_path / "run", *options).folder
    path = folder / name
    path.write_bytes(path.read_bytes()[:-50])
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for damage in ("cut", "missing"):
        if damage == "missing" and name == "model.safetensors":
            path.unlink()
            del before[path]
        with pytest.raises(UsageError, match=f"^{folder}.*(cannot be read|is damaged)") as caught:
            run(command, folder, *options)
        assert "\n" not in str(caught.value)
        assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_state_of_a_finished_run_stays_whole_on_a_full_disk(
    command: list[str], tmp_path: Path, file_limit: Callable[[int], None]
) -> None:
    """The longer state of the second evaluation is not written, and the first stays."""
    options = ["--max_steps", "60", "--save_strategy", "no", "--logging_steps", "1"]
    state = run(command, tmp_path / "run", *options).folder / "trainer_state.json"
    before = state.read_bytes()
    file_limit(len(before))
    with pytest.raises(OSError, match="File too large"):
        run(command, tmp_path / "run", *options)
    assert state.read_bytes() == before


def test_checkpoints_of_weights_alone(command: list[str], tmp_path: Path) -> None:
    """Cannot be continued, named or found; the finished run with them is evaluated again."""
    options = ["--save_only_model", "true", "--save_steps", "2", "--max_steps"]
    first = run(command, tmp_path / "run", *options, "4")
    assert run(command, tmp_path / "run", *options, "4").results["eval_loss"] == first.results["eval_loss"]
    checkpoint = first.folder / "checkpoint-4"
    with pytest.raises(UsageError, match=f"{checkpoint} holds weights alone"):
        run(command, tmp_path / "run", *options, "6")
    with pytest.raises(UsageError, match=f"{checkpoint} holds weights alone"):
        run(command, tmp_path / "other", *options, "6", "--resume_from_checkpoint", str(checkpoint))


def test_a_damaged_best_checkpoint_is_named_before_training(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--eval_strategy", "steps", "--eval_steps", "2", "--save_steps", "2", "--max_steps", "6"]
    options += ["--metric_for_best_model", "loss", "--greater_is_better", "true", "--load_best_model_at_end"]
    signal_in(5, monkeypatch)
    with pytest.raises(InterruptionError):
        run(command, tmp_path / "run", *options, "true")
    best = tmp_path / "run" / "checkpoint-2"
    _damage(best, "short")
    with pytest.raises(UsageError, match=f"{best}, the best checkpoint so far: its model.safetensors is not what was"):
        run(command, tmp_path / "run", *options, "true")
    assert not (tmp_path / "run" / "checkpoint-6").exists()
    assert run(command, tmp_path / "run", *options, "false").trainer.state.global_step == 6


def test_a_best_checkpoint_that_is_gone_at_the_end_is_no_success(make: Callable[..., TranslationTrainer]) -> None:
    trainer = make(**BEST)
    trainer.state.best_model_checkpoint = str(Path(trainer.args.output_dir) / "checkpoint-2")
    with pytest.raises(UsageError, match=r"checkpoint-2: the model cannot be read"):
        trainer._load_best_model()


def test_more_updates_go_on_from_a_finished_run(command: list[str], unbroken: Path, tmp_path: Path) -> None:
    """Three updates and three more by a command that asks for six, with a vocabulary for each language."""
    (tmp_path / "recipe").mkdir()
    recipe = write_recipe(tmp_path / "recipe" / "two", training=TRAINING, share_encoder_decoder_embeddings=False)
    separate = [str(recipe), *command[1:], "--joint_vocabulary", "false", "--save_steps", "3"]
    whole = run(separate, tmp_path / "whole", "--max_steps", "6")
    assert run(separate, tmp_path / "parts", "--max_steps", "3").trainer.state.global_step == 3
    more = run(separate, tmp_path / "parts", "--max_steps", "6")
    assert same_weights(whole.trainer, more.trainer)
    for folder in (more.folder, more.folder / "checkpoint-6"):
        source, target = (json.loads((folder / t / "tokenizer.json").read_text()) for t in (".", "target_tokenizer"))
        assert source["model"]["vocab"] != target["model"]["vocab"]


def test_signal_after_the_last_update(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, and so saved though no checkpoint is asked for; the same command evaluates it."""
    save_model = TranslationTrainer.save_model

    def interrupted(self: TranslationTrainer, *args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        save_model(self, *args, **kwargs)

    options = ["--max_steps", "2", "--save_strategy", "no"]
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTrainer, "save_model", interrupted)
        with pytest.raises(InterruptionError, match=r"SIGTERM: trained, saved .*; the same command evaluates it"):
            run(command, tmp_path / "run", *options)
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert run(command, tmp_path / "run", *options).results["train_loss"] > 1
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def signal_in(update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SIGTERM come within an update of the next trainer."""
    step = TranslationTrainer.training_step

    def interrupted(self: TranslationTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == update - 1:
            monkeypatch.setattr(TranslationTrainer, "training_step", step)
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(TranslationTrainer, "training_step", interrupted)


def test_signal_in_the_last_update(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mid-epoch: the last checkpoint, the average with it and the last evaluation are those of the unbroken run."""
    options = ["--max_steps", "5", "--save_strategy", "epoch", "--eval_strategy", "epoch", "--average_last", "2"]
    unbroken = run(command, tmp_path / "unbroken", *options)
    assert unbroken.results["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-5"]
    signal_in(5, monkeypatch)
    with pytest.raises(InterruptionError, match=r"SIGTERM: trained, saved .*; the same command evaluates it"):
        run(command, tmp_path / "run", *options)
    again = run(command, tmp_path / "run", *options)
    assert again.results["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-5"]
    assert same_weights(again.trainer, unbroken.trainer)
    assert history(again.trainer) == history(unbroken.trainer)


def test_average_of_the_last_checkpoints_is_what_is_evaluated(command: list[str], tmp_path: Path) -> None:
    options = ["--max_steps", "6", "--save_steps", "2", "--average_last", "2", "--learning_rate", "5"]
    trained = run(command, tmp_path / "run", *options)
    assert trained.results["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-6"]
    parts = [load_file(trained.folder / name / "model.safetensors") for name in ("checkpoint-4", "checkpoint-6")]
    kept = load_file(trained.folder / "model.safetensors")
    for name, weight in kept.items():
        torch.testing.assert_close(weight, (parts[0][name] + parts[1][name]) / 2)
        assert torch.equal(trained.trainer.model.state_dict()[name], weight)
    assert not torch.equal(parts[0]["model.shared.weight"], parts[1]["model.shared.weight"])
    last = trained.trainer.evaluate()["eval_loss"]
    assert last == trained.results["eval_loss"]
    again = run(command, trained.folder, *options)
    assert again.results["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-6"]
    assert again.results["eval_loss"] == trained.results["eval_loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save_strategy", "no"], "needs `save_strategy: steps` or `epoch`, not `no`"),
        (["--save_steps", "2", "--save_total_limit", "2"], "needs `save_total_limit: 3` or more, not 2"),
        (["--save_steps", "4"], "the run makes 2 checkpoints only"),
        (["--save_steps", "0.5"], "the run makes 2 checkpoints only"),
        (["--save_strategy", "epoch", "--max_steps", "4"], "the run makes 2 checkpoints only"),
    ],
)
def test_average_of_what_is_not_kept_is_refused_before_training(
    command: list[str], tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=f"`average_last: 3`:? {message}"):
        run(command, tmp_path / "run", "--max_steps", "6", "--average_last", "3", *options)
    assert not list((tmp_path / "run").iterdir())
