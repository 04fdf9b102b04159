"""Checkpoint of the runner, as one record of `mqlake.runner`.

The record is written about once a second while something changes, and at the end. It holds

- per partition of `mqlake.outputs` the first offset that is not done with, and the marks up to
  there: per source the last output that was seen, so that repeated ones are known;
- each action that has fallen behind, with the position and the marks of its own;
- per partition of `mqlake.inbound` an offset before all messages that were published for outputs
  from the first position on: where a new run begins to look for published messages.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records.versions import RECORD_VERSION, check_version

CHECKPOINT_KEY: Final = b"checkpoint"
CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
    "max.compaction.lag.ms": str(60 * 60 * 1000),
}
"""Configuration of the log topic."""

Mark = tuple[int, str, int]
"""Mark of an output: offset of the source record, rule, index; see `output_records.Output.mark`."""

Marks = dict[str, Mark]
"""Per source the last output seen in a partition of `mqlake.outputs`."""


class LaneKey(NamedTuple):
    """One action of one version of a rule."""

    tenant: str
    rule: str
    version: int
    action: int


@dataclass(slots=True)
class ReadPosition:
    """Position at which to read on in a partition of `mqlake.outputs`."""

    offset: int
    marks: Marks = field(default_factory=dict)
    """Marks of the outputs before; not changed once they are here."""


ReadPositions = dict[int, ReadPosition]
"""By partition."""


@dataclass(slots=True)
class Checkpoint:
    positions: ReadPositions
    behind: dict[LaneKey, ReadPositions]
    published_from: dict[int, int]
    """By partition of `mqlake.inbound`."""
    is_clean: bool = False
    """Written at an orderly end: nothing was done beyond it."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the value of the record."""
    return json.dumps(
        {
            "v": RECORD_VERSION,
            "clean": checkpoint.is_clean,
            "places": _encode_positions(checkpoint.positions),
            "behind": [
                {**key._asdict(), "places": _encode_positions(positions)}
                for key, positions in checkpoint.behind.items()
            ],
            "published_from": checkpoint.published_from,
        },
        separators=(",", ":"),
    ).encode()


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Undo `encode_checkpoint`.

    Raises:
        InvalidRecord: Not of our version, or malformed.
    """
    try:
        fields = json.loads(data)
        check_version(fields["v"], "checkpoint")
        return Checkpoint(
            positions=_decode_positions(fields["places"]),
            behind={
                LaneKey(lane["tenant"], lane["rule"], lane["version"], lane["action"]): (
                    _decode_positions(lane["places"])
                )
                for lane in fields["behind"]
            },
            published_from={int(p): at for p, at in fields["published_from"].items()},
            is_clean=fields["clean"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidRecord(f"checkpoint is malformed: {exc!r}") from exc


def _encode_positions(positions: ReadPositions) -> dict[int, Any]:
    return {
        partition: [position.offset, position.marks] for partition, position in positions.items()
    }


def _decode_positions(fields: dict[str, Any]) -> ReadPositions:
    return {
        int(partition): ReadPosition(
            offset, {source: (at, rule, index) for source, (at, rule, index) in marks.items()}
        )
        for partition, (offset, marks) in fields.items()
    }


class PublishedFrom:
    """Remembers where `mqlake.inbound` ended when outputs were first handed to actions.

    A message for an output is appended after the output was handed over, so behind every end that
    was asked for before that. Ends are asked for about once a second.
    """

    def __init__(self) -> None:
        self._known: list[tuple[dict[int, int], dict[int, int]]] = []

    def note(self, ends: dict[int, int], frontier: dict[int, int]) -> None:
        """Note ends, asked for before outputs from the frontier on were handed over."""
        if self._known and self._known[-1][1] == frontier:
            self._known[-1] = (ends, frontier)
        else:
            self._known.append((ends, frontier))

    def before(self, positions: ReadPositions) -> dict[int, int]:
        """Return the latest ends before everything that is not done with; forget older ones."""
        while len(self._known) > 1 and _is_at_most(self._known[1][1], positions):
            del self._known[0]
        return self._known[0][0] if self._known else {}


def _is_at_most(frontier: dict[int, int], positions: ReadPositions) -> bool:
    return all(at <= positions[p].offset for p, at in frontier.items() if p in positions)


def mark_before(mark: Mark) -> Mark:
    """Return a mark that lets this output pass, and those before it not."""
    return mark[0], mark[1], mark[2] - 1
