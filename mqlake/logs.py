"""Logging set-up, the same for every process: one line a record, values as `key=value` at end.

Or one JSON object a line, for programs that gather logs.
"""

import json
import logging
import sys
from collections import Counter
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Literal

MAX_LOG_BYTES: Final = 10 * 1024 * 1024
KEPT_LOG_FILES: Final = 3
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

LogFormat = Literal["text", "json"]

OUR_NAMES: Final = ("time", "level", "logger", "message", "process", "exception")
"""Members of a JSON line; a value of one of these names has an underscore in front."""

_lines: Final[Counter[str]] = Counter()


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


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; the values are members of it.

    Args:
        process: Name of the process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, tz=UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        fields: dict[str, object] = getattr(record, "fields", None) or {}
        for key, value in fields.items():
            line[f"_{key}" if key in OUR_NAMES else key] = value
        return json.dumps(line, ensure_ascii=False, default=str)


class _RotatedFile(RotatingFileHandler):
    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802
        # The inherited answer formats the record once more and asks the disk for the kind of file:
        # as much again as writing the line, and each connection writes two.
        return self.stream is not None and self.stream.tell() >= self.maxBytes


def set_up_logging(
    level: str, log_file: Path | None, log_format: LogFormat = "text", process: str = ""
) -> None:
    """Send the root logger to a rotated file, or to standard error without one.

    Args:
        level: Of what is written.
        log_file: Where to.
        log_format: Of its lines.
        process: Name in JSON lines.
    """
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = _RotatedFile(
            log_file, maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOG_FILES, encoding="utf-8"
        )
    formatter: logging.Formatter = _JsonFormatter(process)
    if log_format == "text":
        formatter = _LineFormatter(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
    handler.setFormatter(formatter)
    handler.addFilter(_count)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # What our lines do not show is a fifth of their cost (Python's logging how-to, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def logged_lines() -> dict[str, int]:
    """Return how many lines of each level were written since the process began."""
    return {level: _lines[level] for level in LEVELS}


def _count(record: logging.LogRecord) -> bool:
    _lines[record.levelname] += 1
    return True
