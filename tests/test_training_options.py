"""Options of a run beyond the paper's: precision, recomputation, compilation, stopping early, what is written down."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.recipes import ON_CPU, SMALL_TRAINING, write_recipe, write_text
from training.errors import UsageError
from training.recipe import parse_recipe
from training.train import TrainedModel, train
from training.trainer import TranslationTrainer, TranslationTrainingArguments
from vanilla_transformer import VanillaTransformerForConditionalGeneration

ENGLISH = [f"the cat number {i} sleeps" + " well" * (i % 5) for i in range(60)]
GERMAN = [f"die Katze Nummer {i} schläft" + " gut" * (i % 5) for i in range(60)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = write_recipe(tmp_path / "tiny", training=SMALL_TRAINING, dropout=0.1)
    files = {"train": 60, "validation": 4}
    text = [
        part
        for name, count in files.items()
        for side, lines in (("source", ENGLISH), ("target", GERMAN))
        for part in (f"--{name}_{side}", write_text(tmp_path / f"{name}.{side}", lines[:count]))
    ]

    def train_with(folder: str, *options: str) -> TrainedModel:
        output = ["--output_dir", str(tmp_path / folder), "--disable_tqdm", "true", *ON_CPU]
        return train(parse_recipe([str(recipe), *text, *output, *options]))

    return train_with


def losses(trained: TrainedModel) -> list[float]:
    return [entry["loss"] for entry in trained.trainer.state.log_history if "loss" in entry]


def test_bf16_learns_like_float32(run: Any) -> None:
    """Autocast: the weights stay in float32, and the losses are those of float32 within its own error."""
    expected = losses(run("whole"))
    half = run("half", "--bf16", "true")
    assert losses(half) == pytest.approx(expected, rel=2e-2)
    assert losses(half) != expected
    assert {str(parameter.dtype) for parameter in half.trainer.model.parameters()} == {"torch.float32"}


def test_fp16_on_a_cpu_is_refused(run: Any) -> None:
    """transformers would train in float32 without a word."""
    with pytest.raises(UsageError, match="`fp16` needs an accelerator: on a CPU use `bf16`"):
        run("half", "--fp16", "true")


def test_a_process_that_finds_no_other_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would train alone, and so would the others, all into one folder."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="WORLD_SIZE is 2, but this process has no others: start them by torchrun"):
        run("alone")


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run with 24 learned positions, of which one is the offset, and a long line in the split named."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = write_recipe(
        tmp_path / "tiny", position_encoding="learned", max_position_embeddings=24, position_offset=1
    )

    def train_with(split: str, side: str, *options: str) -> TrainedModel:
        text = []
        for name, count in {"train": 60, "validation": 4, "test": 4}.items():
            for part, lines in {"source": ENGLISH[:count], "target": GERMAN[:count]}.items():
                long = ["well " * 40] if (name, part) == (split, side) else [lines[0]]
                file = write_text(tmp_path / f"{name}.{part}", [*lines, *long])
                text += [f"--{name}_{part}", file]
        output = ["--output_dir", str(tmp_path / "run"), "--disable_tqdm", "true", "--use_cpu"]
        return train(parse_recipe([str(recipe), *text, *output, *options]))

    return train_with


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("streaming", ["false", "true"])
def test_training_pairs_beyond_the_learned_positions_are_left_out(learned: Any, side: str, streaming: str) -> None:
    trained = learned("train", side, "--streaming", streaming, "--max_steps", "40")
    assert trained.trainer.state.global_step == 40
    assert trained.results["train_pairs"]["longer than 23 tokens"] >= 1
    assert trained.results["train_pairs"]["used"] >= 60


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("split", "name"), [("validation", "eval"), ("test", "test")])
def test_held_out_pairs_beyond_the_learned_positions_are_refused(
    learned: Any, tmp_path: Path, side: str, split: str, name: str
) -> None:
    with pytest.raises(UsageError, match=rf"^{name}: pair 5 has \d+ tokens on a side, the model 23 learned positions"):
        learned(split, side)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reentrant", ["true", "false"])
def test_gradient_checkpointing_changes_nothing(run: Any, reentrant: str) -> None:
    """Recomputed layers draw the same dropout: losses and gradient norms agree."""
    kwargs = json.dumps({"use_reentrant": reentrant == "true"})
    expected = run("kept")
    recomputed = run("anew", "--gradient_checkpointing", "true", "--gradient_checkpointing_kwargs", kwargs)
    assert recomputed.trainer.model.model.encoder.gradient_checkpointing
    for name in ("loss", "grad_norm"):
        ours, theirs = (
            [e[name] for e in made.trainer.state.log_history if name in e] for made in (recomputed, expected)
        )
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_early_stopping_by_bleu(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations that are not better end the run; the best by BLEU is named; the command again trains no further."""
    made = iter([3.0, 5.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr("training.trainer.corpus_bleu", lambda *_: (next(made, 1.0), "signature"))
    options = ["--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1", "--max_steps", "9"]
    options += ["--early_stopping_patience", "2", "--average_last", "2", "--save_total_limit", "9"]
    first = run("run", *options)
    assert first.trainer.state.global_step == 4
    assert first.trainer.state.best_metric == 5.0
    assert Path(str(first.trainer.state.best_model_checkpoint)).name == "checkpoint-2"
    assert first.results["averaged_checkpoints"] == ["checkpoint-3", "checkpoint-4"]
    again = run("run", *options)
    assert again.trainer.state.global_step == 4


def test_best_model_is_what_is_kept(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr("training.trainer.corpus_bleu", lambda *_: (next(made, 1.0), "signature"))
    options = ["--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1"]
    kept = run("run", *options, "--load_best_model_at_end", "true", "--metric_for_best_model", "bleu")
    best = VanillaTransformerForConditionalGeneration.from_pretrained(kept.folder / "checkpoint-2").state_dict()
    final = VanillaTransformerForConditionalGeneration.from_pretrained(kept.folder).state_dict()
    assert all(best[name].equal(value) for name, value in final.items())


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("loss", False), ("eval_loss", False), ("perplexity", False), ("eval_perplexity", False), ("bleu", True)],
)
def test_what_is_better_by_each_metric(tmp_path: Path, metric: str, greater: bool) -> None:
    def greater_is_better(**options: Any) -> bool | None:
        arguments = TranslationTrainingArguments(output_dir=str(tmp_path), metric_for_best_model=metric, **options)
        return arguments.greater_is_better

    assert greater_is_better() == greater
    assert greater_is_better(greater_is_better=not greater) != greater


def test_a_metric_that_evaluation_does_not_give_is_refused(run: Any) -> None:
    with pytest.raises(UsageError, match="`metric_for_best_model: blue` is none of loss, perplexity, bleu, chrf"):
        run("run", "--metric_for_best_model", "blue")


def test_averages_of_fewer_checkpoints_than_asked_for_after_an_early_stop(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.trainer.corpus_bleu", lambda *_: (1.0, "signature"))
    options = ["--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1", "--max_steps", "9"]
    stopped = run("run", *options, "--early_stopping_patience", "1", "--average_last", "5")
    assert stopped.results["averaged_checkpoints"] == ["checkpoint-1", "checkpoint-2"]


def test_early_stopping_needs_evaluations(run: Any) -> None:
    with pytest.raises(UsageError, match="`early_stopping_patience` needs `eval_strategy: steps` or `epoch`"):
        run("run", "--early_stopping_patience", "1")


def test_hypotheses_of_each_evaluation_are_kept(run: Any) -> None:
    """Those of an update stay when the next are written; the last ones are of the finished model."""
    trained = run("run", "--eval_strategy", "steps", "--eval_steps", "2", "--max_steps", "5")
    kept = {path.name: path.read_text().count("\n") for path in (trained.folder / "hypotheses").iterdir()}
    assert kept == {"eval-2.txt": 4, "eval-4.txt": 4, "eval-5.txt": 4}
    assert (trained.folder / "eval_hypotheses.txt").read_text().count("\n") == 4


def test_curves_go_to_tensorboard_and_into_a_picture(run: Any) -> None:
    """By default, with what a run is watched by."""
    trained = run("run", "--eval_strategy", "steps", "--eval_steps", "2")
    [folder] = {path.parent for path in trained.folder.rglob("events.out.tfevents.*")}
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = set(accumulator.Tags()["scalars"])
    assert {f"train/{name}" for name in ("loss", "learning_rate", "grad_norm", "padding_share")} <= tags
    assert {"train/target_tokens_per_second", "eval/loss", "eval/perplexity", "eval/bleu"} <= tags
    assert [event.step for event in accumulator.Scalars("train/loss")] == [1, 2, 3]
    assert [event.value for event in accumulator.Scalars("train/loss")] == pytest.approx(losses(trained))
    assert (trained.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_tokens_and_padding_are_those_of_the_batches(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's share of padding and the results' are counted from the batches trained on."""
    seen: list[tuple[int, int, int]] = []
    step = TranslationTrainer.training_step

    def training_step(self: TranslationTrainer, model: Any, inputs: Any, *rest: Any) -> Any:
        target = int(inputs["labels"].ne(-100).sum())
        seen.append((target, target + int(inputs["input_ids"].ne(0).sum()), inputs["labels"].numel()))
        seen[-1] = (*seen[-1][:2], seen[-1][2] + inputs["input_ids"].numel())
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(TranslationTrainer, "training_step", training_step)
    trained = run("run", "--gradient_accumulation_steps", "2", "--logging_steps", "1", "--max_steps", "4")
    logged = [entry["padding_share"] for entry in trained.trainer.state.log_history if "padding_share" in entry]
    by_update = [[sum(numbers) for numbers in zip(*seen[i : i + 2], strict=True)] for i in range(0, len(seen), 2)]
    assert logged == pytest.approx([1 - tokens / positions for _, tokens, positions in by_update])
    target, tokens, positions = (sum(numbers) for numbers in zip(*seen, strict=True))
    assert trained.results["train_padding_share"] == pytest.approx(1 - tokens / positions)
    rate = trained.results["train_target_tokens_per_second"]
    assert rate * trained.results["train_runtime"] == pytest.approx(target, rel=1e-2)


def test_a_compiled_model_learns_the_same(run: Any) -> None:
    """torch.compile, up to the code generator, which takes minutes: losses agree but for the dropout drawn."""
    expected = losses(run("plain"))
    compiled = run("compiled", "--torch_compile", "true", "--torch_compile_backend", "aot_eager")
    assert losses(compiled) == pytest.approx(expected, rel=0.05)
    assert isinstance(compiled.trainer.model_wrapped, torch._dynamo.eval_frame.OptimizedModule)
