"""One base error; each kind knows its exit code and shows itself in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class VlpipeError(Exception):
    """Something that the user can mend: the message gives the value, what was expected, what to do."""

    exit_code: ClassVar[int] = 1


class UnknownNameError(VlpipeError):
    """A name that nothing carries; exits like other usage errors."""

    exit_code = 2

    def __init__(self, what: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(given, names, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        super().__init__(f"no {what} is named '{given}'; {hint}known: {', '.join(names) or 'none'}")


class UsageError(VlpipeError):
    """Options or settings that do not fit together or do not parse."""

    exit_code = 2


class TooManyFailuresError(VlpipeError):
    """The work is done and kept, but more rows failed than were allowed."""

    exit_code = 3


class StaleError(VlpipeError):
    """A cache or run that was made from something else than what is asked for."""

    exit_code = 4
