"""Text files, plain or .gz: what a line is, what is not UTF-8, output that is whole or not there."""

import gzip
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from tqdm import tqdm

from .errors import UsageError


def check_text(path: str) -> int | None:
    """Read a file from end to end; the number of its lines, or `None` for a pipe, which can be read only once.

    Raises:
        UsageError: the file cannot be read, or a line is not UTF-8.
    """
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        return None
    number = 0
    with open_input(path) as file:
        for number, raw in _raw_lines(file, path):
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: line {number} is not UTF-8 ({error.reason}): convert the file") from error
    return number


@contextmanager
def open_input(path: str | None) -> Iterator[Iterable[bytes]]:
    """A file, plain or .gz by its name, or stdin for `None`.

    Raises:
        UsageError: it cannot be opened, or is closed.
    """
    if path is None:
        if sys.stdin is None:
            raise UsageError("stdin is closed: name a file with --input")
        yield sys.stdin.buffer
        return
    opened: Any = gzip.open if path.endswith(".gz") else open
    with ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, "rb"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        yield file


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of UTF-8 text, as they come. A line ends at LF or CRLF and nowhere else.

    U+2028, U+0085, form feeds and lone carriage returns are text; a byte-order mark at the beginning is not. Of a line
    that is not UTF-8 the bytes that are wrong become U+FFFD, and a line on stderr says so.

    Args:
        name: of the file, for messages.
    """
    for number, raw in _raw_lines(file, name):
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            warn(f"{name}: line {number} is not UTF-8 ({error.reason}): what is wrong is read as U+FFFD")
            line = raw.decode(encoding, errors="replace")
        yield line.removesuffix("\n").removesuffix("\r") if raw.endswith(b"\n") else line


def _raw_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Binary files are split at LF alone, whatever else a line holds."""
    try:
        yield from enumerate(file, start=1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name}: cannot be read ({error})") from error


@contextmanager
def open_output(path: str | None) -> Iterator[IO[bytes]]:
    """A file, plain or .gz by its name, or stdout for `None`.

    The file is written under a temporary name beside it and gets its own name at the end, with the permissions of the
    file that it replaces; after an error that one is as it was. What is no ordinary file, a pipe for one, is written
    as it is; so is stdout's or stderr's file by any name, as /dev/stderr, from where that stands.

    Raises:
        UsageError: it cannot be opened, or is closed.
    """
    if path is None:
        if sys.stdout is None:
            raise UsageError("stdout is closed: name a file with --output")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    given = Path(path)
    with ExitStack() as stack:
        try:
            stream = _stream_of(given)
            ordinary = stream is None and (given.is_file() or not given.exists())
            # Through links: they stay. Of a pipe, as the shell names it, the resolved path is none.
            target = given.resolve() if ordinary else given
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}") if ordinary else target
            opened = temporary if stream is None else os.dup(stream)
            file = stack.enter_context(open(opened, "xb" if ordinary else "wb"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
        if ordinary:
            stack.callback(temporary.unlink, missing_ok=True)
            stack.callback(file.close)
            if target.exists():
                shutil.copymode(target, temporary)
        if path.endswith(".gz"):
            # Without name and time the same text gives the same file.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        else:
            yield file
        file.close()
        if ordinary:
            os.replace(temporary, target)


def _stream_of(path: Path) -> int | None:
    """The number of stdout or stderr, if one of them writes to that file."""
    numbers = [stream.fileno() for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]
    if not path.exists():
        return None
    return next((number for number in numbers if os.path.samestat(path.stat(), os.fstat(number))), None)


def write_line(file: IO[bytes], text: str) -> None:
    """One line, whatever the text holds: a line end in it becomes a space."""
    file.write((text.replace("\r", " ").replace("\n", " ") + "\n").encode())


def warn(message: str) -> None:
    """A line on stderr, above the bar if there is one: stdout is for results."""
    tqdm.write(f"warning: {message}", file=sys.stderr)
