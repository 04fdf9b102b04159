"""What processes would write into their logs, as text and as JSON, at the lowest level."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mqlake.logs import _JsonFormatter, _LineFormatter

SOURCES = ("mqlake", "ingest", "api", "rules", "streaming", "launcher")
"""Packages whose lines are read: what others say of their own at this level nobody logs."""


class _Lines(logging.Handler):
    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0
        self._is_wanted = is_wanted
        self._formatters = _LineFormatter(), _JsonFormatter("process")

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        lines = (formatter.format(record) for formatter in self._formatters)
        self.found += filter(self._is_wanted, lines)


@contextmanager
def lines_with(is_wanted: Callable[[str], bool]) -> Iterator[_Lines]:
    """Collect the lines of which something is true, while the block runs."""
    handler = _Lines(is_wanted)
    loggers = [logging.getLogger(name) for name in SOURCES]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)
