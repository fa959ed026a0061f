"""`training.train` as a command, run under torchrun, with a signal that comes to the second process alone.

python -m torch.distributed.run --nproc_per_node 2 -m tests.signal_one ENDING RECIPE [--option value ...]
"""

import signal
import sys
from typing import Any

from training.errors import run_command
from training.train import main
from training.trainer import TranslationTrainer

# ENDING: the method in which the signal comes, after so many updates.
SIGNALS = {"trained": ("save_model", 3), "saved": ("training_step", 1)}


def signal_in(name: str, updates: int) -> None:
    method = getattr(TranslationTrainer, name)

    def interrupted(self: TranslationTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == updates and self.args.process_index == 1:
            signal.raise_signal(signal.SIGTERM)
        return method(self, *args, **kwargs)

    setattr(TranslationTrainer, name, interrupted)


if __name__ == "__main__":
    signal_in(*SIGNALS[sys.argv.pop(1)])
    run_command(main)
