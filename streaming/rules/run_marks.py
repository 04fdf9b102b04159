"""Marks of runs of stateful rules, files in their folders: router and lake see them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from mqlake.durable import write_durably
from mqlake.records.rules import LeftUnread, read_unread, unread_fields
from streaming.log.checkpoints import RUNS, checkpoint

_ENDED: Final = "ended"
"""File of a run that has nothing more to do; it says what it was to take and has not, if any."""
_FAILED: Final = "failed"
"""Mark of a run whose rule is to be paused; it says why."""
_TRIES: Final = "tries"
"""Mark of a run whose version is out of force: how often it was begun, and where."""


def run_folder(data_dir: Path, name: str) -> Path:
    """Return the folder of a run."""
    return checkpoint(data_dir, RUNS) / name


def note_end(folder: Path, unread: LeftUnread | None) -> None:
    """Note that a run has nothing more to do; that is on the disk when this returns."""
    data = b"" if unread is None else json.dumps(unread_fields(unread)).encode()
    write_durably(folder / _ENDED, data)


def is_ended(data_dir: Path, name: str) -> bool:
    """Tell whether a run is noted to have nothing more to do."""
    return (run_folder(data_dir, name) / _ENDED).exists()


def left_unread(data_dir: Path, name: str) -> LeftUnread | None:
    """Return what a run was to take when it was given up; None when it was not."""
    try:
        data = (run_folder(data_dir, name) / _ENDED).read_bytes()
        return read_unread(json.loads(data)) if data else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def note_try(folder: Path, place: str) -> int:
    """Note that an application begins a run at a place; return how many have in a row."""
    path = folder / _TRIES
    count = 1
    with suppress(OSError, ValueError):
        before, at = path.read_text(encoding="utf-8").split(" ", 1)
        count += int(before) if at == place else 0
    write_durably(path, f"{count} {place}".encode())
    return count


def forget_tries(folder: Path) -> None:
    """Note that the application ends in order: it has not died of the run."""
    (folder / _TRIES).unlink(missing_ok=True)


def note_failure(folder: Path, reason: str) -> None:
    """Note that the rule of a run is to be paused: the router looks for that, and does it."""
    write_durably(folder / _FAILED, reason.encode())


def failure(data_dir: Path, name: str) -> str | None:
    """Return why a rule is to be paused, by the name of its run; None when it is not."""
    try:
        return (run_folder(data_dir, name) / _FAILED).read_text(encoding="utf-8")
    except OSError:
        return None
