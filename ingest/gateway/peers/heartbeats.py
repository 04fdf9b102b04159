"""Heartbeats: each gateway's record about itself, twice a second in `mqlake.gateways`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.peers.shared_words import Told, read_told
from mqlake.errors import InvalidRecord
from mqlake.record_versions import RECORD_VERSION

if TYPE_CHECKING:
    from mqlake.shard_records import Run

SERVING: Final = "serving"
"""State of a gateway that takes clients, and can own shards."""


@dataclass(slots=True)
class Peer:
    """A gateway, by its last heartbeat."""

    incarnation: str
    gateway_epoch: int
    heard_at: float
    """By our own monotonic clock."""
    state: str
    records: int
    """The newest version of records that it knows."""
    addresses: dict[str, str]
    """Where clients reach it, by kind of listener."""
    identity: str = ""
    read_at_ms: int | None = None
    """By the log's time, of a heartbeat that is older than our own first one."""
    shared: Told = field(default_factory=dict)
    """Its demand on the limits that all gateways share."""
    fan_out: object = None
    """Its deliveries of messages that came by others, as `ingest.session.fan_out` has them."""


def encode_heartbeat(
    me: Run,
    *,
    gateway_epoch: int,
    number: int,
    identity: str,
    records: int,
    now_ms: int,
    figures: dict[str, Any],
) -> bytes:
    """Encode a heartbeat.

    Args:
        me: The run that sends it.
        gateway_epoch: Of the run, one higher than that of the run before under its name.
        number: Counts the heartbeats of the run.
        identity: Of its process, by which others of its machine know whether it has ended.
        records: The newest version of records that it knows.
        now_ms: By its own calendar.
        figures: Further members, `state` and `addresses` among them.
    """
    value = {
        "v": RECORD_VERSION,
        "gateway": me.gateway,
        "incarnation": me.incarnation,
        "epoch": gateway_epoch,
        "number": number,
        "process": identity,
        "records": records,
        "at": now_ms,
        **figures,
    }
    return json.dumps(value).encode()


def decode_heartbeat(value: bytes | None, heard_at: float, read_at_ms: int | None) -> Peer:
    """Undo `encode_heartbeat`, as far as others go by it.

    Raises:
        InvalidRecord: Not JSON, or a member is missing or of another type.
    """
    try:
        found = json.loads(value or b"null")
        return Peer(
            str(found["incarnation"]),
            int(found.get("epoch", 0)),
            heard_at,
            str(found.get("state", SERVING)),
            int(found.get("records", 1)),
            {str(kind): str(one) for kind, one in found.get("addresses", {}).items()},
            str(found.get("process", "")),
            read_at_ms,
            read_told(found.get("shared"), found.get("shared_more")),
            found.get("fan_out"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InvalidRecord(f"the word of a gateway is malformed: {exc!r}") from exc


def encode_version(version: int, gateway: str) -> bytes:
    """Write that a version of records is in force, as the gateway that says so first."""
    return json.dumps({"v": RECORD_VERSION, "written": version, "gateway": gateway}).encode()


def decode_version(value: bytes | None) -> tuple[int, str]:
    """Undo `encode_version`.

    Raises:
        InvalidRecord: Not JSON, or a member is missing or of another type.
    """
    try:
        found = json.loads(value or b"null")
        return int(found["written"]), str(found["gateway"])
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidRecord(f"the version in force is malformed: {exc!r}") from exc
