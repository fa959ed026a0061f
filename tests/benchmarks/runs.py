"""One training two ways: `TranslationTrainer` with token batches, and transformers' Marian in its `Seq2SeqTrainer`.

Alike are the pairs, the tokenizer, the model's shape, the optimizer, the label smoothing, and how many tokens a mean
update has, padding counted, source and target together.
"""

import copy
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from training.batching import TokenBatchSampler
from training.encoding import EncodedPairs
from training.trainer import TranslationTrainer, TranslationTrainingArguments

from .setting import Sizes, load_text, our_model, peer_model

# Longer pairs are left out for both: a random batch with one of them would be almost nothing but padding.
MAX_LENGTH = 128
SEED = 1

Batching = Literal["ours", "random", "grouped"]


@dataclass(frozen=True)
class Plan:
    """An epoch's batches, or some of them, as indices of pairs."""

    pairs: EncodedPairs
    batches: list[NDArray[np.int64]]

    def __str__(self) -> str:
        padded = self.padded()
        real = self.target_tokens() / padded.sum()
        return f"{len(padded)} updates of {padded.mean():.0f} padded tokens, {real:.1%} of them real target tokens"

    def padded(self) -> NDArray[np.int64]:
        """Positions of each batch, source and target together, padding counted."""
        sides = self.pairs.lengths()
        return np.array([len(batch) * sum(int(side[batch].max()) for side in sides) for batch in self.batches])

    def target_tokens(self) -> int:
        """Real tokens of the target."""
        return int(self.pairs.lengths()[1][np.concatenate(self.batches)].sum())

    def by_size(self) -> "Plan":
        """The smallest batch first."""
        return Plan(self.pairs, [self.batches[i] for i in np.argsort(self.padded(), kind="stable")])

    def sample(self, updates: int) -> "Plan":
        """Batches of all sizes: the middle ones of equal parts of the epoch, after ordering it by size."""
        ordered = self.by_size().batches
        return Plan(self.pairs, [ordered[(2 * i + 1) * len(ordered) // (2 * updates)] for i in range(updates)])

    def largest(self) -> "Plan":
        return Plan(self.pairs, self.by_size().batches[-1:])

    def dataset(self) -> EncodedPairs:
        """The pairs of the batches, one batch after the other."""
        part = copy.copy(self.pairs)
        part.rows = self.pairs.rows[np.concatenate(self.batches)]
        return part


def our_plan(pairs: EncodedPairs, max_batch_tokens: int) -> Plan:
    batches = TokenBatchSampler(*pairs.lengths(), max_batch_tokens, seed=SEED)
    return Plan(pairs, [np.array(batch) for batch in batches])


def peer_plan(pairs: EncodedPairs, grouped: bool, padded: float) -> Plan:
    """The peer's epoch with the batch size that brings the mean of padded tokens an update closest to `padded`."""
    before = None
    for rows in count(1):
        plan = _peer_batches(pairs, grouped, rows)
        if plan.padded().mean() >= padded:
            break
        before = plan
    candidates = [plan] if before is None else [before, plan]
    return min(candidates, key=lambda candidate: abs(candidate.padded().mean() - padded))


def _peer_batches(pairs: EncodedPairs, grouped: bool, rows: int) -> Plan:
    """Full batches of `rows` pairs as the stock trainer's samplers order them."""
    generator = torch.Generator().manual_seed(SEED)
    if grouped:
        lengths = pairs.lengths()[0].tolist()
        order = np.array(list(LengthGroupedSampler(rows, lengths=lengths, generator=generator)))
    else:
        order = torch.randperm(len(pairs), generator=generator).numpy()
    return Plan(pairs, list(order[: len(order) // rows * rows].reshape(-1, rows)))


class Clock(TrainerCallback):
    """Times the updates with the making of their batches: no setting up, no end of training."""

    def __init__(self) -> None:
        self.seconds = self.began = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = time.perf_counter() - self.began


class Run:
    """A model, its trainer and its epoch.

    Which updates are measured is chosen from the epoch beforehand, since so few chosen by chance would not be like it:
    the trainer is given the pairs of those updates and makes the same batches of them again.
    """

    def __init__(self, trainer: Seq2SeqTrainer, plan: Plan) -> None:
        self.trainer, self.plan, self.clock = trainer, plan, Clock()
        trainer.remove_callback(PrinterCallback)  # stdout is for the table
        trainer.add_callback(self.clock)

    def train(self, part: Plan, epochs: int = 1) -> float:
        """Seconds of so many epochs of a part; the optimizer goes on where it was."""
        self.trainer.train_dataset = part.dataset()
        self.trainer.args.num_train_epochs = epochs
        self.trainer.train()
        assert self.trainer.state.global_step == epochs * len(part.batches), "the trainer made other batches"
        return self.clock.seconds

    def tokens_per_second(self, updates: int) -> float:
        """Real target tokens a second of the epoch, whose time is that of a sample, by its share of padded tokens.

        Tokens are counted over the whole epoch: from update to update their share among padding varies by more than
        the time of a padded token does.
        """
        part = self.plan.sample(updates)
        share = part.padded().sum() / self.plan.padded().sum()
        return float(self.plan.target_tokens() * share / self.train(part))


class Setting:
    """The text, encoded, and what is trained on it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        text, self.tokenizer = load_text("wmt_sample", sizes)
        self.pairs = EncodedPairs(text, self.tokenizer, self.tokenizer, max_length=MAX_LENGTH)
        self.ours = our_plan(self.pairs, sizes.max_batch_tokens)
        self.folder = tempfile.TemporaryDirectory()

    def plan(self, batching: Batching) -> Plan:
        """Our epoch, or the peer's, whose mean update is as large."""
        if batching == "ours":
            return self.ours
        return peer_plan(self.pairs, batching == "grouped", self.ours.padded().mean())

    def run(self, batching: Batching, bf16: bool, plan: Plan) -> Run:
        """The trainer of ours or of the peer with a new model."""
        options = {
            "output_dir": self.folder.name,
            "bf16": bf16,
            "use_cpu": True,
            "adam_beta1": 0.9,
            "adam_beta2": 0.98,
            "adam_epsilon": 1e-9,
            "max_grad_norm": 0.0,
            "label_smoothing_factor": 0.1,
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "seed": SEED,
        }
        build = _our_trainer if batching == "ours" else _peer_trainer
        return Run(build(self.sizes, self.tokenizer, plan, options), plan)


def _our_trainer(
    sizes: Sizes, tokenizer: PreTrainedTokenizerBase, plan: Plan, options: dict[str, Any]
) -> Seq2SeqTrainer:
    return TranslationTrainer(
        our_model(sizes, len(tokenizer)),
        TranslationTrainingArguments(max_batch_tokens=sizes.max_batch_tokens, **options),
        tokenizer,
        plan.dataset(),
    )


def _peer_trainer(
    sizes: Sizes, tokenizer: PreTrainedTokenizerBase, plan: Plan, options: dict[str, Any]
) -> Seq2SeqTrainer:
    model = peer_model(sizes, len(tokenizer))
    rows = len(plan.batches[0])
    return Seq2SeqTrainer(
        model=model,
        # The order of the pairs is the plan's, whichever sampler made it.
        args=Seq2SeqTrainingArguments(
            per_device_train_batch_size=rows, train_sampling_strategy="sequential", **options
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=plan.dataset(),
        processing_class=tokenizer,
    )
