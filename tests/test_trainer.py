"""The paper's training: schedule (B45), optimizer, smoothing in one pass (B22, B23, B24), evaluation (B46, B51)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase, Seq2SeqTrainer, Seq2SeqTrainingArguments

from tests.tiny import tiny
from training.data import EncodedPairs, Pair
from training.tokenizer import train_tokenizer
from training.trainer import TranslationTrainer, TranslationTrainingArguments, noam_rate
from vanilla_transformer import VanillaTransformerForConditionalGeneration

PAIRS: list[Pair] = [(" ".join("ab"[: 1 + i % 2]) + f" {i}", f"x {i} " + "y " * (i % 7)) for i in range(16)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([side for pair in PAIRS for side in pair], 300)


def model_for(tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return tiny(vocab_size=len(tokenizer)).train()


def trainer_for(tokenizer: PreTrainedTokenizerBase, folder: Path, **options: Any) -> TranslationTrainer:
    arguments = TranslationTrainingArguments(
        output_dir=str(folder), **{"report_to": "none", "save_strategy": "no", "disable_tqdm": True, **options}
    )
    encoded = EncodedPairs(PAIRS, tokenizer, tokenizer)
    model = model_for(tokenizer)
    return TranslationTrainer(model, arguments, tokenizer, encoded, encoded, pairs={"eval": PAIRS}, target_lang="de")


@pytest.mark.parametrize(("update", "rate"), [(1, 1.7469e-7), (2, 3.4939e-7), (4000, 6.9877e-4), (16000, 3.4939e-4)])
def test_noam_rate_of_the_base_model(update: int, rate: float) -> None:
    """B45: d^-0.5 · min(n^-0.5, n · w^-1.5) at d = 512, w = 4000."""
    assert noam_rate(update, 512, 4000) == pytest.approx(rate, rel=1e-4)


def test_rates_and_optimizer_of_a_run(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """B45: update n gets the rate of n, counted in updates whatever the accumulation; Adam is the paper's."""
    for accumulation in (1, 4):
        trainer = trainer_for(
            tokenizer,
            tmp_path,
            max_steps=6,
            logging_steps=1,
            warmup_steps=3,
            learning_rate=2.0,
            max_batch_tokens=32,
            gradient_accumulation_steps=accumulation,
        )
        trainer.train()
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        # The rate that is logged after update n is that of update n + 1 or n, by transformers' version.
        expected = [2 * noam_rate(n, 16, 3) for n in range(1, 8)]
        assert rates == pytest.approx(expected[:6]) or rates == pytest.approx(expected[1:])
        optimizer = trainer.optimizer
        assert all(group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 for group in optimizer.param_groups)
        assert all(group["weight_decay"] == 0.0 for group in optimizer.param_groups)
        assert trainer.args.max_grad_norm == 0.0


def test_first_update_has_the_rate_of_update_one(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    trainer = trainer_for(tokenizer, tmp_path, max_steps=1, warmup_steps=4000)
    trainer.create_optimizer_and_scheduler(1)
    assert trainer.optimizer.param_groups[0]["lr"] == noam_rate(1, 16, 4000)


def test_other_schedules_stay_available(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    trainer = trainer_for(
        tokenizer, tmp_path, max_steps=4, lr_scheduler_type="linear", learning_rate=1.0, warmup_steps=0
    )
    trainer.create_optimizer_and_scheduler(4)
    trainer.optimizer.step()
    trainer.lr_scheduler.step()  # type: ignore[union-attr]
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.75)
    with pytest.raises(ValueError, match="is not a valid SchedulerType"):
        trainer_for(tokenizer, tmp_path, lr_scheduler_type="nomad")


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_accumulation_changes_nothing(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, epsilon: float) -> None:
    """B22: one token batch, or several accumulated into one update, give one loss and one gradient norm."""
    seen = []
    for budget in (1000, 40, 21):
        batches = len(trainer_for(tokenizer, tmp_path, max_batch_tokens=budget).get_train_dataloader())
        trainer = trainer_for(
            tokenizer,
            tmp_path,
            max_steps=1,
            logging_steps=1,
            max_batch_tokens=budget,
            gradient_accumulation_steps=batches,
            label_smoothing_factor=epsilon,
            max_grad_norm=1e9,
        )
        trainer.train()
        entry = trainer.state.log_history[0]
        seen.append((batches, entry["loss"], entry["grad_norm"]))
    assert seen[0][0] == 1
    assert seen[1][0] > 3
    for _, loss, norm in seen[1:]:
        assert loss == pytest.approx(seen[0][1], rel=1e-4)
        assert norm == pytest.approx(seen[0][2], rel=1e-4)


def test_both_paths_of_smoothing_give_one_number(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """B23: the stock Trainer's `label_smoothing_factor` and this trainer's own loss, on one batch."""
    options: dict[str, Any] = {"max_steps": 1, "logging_steps": 1, "label_smoothing_factor": 0.1, "max_grad_norm": 1e9}
    ours = trainer_for(tokenizer, tmp_path, max_batch_tokens=1000, **options)
    ours.train()
    model = model_for(tokenizer)
    stock = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=16,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **options,
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=EncodedPairs(PAIRS, tokenizer, tokenizer),
    )
    stock.train()
    for name in ("loss", "grad_norm"):
        assert ours.state.log_history[0][name] == pytest.approx(stock.state.log_history[0][name], rel=1e-4)


def test_training_and_evaluation_make_no_logits(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """The output projection is called for translations alone: losses are computed without all logits at once."""
    trainer = trainer_for(tokenizer, tmp_path, max_steps=2, max_batch_tokens=60)
    trainer.pairs = {}
    calls: list[int] = []
    trainer.model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    trainer.train()
    trainer.evaluate()
    assert calls == []
    assert trainer.translate(["a"])
    assert calls


@pytest.mark.parametrize("tokenized", [False, True])
def test_bleu_of_tokens(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, tokenized: bool) -> None:
    """BLEU of text made of tokens counts them as they are, and its signature says so (B51)."""
    trainer = trainer_for(tokenizer, tmp_path)
    trainer.tokenized = tokenized
    trainer.pairs = {"eval": [("a", "a &quot; b-c &quot; d")]}
    trainer.translate = lambda sentences: ["a &quot; b-c &quot; e"]  # type: ignore[method-assign]
    metrics = trainer.evaluate()
    [(_, target)] = trainer.pairs["eval"]
    expected = BLEU(tokenize="none" if tokenized else "13a", force=True).corpus_score(
        trainer.translate([]), [[target]]
    )
    assert metrics["eval_bleu"] == pytest.approx(expected.score)
    assert trainer.bleu_signature is not None
    assert ("tok:none" in trainer.bleu_signature, "tok:13a" in trainer.bleu_signature) == (tokenized, not tokenized)


@pytest.mark.parametrize("budget", [25, 60, 5000])
def test_evaluation_is_one_number_whatever_the_batches(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, budget: int
) -> None:
    """B46, B51: NLL per token, BLEU over raw sentences; both independent of batches; hypotheses kept in order."""
    trainer = trainer_for(tokenizer, tmp_path, max_batch_tokens=budget)
    metrics = trainer.evaluate()
    model = trainer.model.eval()
    nll, tokens = 0.0, 0
    with torch.no_grad():
        for source, target in PAIRS:
            labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
            loss = model(**tokenizer(source, return_tensors="pt"), labels=labels).loss
            nll, tokens = nll + loss.item() * labels.numel(), tokens + labels.numel()
    assert metrics["eval_loss"] == pytest.approx(nll / tokens, rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(float(torch.tensor(nll / tokens).exp()), rel=1e-4)
    hypotheses = (tmp_path / "eval_hypotheses.txt").read_bytes().decode().removesuffix("\n").split("\n")
    alone = [trainer.translate([source])[0].replace("\r", " ").replace("\n", " ") for source, _ in PAIRS]
    assert hypotheses == alone
    references = (tmp_path / "eval_references.txt").read_bytes().decode().removesuffix("\n").split("\n")
    assert references == [target for _, target in PAIRS]
    expected = BLEU().corpus_score(trainer.translate([source for source, _ in PAIRS]), [[t for _, t in PAIRS]])
    assert metrics["eval_bleu"] == pytest.approx(expected.score)
    assert trainer.bleu_signature is not None
    assert "tok:13a" in trainer.bleu_signature


def test_arguments_survive_their_own_json(tmp_path: Path) -> None:
    arguments = TranslationTrainingArguments(output_dir=str(tmp_path))
    assert json.loads(arguments.to_json_string())["lr_scheduler_type"] == "noam"
    assert (arguments.learning_rate, arguments.label_smoothing_factor) == (1.0, 0.1)


def test_translations_are_not_cut_at_twenty_tokens(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """B18: in this trainer's evaluation and in the stock trainer's, the limit is source length + 50."""
    trainer = trainer_for(tokenizer, tmp_path)
    trainer.model.generation_config.suppress_tokens = [tokenizer.eos_token_id]  # never ends by itself
    source = PAIRS[0][0]
    limit = len(tokenizer(source)["input_ids"]) + 50
    sequences = trainer.model.eval().generate(**tokenizer(source, return_tensors="pt"))
    assert sequences.shape == (1, limit + 1)
    assert trainer.translate([source]) == tokenizer.batch_decode(sequences, skip_special_tokens=True)

    stock = Seq2SeqTrainer(
        model=trainer.model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(tmp_path), predict_with_generate=True, report_to="none", disable_tqdm=True
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=trainer.model),
    )
    predictions = stock.predict(EncodedPairs(PAIRS[:1], tokenizer, tokenizer)).predictions
    assert predictions.tolist() == sequences.tolist()
