"""The paper's training (§5) as a `Seq2SeqTrainer`: token batches, optimizer and schedule, label smoothing, BLEU."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from training.batching import TokenBatchSampler
from training.data import EncodedPairs, Pair
from training.files import write_lines
from training.loss import IGNORED_LABEL, label_smoothed_cross_entropy
from training.resuming import ResumableTrainer
from training.score import corpus_bleu
from vanilla_transformer import translate

TARGET_TOKENIZER_FOLDER = "target_tokenizer"


def noam_rate(update: int, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 · min(n^-0.5, n · warmup^-1.5) of update n = 1, 2, ... (paper §5.3, equation 3)."""
    warming = update * warmup_steps**-1.5 if warmup_steps else math.inf
    return d_model**-0.5 * min(update**-0.5, warming)


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's values as defaults (§5.3, §5.4)."""

    max_batch_tokens: int = field(
        default=4096,
        metadata={"help": "rows times longest sentence of a batch, padding counted, on each side and in each process"},
    )
    lr_scheduler_type: str = field(
        default="noam", metadata={"help": "`noam`, the paper's schedule (§5.3), or one of transformers' own"}
    )
    learning_rate: float = field(default=1.0, metadata={"help": "factor of the paper's schedule, or rate of another"})
    warmup_steps: float = field(default=4000, metadata={"help": "updates in which the rate rises"})
    adam_beta1: float = field(default=0.9, metadata={"help": "Adam's beta_1"})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta_2"})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon"})
    max_grad_norm: float = field(default=0.0, metadata={"help": "clip the gradient's norm here; 0 does not clip"})
    label_smoothing_factor: float = field(default=0.1, metadata={"help": "epsilon_ls of label smoothing (§5.4)"})
    average_last: int = field(
        default=0, metadata={"help": "average the last N checkpoints at the end (§6.1); 0 keeps the last weights"}
    )

    def __post_init__(self) -> None:
        # The base class knows transformers' own schedules only.
        noam = self.lr_scheduler_type == "noam"
        if noam:
            self.lr_scheduler_type = "constant"
        super().__post_init__()
        if noam:
            self.lr_scheduler_type = "noam"


class StderrProgressCallback(ProgressCallback):
    """The progress bar, with the logged numbers on stderr: stdout is for results."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs is not None:
            shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}
            tqdm.write("  ".join(f"{name} {value}" for name, value in shown.items()), file=sys.stderr)


class TranslationTrainer(ResumableTrainer):
    """Trains on token batches and evaluates with translations.

    - Batches: `TokenBatchSampler` with `max_batch_tokens`.
    - Loss: label smoothing in training (`label_smoothing_factor`), the plain mean NLL in evaluation.
    - Schedule: `lr_scheduler_type="noam"` is the paper's, times `learning_rate`.
    - Evaluation: `<prefix>_loss` and `<prefix>_perplexity` per target token, and `<prefix>_bleu` of the validation
      sentences translated with the model's generation config; the translations are kept in
      `<prefix>_hypotheses.txt` of the output folder, in the order of the sentences.
    - Checkpoints and continuing from them: `ResumableTrainer`. A target tokenizer of its own is kept in
      `target_tokenizer` of each.

    Args:
        target_tokenizer: the target's, where it is not the source's.
        pairs: the text behind each data set that is evaluated, by its prefix ("eval", "test").
        target_lang: language code, for BLEU's tokenizer.

    Attributes:
        bleu_signature: how the last BLEU was made; `None` before the first.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TranslationTrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        train_dataset: EncodedPairs,
        eval_dataset: EncodedPairs | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        pairs: Mapping[str, Sequence[Pair]] | None = None,
        target_lang: str = "",
    ) -> None:
        self.lr_scheduler: LRScheduler | None
        super().__init__(
            model=model,
            args=args,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            compute_loss_func=self.smoothed_loss,
        )
        self.target_tokenizer = target_tokenizer or tokenizer
        self.pairs = pairs or {}
        self.target_lang = target_lang
        self.bleu_signature: str | None = None
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(StderrProgressCallback)

    def smoothed_loss(
        self, outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        epsilon = self.args.label_smoothing_factor
        return label_smoothed_cross_entropy(outputs["logits"], labels, epsilon, num_items_in_batch)[0]

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.args.lr_scheduler_type == "noam" and self.lr_scheduler is None:
            d_model, warmup = self.model.config.d_model, self.args.get_warmup_steps(num_training_steps)
            # LambdaLR counts the updates done; the rate it gives is that of the next one.
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda n: noam_rate(n + 1, d_model, warmup))
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def get_train_dataloader(self) -> DataLoader[Any]:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        processes = {"num_replicas": self.args.world_size, "rank": self.args.process_index}
        return self._token_batches(self.train_dataset, seed=seed, **processes)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return self._token_batches(self.eval_dataset if eval_dataset is None else eval_dataset, shuffle=False)

    def _token_batches(self, dataset: EncodedPairs, **options: Any) -> DataLoader[Any]:
        sampler = TokenBatchSampler(*dataset.lengths(), self.args.max_batch_tokens, **options)
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.accelerator.is_available(),
        )
        # The sampler knows which batches are this process': accelerate is told of one, so that it takes none away.
        return prepare_data_loader(
            loader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save and self.target_tokenizer is not self.processing_class:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER_FOLDER)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """NLL and perplexity per target token over the batches, BLEU over the sentences behind them.

        Of several processes each computes the NLL of all, and translates its share of the sentences.
        """
        self.model.eval()
        nll, tokens = 0.0, 0
        for inputs in tqdm(dataloader, desc=description, disable=not self.shows_progress, leave=False):
            batch = self._prepare_inputs(inputs)
            labels = batch.pop("labels")
            with torch.no_grad():
                logits = self.model(**batch, use_cache=False).logits
            count = int(labels.ne(IGNORED_LABEL).sum())
            nll += label_smoothed_cross_entropy(logits, labels, 0.0)[1].item() * count
            tokens += count
        metrics = {"loss": nll / tokens, "perplexity": math.exp(min(nll / tokens, 700.0))}
        pairs = self.pairs.get(metric_key_prefix, ())
        if pairs:
            hypotheses = self.translate([source for source, _ in pairs])
            if self.is_world_process_zero():
                write_lines(Path(self.args.output_dir) / f"{metric_key_prefix}_hypotheses.txt", hypotheses)
            references = [target for _, target in pairs]
            metrics["bleu"], self.bleu_signature = corpus_bleu(hypotheses, references, self.target_lang)
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=len(dataloader.dataset),  # type: ignore[arg-type]
        )

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Translations by the model as it is now, in evaluation mode, with its generation config.

        Of several processes each translates every n-th sentence; all get all translations.
        """
        self.model.eval()
        processes = self.args.world_size
        share = list(
            translate(
                self.model,
                self.processing_class,
                sentences[self.args.process_index :: processes],
                target_tokenizer=self.target_tokenizer,
                max_batch_tokens=self.args.max_batch_tokens,
                progress=self.shows_progress,
            )
        )
        translations = [""] * len(sentences)
        for rank, part in enumerate(gather_object([share])):
            translations[rank::processes] = part
        return translations

    @property
    def shows_progress(self) -> bool:
        return not self.args.disable_tqdm and self.is_local_process_zero()
