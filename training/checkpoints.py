"""Checkpoints of a run that are whole or not there, and finding the last of them.

A checkpoint is written inside `_incomplete` of the run's folder and moved out when it is complete; `checkpoint.json`
in it lists its files with their checksums. What is removed goes the same way back first.
"""

import json
import os
import re
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME

from training.errors import SavingError
from training.files import write_text

INCOMPLETE = "_incomplete"
DAMAGED = "_damaged-"
MANIFEST = "checkpoint.json"
REPLACED = "replaced-"


@dataclass
class Progress:
    """What a trainer knows between two lines of its log, so that a continued run logs what an unbroken one does.

    Attributes:
        running_loss: sum of the losses of the updates since the last line.
        last_logged_step: the update of that line.
        total_loss: sum of the losses up to that line.
        seconds: time in training.
        scheduled: `False` for a checkpoint that a signal asked for; it goes when the next one is there.
        kept: what the trainer's `keep` gave.
    """

    running_loss: float = 0.0
    last_logged_step: int = 0
    total_loss: float = 0.0
    seconds: float = 0.0
    scheduled: bool = True
    kept: dict[str, Any] = field(default_factory=dict)


def checkpoints(folder: Path) -> list[Path]:
    """The folders `checkpoint-<step>` in a folder, by step; none where there is no such folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"checkpoint-\d+", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def read_json(path: Path) -> Any:
    """What a JSON file holds; `None` where there is no file or no JSON in it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_progress(checkpoint: Path) -> Progress | None:
    """The progress kept in a checkpoint; `None` in one that was not written here."""
    manifest = read_json(checkpoint / MANIFEST)
    return Progress(**manifest["progress"]) if isinstance(manifest, dict) and "progress" in manifest else None


def is_scheduled(checkpoint: Path) -> bool:
    """Whether a checkpoint is one of those that the options ask for, and not there for a signal alone."""
    progress = read_progress(checkpoint)
    return progress is None or progress.scheduled


def best_checkpoint(checkpoint: Path) -> Path | None:
    """The best checkpoint at the time of another, by its name beside it: a run's folder may have been moved."""
    state = read_json(checkpoint / TRAINER_STATE_NAME)
    best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    return checkpoint.parent / Path(best).name if best else None


def write_manifest(checkpoint: Path, progress: Progress) -> None:
    """Finish a checkpoint: its files and their checksums, and the progress."""
    files = {path.relative_to(checkpoint).as_posix(): _checksum(path) for path in _files(checkpoint)}
    write_text(checkpoint / MANIFEST, json.dumps({"progress": asdict(progress), "files": files}, indent=2) + "\n")


def problem(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint in words; `None` when every file is as it was written."""
    manifest = read_json(checkpoint / MANIFEST)
    if not isinstance(manifest, dict) or not manifest.get("files"):
        return f"its {MANIFEST} is missing or damaged"
    for name, checksum in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file():
            return f"its {name} is missing"
        if _checksum(path) != checksum:
            return f"its {name} is not what was written"
    return None


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint so that nothing takes it for one; the new path."""
    aside = checkpoint.with_name(DAMAGED + checkpoint.name)
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(checkpoint, aside)
    return aside


def publish(checkpoint: Path, folder: Path) -> Path:
    """Move a complete checkpoint from `_incomplete` into the run's folder, over one of the same step; the new path."""
    for path in (*_files(checkpoint), checkpoint):
        _flush(path)
    final = folder / checkpoint.name
    if final.exists():
        os.replace(final, folder / INCOMPLETE / (REPLACED + final.name))
    os.replace(checkpoint, final)
    _flush(folder)
    shutil.rmtree(folder / INCOMPLETE)
    return final


def remove_old(newest: Path, limit: int | None, best: str | None) -> None:
    """Remove the oldest checkpoints over `limit` (`None` and 0: none), never the newest or the best.

    Those that a signal asked for go in any case, and count for nothing while one of them is the newest.
    """
    others = [path for path in checkpoints(newest.parent) if path != newest]
    kept = [path for path in others if is_scheduled(path)]
    removed = [path for path in others if path not in kept]
    if limit and is_scheduled(newest):
        protected = [path for path in kept if best is not None and path == Path(best)]
        free = [path for path in kept if path not in protected]
        removed += free[: max(0, 1 + len(kept) - max(limit, 1 + len(protected)))]
    for path in removed:
        remove(path)


def remove_unscheduled(folder: Path) -> None:
    """Remove the checkpoints that a signal asked for."""
    for path in checkpoints(folder):
        if not is_scheduled(path):
            remove(path)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint so that it is never seen in part."""
    bin_ = checkpoint.parent / INCOMPLETE
    bin_.mkdir(exist_ok=True)
    os.replace(checkpoint, bin_ / checkpoint.name)
    shutil.rmtree(bin_)


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed run left half written or half removed; put back a checkpoint that was being replaced."""
    for replaced in (folder / INCOMPLETE).glob(REPLACED + "*"):
        final = folder / replaced.name.removeprefix(REPLACED)
        if not final.exists():
            os.replace(replaced, final)
    shutil.rmtree(folder / INCOMPLETE, ignore_errors=True)


class Saving:
    """Within `with`, a failure to write becomes a `SavingError` that names the thing and what is there still."""

    def __init__(self, path: Path, run_folder: Path) -> None:
        self.path = path
        self.run_folder = run_folder

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        clear_leftovers(self.run_folder)
        # torch says RuntimeError, and tokenizers a bare Exception, for a disk that is full.
        if isinstance(error, (OSError, RuntimeError, SafetensorError)) or kind is Exception:
            saved = checkpoints(self.run_folder)
            free = shutil.disk_usage(self.run_folder).free // 2**20 if self.run_folder.exists() else 0
            last = f"{saved[-1]} is whole" if saved else "there is no checkpoint"
            reason = " ".join(str(error).split())
            raise SavingError(
                f"{self.path} could not be saved: {reason} ({free} MB free); {last}: "
                "free some space and run the same command again"
            ) from error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that a power cut cannot undo it after the rename."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
