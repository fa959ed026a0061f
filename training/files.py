"""Writing files so that what was whole stays whole."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write one line for each string, whatever it holds: a line end inside becomes a space."""
    write_text(path, "".join(line.replace("\r", " ").replace("\n", " ") + "\n" for line in lines))
