"""How a command ends when it cannot go on: one line on stderr and an exit status."""


class CommandError(Exception):
    """One line that says why and what to do; `status` is the exit status."""

    status = 1


class UsageError(CommandError):
    """What the user gave and can mend: the line names the thing, where it is, and the remedy."""

    status = 2
