"""The paper's training (§5) as a `Seq2SeqTrainer`: token batches, optimizer and schedule, label smoothing, BLEU."""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    IntervalStrategy,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from training.batching import TokenBatchSampler
from training.data import EncodedPairs, Pair
from training.files import write_lines
from training.resuming import ResumableTrainer
from training.score import corpus_bleu, corpus_chrf
from training.streaming import StreamedBatches, StreamPosition
from training.throughput import Throughput
from vanilla_transformer import translate
from vanilla_transformer.loss_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.pipeline_vanilla_transformer import TARGET_TOKENIZER_FOLDER

METRICS = ("loss", "perplexity", "bleu", "chrf")  # of evaluation


def noam_rate(update: int, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 · min(n^-0.5, n · warmup^-1.5) of update n = 1, 2, ... (paper §5.3, equation 3)."""
    warming = update * warmup_steps**-1.5 if warmup_steps else math.inf
    return d_model**-0.5 * min(update**-0.5, warming)


class PaperSchedule(str, Enum):
    """The schedule that transformers lacks; a string with a `value`, as its own are, which the model card asks for."""

    NOAM = "noam"


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
    metric_for_best_model: str | None = field(
        default=None,
        metadata={"help": "what makes a checkpoint the best: " + ", ".join(METRICS)},
    )
    greater_is_better: bool | None = field(
        default=None,
        metadata={
            "help": "whether more of `metric_for_best_model` is better; if not given, not of loss and perplexity"
        },
    )
    early_stopping_patience: int = field(
        default=0,
        metadata={
            "help": "end when this many evaluations in a row were not better than the best so far, by "
            "`metric_for_best_model`, which is then BLEU if not given; 0 does not"
        },
    )
    report_to: None | str | list[str] = field(  # noqa: RUF036 (the order by which transformers parses it)
        default="tensorboard", metadata={"help": "where the curves go, one or several; none: nowhere"}
    )
    ddp_find_unused_parameters: bool = field(
        default=False, metadata={"help": "of several processes: look for parameters without gradient; all have one"}
    )

    def __post_init__(self) -> None:
        # The base class knows transformers' own schedules only.
        noam = self.lr_scheduler_type == "noam"
        if noam:
            self.lr_scheduler_type = "constant"
        if self.early_stopping_patience:
            self.metric_for_best_model = self.metric_for_best_model or "bleu"
        if (self.metric_for_best_model or "").endswith("perplexity") and self.greater_is_better is None:
            self.greater_is_better = False
        # transformers asks for both by name; without them each of several processes would train alone.
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        if not torch.accelerator.is_available():
            self.use_cpu = True
        if self.use_cpu and processes > 1:
            self.ddp_backend = self.ddp_backend or "gloo"  # type: ignore[has-type]
        super().__post_init__()
        if processes > 1 and self.world_size == 1:
            raise ValueError(f"WORLD_SIZE is {processes}, but this process has no others: start them by torchrun")
        if noam:
            self.lr_scheduler_type = PaperSchedule.NOAM
        if self.fp16 and self.device.type == "cpu":
            raise ValueError("`fp16` needs an accelerator: on a CPU use `bf16`")
        if self.metric_for_best_model and self.metric_for_best_model.removeprefix("eval_") not in METRICS:
            raise ValueError(f"`metric_for_best_model: {self.metric_for_best_model}` is none of {', '.join(METRICS)}")
        if self.early_stopping_patience and self.eval_strategy == IntervalStrategy.NO:
            raise ValueError("`early_stopping_patience` needs `eval_strategy: steps` or `epoch`")

    @property
    def device(self) -> torch.device:
        """This process' device; a CPU without the index that it has among several, which torch cannot load to."""
        device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


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
    - Evaluation: `<prefix>_loss` and `<prefix>_perplexity` per target token, `<prefix>_bleu` and `<prefix>_chrf` of
      the validation sentences translated with the model's generation config; the translations are kept in
      `<prefix>_hypotheses.txt` of the output folder, in the order of the sentences, beside the references for
      `training.score`, and those of each evaluation in training in `hypotheses/<prefix>-<update>.txt`.
    - Log: beside transformers' numbers, target tokens a second and the share of padding.
    - Checkpoints and continuing from them: `ResumableTrainer`. A target tokenizer of its own is kept in
      `target_tokenizer` of each.

    Args:
        target_tokenizer: the target's, where it is not the source's.
        pairs: the text behind each data set that is evaluated, by its prefix ("eval", "test").
        target_lang: language code, for BLEU's tokenizer.
        tokenized: BLEU counts the tokens that the text is made of.

    Attributes:
        bleu_signature, chrf_signature: how the last of each was made; `None` before the first.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TranslationTrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        train_dataset: EncodedPairs | StreamedBatches,
        eval_dataset: EncodedPairs | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        pairs: Mapping[str, Sequence[Pair]] | None = None,
        target_lang: str = "",
        tokenized: bool = False,
    ) -> None:
        self.lr_scheduler: LRScheduler | None
        super().__init__(
            model=model,
            args=args,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
        )
        self.label_smoother = None  # the model smooths, on real positions only
        self.target_tokenizer = target_tokenizer or tokenizer
        self.pairs = pairs or {}
        self.target_lang = target_lang
        self.tokenized = tokenized
        self.bleu_signature: str | None = None
        self.chrf_signature: str | None = None
        self.throughput = Throughput(self.accelerator.reduce)
        self._began_at_update = 0
        if isinstance(train_dataset, StreamedBatches):
            args.ignore_data_skip = True  # it is told where to begin
        self.early_stopping = EarlyStoppingCallback(args.early_stopping_patience)
        if args.early_stopping_patience:
            self.add_callback(self.early_stopping)
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(StderrProgressCallback)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.throughput.add(inputs)
        smoothed = {"epsilon_ls": self.args.label_smoothing_factor, "skip_logits": True}
        return super().compute_loss(model, inputs | smoothed, *args, **kwargs)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.args.lr_scheduler_type == "noam" and self.lr_scheduler is None:
            d_model, warmup = self.model.config.d_model, self.args.get_warmup_steps(num_training_steps)
            # LambdaLR counts the updates done; the rate it gives is that of the next one.
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda n: noam_rate(n + 1, d_model, warmup))
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def keep(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"tokens": self.throughput.keep()}
        if isinstance(self.train_dataset, StreamedBatches):
            kept["stream"] = asdict(self.stream_position())
        return kept

    def restore(self, kept: dict[str, Any]) -> None:
        self.throughput.begin(kept.get("tokens"))
        self._began_at_update = self.state.global_step
        if "stream" in kept and isinstance(self.train_dataset, StreamedBatches):
            self.train_dataset.start = StreamPosition(**kept["stream"])
        if self.args.early_stopping_patience:
            # transformers would restore the patience too, and knows no callback that the run did not begin with.
            stopping = self.early_stopping
            before = self.state.stateful_callbacks.setdefault(type(stopping).__name__, stopping.state())
            stopping.early_stopping_patience_counter = before["attributes"]["early_stopping_patience_counter"]
            if stopping.early_stopping_patience_counter >= stopping.early_stopping_patience:
                self.control.should_training_stop = True

    def stream_position(self) -> StreamPosition:
        """Where a streamed corpus is after the batches trained on."""
        batches = (self.state.global_step - self._began_at_update) * self.args.gradient_accumulation_steps
        return self.train_dataset.position_after(batches)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if isinstance(self.train_dataset, StreamedBatches) and self.is_in_train:
            self.state.epoch = float(self.stream_position().epoch)
        if "loss" in logs:
            logs |= self.throughput.since_last_log()
        if "train_loss" in logs:
            logs |= self.throughput.whole_run(logs["train_runtime"] + self._seconds_before)
            logs.pop("train_samples_per_second", None)  # made of a number of rows that token batches do not have
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        began = time.monotonic()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.throughput.leave_out(time.monotonic() - began)

    def get_train_dataloader(self) -> DataLoader[Any]:
        if isinstance(self.train_dataset, StreamedBatches):
            # With a generator of its own the loader draws nothing from that of the dropout.
            return self._loader(self.train_dataset, batch_size=None, generator=torch.Generator())
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        processes = {"num_replicas": self.args.world_size, "rank": self.args.process_index}
        return self._token_batches(self.train_dataset, seed=seed, **processes)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return self._token_batches(self.eval_dataset if eval_dataset is None else eval_dataset, shuffle=False)

    def _token_batches(self, dataset: EncodedPairs, **options: Any) -> DataLoader[Any]:
        sampler = TokenBatchSampler(*dataset.lengths(), self.args.max_batch_tokens, **options)
        return self._loader(dataset, batch_sampler=sampler, num_workers=self.args.dataloader_num_workers)

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        pin_memory = self.args.dataloader_pin_memory and torch.accelerator.is_available()
        loader = DataLoader(dataset, collate_fn=self.data_collator, pin_memory=pin_memory, **options)
        # The batches are this process' already: accelerate is told of one, so that it takes none away.
        return prepare_data_loader(
            loader,
            self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
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
            with torch.no_grad():
                loss = self.model(**batch, skip_logits=True).loss
            count = int(batch["labels"].ne(IGNORED_LABEL).sum())
            nll += loss.item() * count
            tokens += count
        metrics = {"loss": nll / tokens, "perplexity": math.exp(min(nll / tokens, 700.0))}
        pairs = self.pairs.get(metric_key_prefix, ())
        if pairs:
            hypotheses = self.translate([source for source, _ in pairs])
            references = [target for _, target in pairs]
            if self.is_world_process_zero():
                folder = Path(self.args.output_dir)
                write_lines(folder / f"{metric_key_prefix}_hypotheses.txt", hypotheses)
                write_lines(folder / f"{metric_key_prefix}_references.txt", references)
                if self.is_in_train:
                    name = f"{metric_key_prefix}-{self.state.global_step}.txt"
                    write_lines(folder / "hypotheses" / name, hypotheses)
            metrics["bleu"], self.bleu_signature = corpus_bleu(
                hypotheses, references, self.target_lang, self.tokenized
            )
            metrics["chrf"], self.chrf_signature = corpus_chrf(hypotheses, references)
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
