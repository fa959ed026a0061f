"""How the commands of this folder end when they cannot go on: one line on stderr and an exit status."""

import atexit
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandError(Exception):
    """The end of a command, in one line that says why and what to do; `status` is the exit status."""

    status = 1


class UsageError(CommandError):
    """Input that the user can mend: one line that names the thing, where it is and what to do."""

    status = 2


class SavingError(CommandError):
    """A result could not be written, mostly for want of space; what was saved before is as it was."""


class InterruptionError(CommandError):
    """A signal ended the command; the status is the shell's, 128 + its number."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(f"{signal.Signals(signum).name}: {message}")
        self.status = 128 + signum


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; a `CommandError`, a full disk, SIGTERM and Ctrl-C end it with one line on stderr.

    Exit status: 2 for what the user gave, 1 for what could not be written, 128 + its number for a signal.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, _end_at_once) if in_main_thread else None
    status, line = 0, ""
    try:
        main()
    except KeyboardInterrupt:
        status, line = _ending(InterruptionError(signal.SIGINT, "ended"))
    except CommandError as error:
        status, line = _ending(error)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        status, line = _ending(SavingError(f"{error}: free some space and run the same command again"))
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, previous)
    if line:
        tell(line)
    _end(status)


def tell(message: str) -> None:
    """A line for the user, on stderr: stdout is for results. Of the processes of a launcher the first alone speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def _end_at_once(signum: int, frame: FrameType | None) -> None:
    raise InterruptionError(signum, "ended")


def _ending(error: CommandError) -> tuple[int, str]:
    return error.status, str(error) if isinstance(error, InterruptionError) else f"error: {error}"


def _end(status: int) -> None:
    """End the process, if with a status or as one of several.

    Of several processes gloo's threads may still be giving back tensors, in turns with Python's own. The interpreter's
    end would now and then abort them (https://github.com/pytorch/pytorch/pull/179291), and destroying the group before
    can wait for them forever: all work is done, so the process ends without either.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status:
        sys.exit(status)
