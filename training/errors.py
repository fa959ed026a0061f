"""How the commands of this folder tell a user what is wrong."""

import sys
from collections.abc import Callable


class UsageError(Exception):
    """Input that the user can mend: one line that names the thing, where it is and what to do."""


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; a `UsageError` ends it with its one line on stderr and exit status 2."""
    try:
        main()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
