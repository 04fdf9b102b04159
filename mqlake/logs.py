"""Logging set-up, the same for every process: one line a record, values as `key=value` at end."""

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

MAX_LOG_BYTES: Final = 10 * 1024 * 1024
KEPT_LOG_FILES: Final = 3


class _LineFormatter(logging.Formatter):
    """Appends the values given as `extra={"fields": {...}}`."""

    _second = 0
    _second_text = ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        second = int(record.created)
        if second != self._second:
            self._second_text = super().formatTime(record, datefmt)
            self._second = second
        return self._second_text

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields: dict[str, object] | None = getattr(record, "fields", None)
        if fields:
            line += " " + " ".join(f"{key}={value!r}" for key, value in fields.items())
        return line


class _RotatedFile(RotatingFileHandler):
    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802
        # The inherited answer formats the record once more and asks the disk for the kind of file:
        # as much again as writing the line, and each connection writes two.
        return self.stream is not None and self.stream.tell() >= self.maxBytes


def set_up_logging(level: str, log_file: Path | None) -> None:
    """Send the root logger to a rotated file, or to standard error without one."""
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = _RotatedFile(
            log_file, maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOG_FILES, encoding="utf-8"
        )
    handler.setFormatter(
        _LineFormatter(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
