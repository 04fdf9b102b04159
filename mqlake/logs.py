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

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields: dict[str, object] | None = getattr(record, "fields", None)
        if fields:
            line += " " + " ".join(f"{key}={value!r}" for key, value in fields.items())
        return line


def set_up_logging(level: str, log_file: Path | None) -> None:
    """Send the root logger to a rotated file, or to standard error without one."""
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = RotatingFileHandler(
            log_file, maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOG_FILES, encoding="utf-8"
        )
    handler.setFormatter(
        _LineFormatter(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
