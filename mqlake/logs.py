"""Logging set-up, the same for every process: one line a record, values as `key=value` at end.

Or one JSON object a line, for programs that gather logs.
"""

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
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


_INFO: Final = vars(logging.LogRecord("", logging.INFO, "", 0, "", (), None))
"""Attributes that all lines of level INFO share."""


def log_often(logger: logging.Logger, message: str, fields: Mapping[str, object]) -> None:
    """Do the same as `logger.info(message, extra={"fields": fields})`, in less time.

    For lines of each client that comes and goes. The level is the caller's to look at.
    """
    record = logging.LogRecord.__new__(logging.LogRecord)
    created = time.time()
    record.__dict__ = {
        **_INFO,
        "name": logger.name,
        "msg": message,
        "fields": fields,
        "created": created,
        "msecs": int(created % 1 * 1000),
    }
    logger.handle(record)


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
        if record.exc_info or record.stack_info:
            line = super().format(record)
        else:  # the same, in a third of the time
            second = self.formatTime(record, self.datefmt)
            line = (
                f"{second}.{int(record.msecs):03d} {record.levelname} {record.name}"
                f" {record.getMessage()}"
            )
        fields: dict[str, object] | None = getattr(record, "fields", None)
        if fields:
            line += " " + " ".join([f"{key}={value!r}" for key, value in fields.items()])
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
    """Writes lines of one turn of an event loop together; those of other threads at once.

    The inherited answers cost more than the line: each connection of a client writes two.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """Event loop whose turns end with their lines in the file."""
    _size = 0
    """Size of the file, as far as characters are bytes."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        self._size = stream.tell()
        return stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + self.terminator
            if self._size >= self.maxBytes:
                self.doRollover()
            stream: TextIOWrapper | None = self.stream
            if stream is None:  # it was closed
                stream = self.stream = self._open()
            stream.write(line)
            self._size += len(line)
            self._flush_soon(record.levelno)
        except Exception:  # noqa: BLE001 - as every handler: a line that fails ends nothing
            self.handleError(record)

    def _flush_soon(self, level: int) -> None:
        loop = asyncio._get_running_loop()
        if loop is None or level >= logging.WARNING:
            self.flush()
        elif loop is not self._loop:
            self._loop = loop
            loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._loop = None
        self.flush()


def set_up_logging(
    level: str, log_file: Path | None, log_format: LogFormat = "text", process: str = ""
) -> None:
    """Send the root logger to a rotated file, or to standard error without one.

    Args:
        level: Lowest level of lines that are written.
        log_file: File to write to.
        log_format: Format of the lines.
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
    # Fields that our lines do not show are a fifth of their cost (Python's logging how-to,
    # "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def logged_lines() -> dict[str, int]:
    """Return how many lines of each level were written since the process began."""
    return {level: _lines[level] for level in LEVELS}


def _count(record: logging.LogRecord) -> bool:
    _lines[record.levelname] += 1
    return True
