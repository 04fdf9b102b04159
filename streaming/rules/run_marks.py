"""Marks of runs of stateful rules, files in their folders: router and lake see them."""

from pathlib import Path
from typing import Final

from mqlake.durable import sync, write_durably
from streaming.checkpoints import RUNS, checkpoint

_ENDED: Final = "ended"
"""File of a run that has nothing more to do."""
_FAILED: Final = "failed"
"""Of one whose rule is to be paused; it says why."""


def run_folder(data_dir: Path, name: str) -> Path:
    """Return the folder of a run."""
    return checkpoint(data_dir, RUNS) / name


def note_end(folder: Path) -> None:
    """Note that a run has nothing more to do; that is on the disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ENDED).touch()
    sync(folder)


def is_ended(data_dir: Path, name: str) -> bool:
    """Tell whether a run is noted to have nothing more to do."""
    return (run_folder(data_dir, name) / _ENDED).exists()


def note_failure(folder: Path, reason: str) -> None:
    """Note that the rule of a run is to be paused: the router looks for that, and does it."""
    write_durably(folder / _FAILED, reason.encode())


def failure(data_dir: Path, name: str) -> str | None:
    """Return why a rule is to be paused, by the name of its run; None when it is not."""
    try:
        return (run_folder(data_dir, name) / _FAILED).read_text(encoding="utf-8")
    except OSError:
        return None
