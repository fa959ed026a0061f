"""A `Seq2SeqTrainer` that can be ended at any moment and continued as if it had not been."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from training.checkpoints import (
    INCOMPLETE,
    Progress,
    Saving,
    clear_leftovers,
    is_scheduled,
    publish,
    read_progress,
    remove_old,
    write_manifest,
)
from training.errors import CommandError
from training.interruption import StopOnSignal


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
        """Take over the weights in a folder."""
        self._load_from_checkpoint(str(folder))

    def load_trained(self, folder: Path) -> dict[str, Any]:
        """Take over weights and state of a run that was trained to its end; the numbers of that training."""
        self.load_weights(folder)
        self.state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        logged = [entry for entry in self.state.log_history if "train_runtime" in entry]
        return {name: value for name, value in logged[-1].items() if name != "step"}

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
        if before:
            self._tr_loss += before.running_loss
            self._total_loss_scalar = before.total_loss
            self._globalstep_last_logged = before.last_logged_step
        self.restore(before.kept if before else {})

    def keep(self) -> dict[str, Any]:
        """What a checkpoint holds in addition, as JSON can hold it; every process is asked."""
        return {}

    def restore(self, kept: dict[str, Any]) -> None:
        """Called when training begins, with what `keep` gave; empty in a new run."""

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _run_epoch(self, **kwargs: Any) -> None:
        # Continued from the checkpoint of the last update, in the middle of an epoch, the stock trainer does one more;
        # a stream has epochs without end.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        if not self.control.should_training_stop:
            super()._run_epoch(**kwargs)

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
            self._writing = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._writing = False
            self._name_best(folder)
            running_loss = self.accelerator.reduce(self._tr_loss.clone(), "mean").item()
            kept = self.keep()
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                written = folder / INCOMPLETE / path.name
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
                write_manifest(written, self._progress(path, running_loss, kept))
                publish(written, folder)
                remove_old(path, self.args.save_total_limit, self.state.best_model_checkpoint)
            self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(path))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._writing:  # only what is complete
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, folder: Path) -> None:
        """Name the best checkpoint where it is going to be: the stock trainer looked for it where it was writing."""
        best = self.state.best_global_step
        if best and (best == self.state.global_step or (folder / f"checkpoint-{best}").is_dir()):
            self.state.best_model_checkpoint = str(folder / f"checkpoint-{best}")

    def _progress(self, path: Path, running_loss: float, kept: dict[str, Any]) -> Progress:
        return Progress(
            running_loss,
            self._globalstep_last_logged,
            self._total_loss_scalar,
            seconds=self._seconds_before + time.monotonic() - self._began,
            scheduled=not self.stop.unscheduled or (path.exists() and is_scheduled(path)),
            kept=kept,
        )


class _KeepProgress(TrainerCallback):
    """Calls `begin` of a trainer when its training has been set up."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
