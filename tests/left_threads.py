"""`training.train` as a command, run under torchrun: the threads that are left of what bound the processes.

python -m torch.distributed.run --nproc_per_node 2 -m tests.left_threads ENDING RECIPE [--option value ...]
"""

import signal
import sys
from pathlib import Path
from typing import Any

from torch import distributed

from training.errors import run_command
from training.train import main
from training.trainer import TranslationTrainer

# ENDING: the method in which a signal comes to the second process after so many updates.
SIGNALS = {"finished": None, "trained": ("save_model", 3), "saved": ("training_step", 1)}


def signal_in(name: str, updates: int) -> None:
    method = getattr(TranslationTrainer, name)

    def interrupted(self: TranslationTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == updates and self.args.process_index == 1:
            signal.raise_signal(signal.SIGTERM)
        return method(self, *args, **kwargs)

    setattr(TranslationTrainer, name, interrupted)


def group_threads() -> list[str]:
    """Names, as Linux keeps them."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    if stopped := SIGNALS[sys.argv.pop(1)]:
        signal_in(*stopped)
    try:
        run_command(main)
    finally:
        print("left:", distributed.is_initialized(), group_threads(), file=sys.stderr)
