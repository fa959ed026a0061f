"""Training to its end, and the finished model at the top of the run's folder, averaged where asked for."""

import math
from pathlib import Path
from typing import Any

from training.average import average_checkpoints, last_checkpoints
from training.checkpoints import Saving, checkpoints, remove_unscheduled
from training.errors import InterruptionError, UsageError
from training.trainer import TranslationTrainer, TranslationTrainingArguments

AVERAGING = "averaging.json"


def check_averaging(arguments: TranslationTrainingArguments, epochs: int, updates: int) -> None:
    """A run of so many epochs and updates that averages must keep what it averages.

    Raises:
        UsageError: it would not.
    """
    wanted, strategy, limit = arguments.average_last, arguments.save_strategy.value, arguments.save_total_limit
    what = f"`average_last: {wanted}`"
    if not wanted:
        return
    if wanted < 0:
        raise UsageError(f"{what} must not be negative")
    if strategy not in ("steps", "epoch"):
        raise UsageError(f"{what} needs `save_strategy: steps` or `epoch`, not `{strategy}`")
    if arguments.load_best_model_at_end:
        raise UsageError(f"{what} and `load_best_model_at_end` exclude each other")
    if limit and limit < wanted:
        raise UsageError(f"{what} needs `save_total_limit: {wanted}` or more, not {limit}")
    every = arguments.save_steps if arguments.save_steps >= 1 else math.ceil(updates * arguments.save_steps)
    saved = epochs if strategy == "epoch" else math.ceil(updates / every)
    if saved < wanted:
        raise UsageError(f"{what}: the run makes {saved} checkpoints only (`save_strategy`, `save_steps`)")


def run_training(trainer: TranslationTrainer, folder: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Train to the end, from a checkpoint where there is one, and put the model at the top of the folder.

    The state is written last: it says that the model there is the finished one.

    Raises:
        UsageError: a checkpoint that is to be averaged cannot be read.
        SavingError: a checkpoint or the model could not be written.
        InterruptionError: a signal came; what there was is saved.
    """
    with trainer.stop:
        metrics: dict[str, Any] = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None).metrics
        with Saving(folder, folder):
            trainer.save_model(str(folder))
            if trainer.args.should_save:
                (folder / AVERAGING).unlink(missing_ok=True)
                if trainer.args.average_last:
                    remove_unscheduled(folder)
                    saved = len(checkpoints(folder))  # early stopping may leave fewer than were asked for
                    average_checkpoints(folder, last_checkpoints(folder, min(trainer.args.average_last, saved)))
            trainer.accelerator.wait_for_everyone()
            if trainer.args.average_last:
                trainer.load_weights(folder)
            trainer.save_state()
            if trainer.args.should_save:
                remove_unscheduled(folder)
        if signum := trainer.stop.agreed(trainer.args):
            raise InterruptionError(signum, f"trained, saved {folder}; the same command evaluates it")
    return metrics
