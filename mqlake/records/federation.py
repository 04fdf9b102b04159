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
from mqlake.records.members import (
    BOOLEAN,
    LIST,
    OBJECT,
    integer,
    load,
    member,
    optional,
    parse,
    short,
)
from mqlake.records.versions import RECORD_VERSION, check_version

FEDERATION: Final = "mqlake.federation"
CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
    "max.compaction.lag.ms": str(60 * 60 * 1000),
}
"""Configuration of the log topic."""

KEY: Final = b"checkpoint"
RETAINED_KEY_PREFIX: Final = b"retained/"
"""Begins the key of a topic's latest retained message; the topic follows. Those that have changed
stand before the checkpoint that knows of them."""
MESSAGE_KEY_PREFIX: Final = b"message/"
"""Begins the key of that message itself, as `mqlake.inbound` has it, with an envelope."""
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
    """Epoch of the log: another one when its offsets have begun again."""
    read: Offsets
    """Messages of other sites are in `streams` up to here."""
    streams: list[Any]
    """As `ingest.federation.sites.streams.streams` writes them."""
    links: dict[int, LinkPosition]
    interest: dict[str, Any] = field(default_factory=dict)
    """As `ingest.federation.sites.interest.interest` writes it; empty: nothing is known."""
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
    absent: dict[str, Any] = {"interest": {}, "retained": None}
    found = absent | load(data, "checkpoint of the federation")
    links = member(found, "links", OBJECT)
    return FederationCheckpoint(
        integer(found, "epoch"),
        _offsets(found, "read"),
        member(found, "streams", LIST),
        {_number(site): _position(links, site) for site in links},
        member(found, "interest", OBJECT),
        optional(_position, found, "retained"),
    )


def encode_latest(latest: list[Any]) -> bytes:
    """Return the value of the record of a topic: `ingest.federation.sites.streams.retained`."""
    return json.dumps([RECORD_VERSION, *latest], separators=(",", ":")).encode()


def decode_latest(data: bytes) -> list[Any]:
    """Undo `encode_latest`.

    Raises:
        InvalidRecord: Not of a version that this release reads, or malformed.
    """
    what = "latest retained message of the federation"
    found = parse(data, what)
    if type(found) is not list or not found:
        raise InvalidRecord(f"{what} is {short(found)}, expected a list")
    version, *latest = found
    check_version(version, what)
    return latest


def encode_reach(routes_offset: int) -> bytes:
    """Return the value of the record that answers gateways which ask whether other sites know.

    Args:
        routes_offset: Offset of `mqlake.routes`; all sites that can be reached know the interest up
            to there.
    """
    return json.dumps({"v": RECORD_VERSION, "routes": routes_offset}).encode()


def decode_reach(data: bytes) -> int:
    """Undo `encode_reach`.

    Raises:
        InvalidRecord: Not of a version that this release reads, or malformed.
    """
    return integer(load(data, "reach of the federation"), "routes")


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


def _position(found: dict[str, Any], name: str) -> LinkPosition:
    position = {"clock": {}, "new": False, "handed": 0} | member(found, name, OBJECT)
    return LinkPosition(
        _offsets(position, "cursor"),
        _offsets(position, "clock"),
        member(position, "new", BOOLEAN),
        integer(position, "handed"),
    )


def _offsets(found: dict[str, Any], name: str) -> Offsets:
    offsets = member(found, name, OBJECT)
    return {_number(partition): integer(offsets, partition) for partition in offsets}


def _number(name: str) -> int:
    if not name.isdecimal():
        raise InvalidRecord(f"member {name!r} has no number as its name")
    return int(name)
