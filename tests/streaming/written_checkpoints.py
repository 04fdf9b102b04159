"""A query's checkpoint, as Spark writes it."""

import json
from collections.abc import Mapping
from pathlib import Path


def note_end(
    checkpoint: Path,
    batch_id: int,
    ends: Mapping[str, Mapping[str, int]],
    watermark_ms: int = 0,
    other_source: str | None = None,
) -> None:
    """Note where a batch ends, as Spark does before it begins: log topic, partition, offset.

    Args:
        other_source: The offset of a source before the log.
    """
    sources = [json.dumps(ends)] if other_source is None else [other_source, json.dumps(ends)]
    metadata = json.dumps({"batchWatermarkMs": watermark_ms})
    _write(checkpoint / "offsets" / str(batch_id), "v1", metadata, *sources)


def note_done(checkpoint: Path, batch_id: int) -> Path:
    """Note that a batch is done; return the note."""
    return _write(checkpoint / "commits" / str(batch_id), "v1", "{}")


def _write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return path
