"""Writing files so that what was whole stays whole; what stands in the way, or is damaged, in one line."""

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.errors import UsageError


def check_folder(folder: Path) -> None:
    """See before any work that a folder can be written, and leave everything as it was.

    A folder to be made is not made yet: the nearest one that is there is written into.

    Raises:
        UsageError: it cannot be written, or a file has the place of it or of one above it.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}): give another folder") from error


def read_object(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds, `None` where there is no file.

    Raises:
        UsageError: it holds no JSON object.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: holds no JSON object")
    return content


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write one line for each string, whatever it holds: a line end inside becomes a space."""
    write_text(path, "".join(line.replace("\r", " ").replace("\n", " ") + "\n" for line in lines))
