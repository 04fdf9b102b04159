"""A query's checkpoint, as Spark writes it."""

import json
from collections.abc import Mapping
from pathlib import Path


def note_end(checkpoint: Path, batch_id: int, ends: Mapping[str, Mapping[str, int]]) -> None:
    """Note where a batch ends, as Spark does before it begins: log topic, partition, offset."""
    _write(checkpoint / "offsets" / str(batch_id), "v1", "{}", json.dumps(ends))


def note_done(checkpoint: Path, batch_id: int) -> None:
    """Note that a batch is done."""
    _write(checkpoint / "commits" / str(batch_id), "v1", "{}")


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
