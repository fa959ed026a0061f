"""SIGTERM and Ctrl-C during training: finish the update, save, end."""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed
from transformers import TrainerCallback

from training.errors import InterruptionError

# Launchers send on to each process what a terminal has sent to all of them: within this time it is one signal.
SAME_SIGNAL_SECONDS = 1.0


class StopOnSignal(TrainerCallback):
    """Within `with`, a first SIGTERM or SIGINT has the trainer save after the update in hand and end.

    It ends by `InterruptionError`; at the end of an epoch after what it does there, evaluation included. Of the last
    update, that of an early stop too, it changes nothing. A second signal, a second or more later, does what it did
    before `with`. Signals are caught in the main thread only. Of several processes all end after the same update,
    whichever the signal came to.

    Attributes:
        received: number of the signal that came; `None` before.
        unscheduled: the next checkpoint is saved for the signal alone.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.unscheduled = False
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}
        self._ending: int | None = None

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._previous[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signum, time.monotonic()
            # Not `print`: the signal may have come inside one.
            os.write(2, f"{signal.Signals(signum).name}: saving after this update; once more ends at once\n".encode())
        elif time.monotonic() - self._received_at >= SAME_SIGNAL_SECONDS:
            self.__exit__(None, None, None)
            signal.raise_signal(signum)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.epoch % 1:
            self._save_if_received(args, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save_if_received(args, control)

    def _save_if_received(self, args: Any, control: Any) -> None:
        if control.should_training_stop:
            return  # what follows is what the unbroken run does: its last evaluation, and saving the finished model
        self._ending = self.agreed(args)
        if self._ending:
            self.unscheduled = not control.should_save
            control.should_save = True

    def agreed(self, args: Any) -> int | None:
        """The number of the signal that came to any of the processes, all of which ask; `None` where none did."""
        received = self.received or 0
        if args.world_size > 1:
            agreed = torch.tensor(received, device=args.device)
            torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MAX)
            received = int(agreed)
        return received or None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.unscheduled = False
        if self._ending is not None and not control.should_training_stop:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            raise InterruptionError(self._ending, f"saved {checkpoint}; the same command continues from there")
