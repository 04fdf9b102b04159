"""How far a federator has come with the log of its site: one record of `mqlake.federation`.

It is written once a second while something changes, and at the end. Three things follow from it:
where each link goes on, from where on a new run looks in `mqlake.inbound` for messages that it has
taken from other sites already, and the interest of neighbours that are away when it begins. Nothing
before the cursors may go from the log.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mqlake.errors import InvalidRecord
from mqlake.record_versions import RECORD_VERSION, check_version

FEDERATION: Final = "mqlake.federation"
CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
    "max.compaction.lag.ms": str(60 * 60 * 1000),
}
"""Of the log topic."""

KEY: Final = b"checkpoint"
RETAINED_KEY_PREFIX: Final = b"retained/"
"""Of the record of a topic's latest retained message; the topic follows. Those that have changed
stand before the checkpoint that knows of them."""
MESSAGE_KEY_PREFIX: Final = b"message/"
"""Likewise of that message itself, as `mqlake.inbound` has it, with an envelope."""
RUN: Final = "run"
"""Header: when the federator that has written it began, milliseconds UTC."""

Offsets = dict[int, int]
"""By partition of `mqlake.inbound`."""


@dataclass(slots=True)
class LinkPosition:
    """How far a neighbour has this site's log."""

    cursor: Offsets
    """The first offset that it may not have."""
    clock: Offsets = field(default_factory=dict)
    """The least stamp of a retained message from there on, milliseconds UTC."""
    is_new: bool = False
    """It has not got yet the messages retained before."""
    handed: int = 0
    """The first offset of its delivery topic that it may not have."""


@dataclass(slots=True)
class FederationCheckpoint:
    epoch: int
    """Of the log: another one when its offsets have begun anew."""
    read: Offsets
    """Messages of other sites are in `streams` up to here."""
    streams: list[Any]
    """As `ingest.federation.sites.streams` writes them."""
    links: dict[int, LinkPosition]
    interest: dict[str, Any] = field(default_factory=dict)
    """As `ingest.federation.sites.interest` writes it; empty: nothing is known."""
    retained: LinkPosition | None = None
    """Up to where the records of retained messages go; None: there are none."""


def encode_checkpoint(checkpoint: FederationCheckpoint) -> bytes:
    """Return the value of the record."""
    return json.dumps(
        {
            "v": RECORD_VERSION,
            "epoch": checkpoint.epoch,
            "read": checkpoint.read,
            "streams": checkpoint.streams,
            "links": {site: _encode_position(one) for site, one in checkpoint.links.items()},
            "interest": checkpoint.interest,
            "retained": None
            if checkpoint.retained is None
            else _encode_position(checkpoint.retained),
        },
        separators=(",", ":"),
    ).encode()


def decode_checkpoint(data: bytes) -> FederationCheckpoint:
    """Undo `encode_checkpoint`.

    Raises:
        InvalidRecord: Not of a version that this release reads, or malformed.
    """
    try:
        found = json.loads(data)
        check_version(found["v"], "checkpoint of the federation")
        retained = found.get("retained")
        return FederationCheckpoint(
            int(found["epoch"]),
            _offsets(found["read"]),
            list(found["streams"]),
            {int(site): _decode_position(one) for site, one in found["links"].items()},
            dict(found.get("interest", {})),
            None if retained is None else _decode_position(retained),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidRecord(f"checkpoint of the federation is malformed: {exc!r}") from exc


def encode_latest(latest: list[Any]) -> bytes:
    """Return the value of the record of a topic, as `ingest.federation.sites.retained` says."""
    return json.dumps([RECORD_VERSION, *latest], separators=(",", ":")).encode()


def decode_latest(data: bytes) -> list[Any]:
    """Undo `encode_latest`.

    Raises:
        InvalidRecord: Not of a version that this release reads, or malformed.
    """
    try:
        version, *latest = json.loads(data)
    except (TypeError, ValueError) as exc:
        raise InvalidRecord(f"latest retained message is malformed: {exc!r}") from exc
    check_version(version, "latest retained message of the federation")
    return list(latest)


def encode_reach(routes_offset: int) -> bytes:
    """Return the value of the record that answers gateways which ask whether other sites know.

    Args:
        routes_offset: Of `mqlake.routes`; all sites that can be reached know the interest up to
            there.
    """
    return json.dumps({"v": RECORD_VERSION, "routes": routes_offset}).encode()


def decode_reach(data: bytes) -> int:
    """Undo `encode_reach`.

    Raises:
        InvalidRecord: Not of a version that this release reads, or malformed.
    """
    try:
        found = json.loads(data)
        check_version(found["v"], "reach of the federation")
        return int(found["routes"])
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"reach of the federation is malformed: {exc!r}") from exc


def needed(links: Iterable[LinkPosition]) -> Offsets:
    """Return the first offsets that some neighbour may not have."""
    found: Offsets = {}
    for link in links:
        for partition, offset in link.cursor.items():
            found[partition] = min(offset, found.get(partition, offset))
    return found


def _encode_position(position: LinkPosition) -> dict[str, Any]:
    found = {"cursor": position.cursor, "clock": position.clock, "new": position.is_new}
    return {**found, "handed": position.handed} if position.handed else found


def _decode_position(found: dict[str, Any]) -> LinkPosition:
    return LinkPosition(
        _offsets(found["cursor"]),
        _offsets(found.get("clock", {})),
        bool(found.get("new")),
        int(found.get("handed", 0)),
    )


def _offsets(found: dict[str, Any]) -> Offsets:
    return {int(partition): int(offset) for partition, offset in found.items()}
