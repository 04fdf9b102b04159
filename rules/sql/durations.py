"""Spans of time as rules write them: `'10 minutes'`, `'1 hour 30 minutes'`, `'500 ms'`."""

import re
from typing import Final

_WORDS: Final = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_MILLISECONDS: Final = {word: size for size, words in _WORDS.items() for word in words}
_NAMES: Final = {86_400_000: "day", 3_600_000: "hour", 60_000: "minute", 1_000: "second"}
_PART: Final = re.compile(r"\s*([0-9]{1,9})\s*([A-Za-z]+)\s*", re.ASCII)


class InvalidDuration(Exception):  # noqa: N818 - it names the problem
    """A text that is no span of time."""


def milliseconds(written: str) -> int:
    """Return the duration that a text says.

    Raises:
        InvalidDuration: It says no span of time.
    """
    total = 0
    place = 0
    while True:
        part = _PART.match(written, place)
        if part is None or part[2].lower() not in _MILLISECONDS:
            raise InvalidDuration("expected a span of time like '30 seconds' or '1 hour'")
        total += int(part[1]) * _MILLISECONDS[part[2].lower()]
        place = part.end()
        if place == len(written):
            return total


def shown(duration_ms: int) -> str:
    """Return a span of time in its largest whole unit."""
    for size, name in _NAMES.items():
        if duration_ms and duration_ms % size == 0:
            count = duration_ms // size
            return f"{count} {name}{'s' * (count != 1)}"
    return f"{duration_ms} milliseconds"


def interval(duration_ms: int) -> str:
    """Return a span of time as a literal of Spark SQL."""
    sign = "-" if duration_ms < 0 else ""
    seconds, rest = divmod(abs(duration_ms), 1_000)
    return f"INTERVAL '{sign}{seconds}.{rest:03}' SECOND"
