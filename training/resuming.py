"""A `Seq2SeqTrainer` that can be ended at any moment and continued as if it had not been."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import Seq2SeqTrainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from training.checkpoints import (
    INCOMPLETE,
    Progress,
    Saving,
    best_checkpoint,
    clear_leftovers,
    is_scheduled,
    publish,
    read_progress,
    remove_old,
    write_manifest,
)
from training.errors import CommandError, UsageError
from training.files import write_text
from training.interruption import StopOnSignal

# Of a parameter group: what options set, and no state.
OPTIMIZER_OPTIONS = ("initial_lr", "betas", "eps", "weight_decay")


class ResumableTrainer(Seq2SeqTrainer):
    """Checkpoints appear whole, and a run continued from one gives what the unbroken run gives, its log included.

    - A checkpoint that cannot be written ends training with `SavingError`; those before it stay.
    - `with trainer.stop:` around `train` makes SIGTERM and Ctrl-C save and raise `InterruptionError`.
    - Evaluation leaves the random numbers of training alone.
    - `train_loss`, `train_runtime` and `train_steps_per_second` are of the whole run, however often continued.

    Attributes:
        stop: the signals, see `StopOnSignal`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stop = StopOnSignal()
        self.add_callback(self.stop)
        self.add_callback(_KeepProgress(self))
        self._writing = False
        self._resumed_from: Path | None = None
        self._seconds_before = 0.0
        self._began = 0.0

    def planned(self) -> tuple[int, int]:
        """Epochs, the last perhaps in part, and updates of the whole run, by `max_steps` or `num_train_epochs`."""
        values = self.set_initial_training_values(self.args, self.get_train_dataloader())
        return int(values[0]), int(values[-1])

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        except CommandError:
            # Progress bars and reports are closed as at any end.
            self.callback_handler.on_train_end(self.args, self.state, self.control)
            raise

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)

    def load_weights(self, folder: Path) -> None:
        """Take over the weights in a folder.

        Raises:
            UsageError: they cannot be read.
        """
        try:
            self._load_from_checkpoint(str(folder))
        except (OSError, ValueError, SafetensorError) as error:
            raise UsageError(f"{folder}: the model cannot be read ({' '.join(str(error).split())})") from error

    def load_trained(self, folder: Path) -> dict[str, Any]:
        """Take over weights and state of a run that was trained to its end; the numbers of that training.

        Raises:
            UsageError: the weights cannot be read.
        """
        self.load_weights(folder)
        self.state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        logged = [entry for entry in self.state.log_history if "train_runtime" in entry]
        return {name: value for name, value in logged[-1].items() if name != "step"}

    def save_state(self) -> None:
        """Write the state at the top of the run's folder, whole: it says that the model there is the finished one."""
        if self.is_world_process_zero():
            text = json.dumps(asdict(self.state), indent=2, sort_keys=True) + "\n"
            write_text(Path(self.args.output_dir) / TRAINER_STATE_NAME, text)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs:
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 1)
            logs["train_runtime"] = round(logs["train_runtime"] + self._seconds_before, 4)
            logs["train_steps_per_second"] = round(self.state.global_step / logs["train_runtime"], 3)
        super().log(logs, start_time)

    def begin(self) -> None:
        """Start the clock and, in a continued run, go on where the log of the one before was."""
        before = read_progress(self._resumed_from) if self._resumed_from else None
        self._began, self._seconds_before = time.monotonic(), before.seconds if before else 0.0
        if self._resumed_from:
            self.args.eval_on_start = False
            self.state.compute_steps(self.args, self.state.max_steps)
            best = best_checkpoint(self._resumed_from)
            self.state.best_model_checkpoint = str(best) if best and best.is_dir() else None
        if before:
            self._tr_loss += before.running_loss
            self._total_loss_scalar = before.total_loss
            self._globalstep_last_logged = before.last_logged_step
        self.restore(before.kept if before else {})
        if self._resumed_from and self.args.eval_strategy == "epoch" and not self.state.epoch % 1:
            self._make_up_for_evaluation()

    def _make_up_for_evaluation(self) -> None:
        """That of an epoch's end comes after the checkpoint of its last update: the run may have ended in between."""
        update = self.state.global_step
        if not any(entry["step"] == update and "eval_loss" in entry for entry in self.state.log_history):
            self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._maybe_log_save_evaluate(
                self._tr_loss, None, self.model_wrapped, None, self.state.epoch, None, time.time()
            )

    def keep(self) -> dict[str, Any]:
        """What a checkpoint holds in addition, as JSON can hold it; every process is asked."""
        return {}

    def restore(self, kept: dict[str, Any]) -> None:
        """Called when training begins, with what `keep` gave; empty in a new run."""

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # Moments and the number of updates are the checkpoint's, rate and decay those of the options given.
        given = [{name: group[name] for name in OPTIMIZER_OPTIONS if name in group} for group in self._groups()]
        super()._load_optimizer_and_scheduler(checkpoint)
        for group, options in zip(self._groups(), given, strict=True):
            group.update(options)
        if isinstance(self.lr_scheduler, LambdaLR):
            schedule = self.lr_scheduler
            schedule.base_lrs = [group["initial_lr"] for group in self._groups()]
            for group, of_update in zip(self._groups(), schedule.lr_lambdas, strict=True):
                group["lr"] = group["initial_lr"] * of_update(schedule.last_epoch)

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def _run_epoch(self, **kwargs: Any) -> None:
        # Continued from the checkpoint of the last update, in the middle of an epoch, the stock trainer does one more;
        # a stream has epochs without end.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        if not self.control.should_training_stop:
            super()._run_epoch(**kwargs)

    def _load_best_model(self) -> None:
        self.load_weights(Path(self.state.best_model_checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied weight is saved under one of its names and is not missing under the others.
        load_result.missing_keys[:] = [
            name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys
        ]
        super()._issue_warnings_after_load(load_result)

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return str(Path(folder) / INCOMPLETE) if self._writing else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        path = folder / f"checkpoint-{self.state.global_step}"
        with Saving(path, folder):
            if self.args.should_save:
                clear_leftovers(folder)
            self.accelerator.wait_for_everyone()
            scheduled, best = self._is_scheduled(path), self.state.best_model_checkpoint
            self._writing = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._writing = False
            found = folder / f"checkpoint-{self.state.best_global_step}"
            if (found == path and scheduled) or (found.is_dir() and is_scheduled(found)):
                best = str(found)
            self.state.best_model_checkpoint = best  # the stock trainer looked for it where it was writing
            running_loss = self.accelerator.reduce(self._tr_loss.clone(), "mean").item()
            kept = self.keep()
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                written = folder / INCOMPLETE / path.name
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                write_manifest(written, self._progress(scheduled, running_loss, kept))
                publish(written, folder)
                remove_old(path, self.args.save_total_limit, self.state.best_model_checkpoint)
            self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(path))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._writing:  # only what is complete
            super()._push_from_checkpoint(checkpoint_folder)

    def _is_scheduled(self, path: Path) -> bool:
        """Whether the options ask for the checkpoint that is to be written, or did for the one that it replaces."""
        is_best = self.args.save_strategy == "best" and self.state.best_global_step == self.state.global_step
        return not self.stop.unscheduled or is_best or (path.exists() and is_scheduled(path))

    def _progress(self, scheduled: bool, running_loss: float, kept: dict[str, Any]) -> Progress:
        return Progress(
            running_loss,
            self._globalstep_last_logged,
            self._total_loss_scalar,
            seconds=self._seconds_before + time.monotonic() - self._began,
            scheduled=scheduled,
            kept=kept,
        )


class _KeepProgress(TrainerCallback):
    """Calls `begin` of a trainer when its training has been set up."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
