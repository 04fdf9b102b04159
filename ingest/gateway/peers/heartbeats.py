"""Records of gateways in `mqlake.gateways`: a peer by its heartbeat, and the version in force."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ingest.gateway.peers.shared_words import Told, read_told
from mqlake.errors import InvalidRecord
from mqlake.records.gateway_heartbeat import GatewayHeartbeat, decode_gateway_heartbeat
from mqlake.records.versions import RECORD_VERSION


@dataclass(slots=True)
class Peer:
    """A gateway, by its last heartbeat."""

    heartbeat: GatewayHeartbeat
    heard_at: float
    """By our own monotonic clock."""
    shared: Told
    """Its demand on the limits that all gateways share."""
    read_at_ms: int | None = None
    """By the log's time, of a heartbeat that is older than our own first one."""


def decode_peer(value: bytes | None, heard_at: float, read_at_ms: int | None) -> Peer:
    """Return the gateway of a heartbeat.

    Raises:
        InvalidRecord: Malformed, or it does not say of which run it is.
    """
    found = decode_gateway_heartbeat(value)
    if not found.incarnation:
        raise InvalidRecord("gateway record has no incarnation")
    return Peer(found, heard_at, read_told(found.shared, found.shared_more), read_at_ms)


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
