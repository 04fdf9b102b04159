r"""Shards of `mqlake.sessions`: records that order the holders of a session, and those that count.

A shard is a partition. All records of a client are in one, so the log gives them one order. Beside
sessions, progress and marks (`mqlake.records.sessions`) a shard holds

    c/<tenant>/<client_id>   a claim: a gateway wants the session for a connection
    o/owner                  the gateway that owns the shard from here on
    l/<gateway>              a gateway that owned the shard has read that, and acts no more
    v/<gateway>              a gateway that was cut off asks which sessions it still holds
    h/<membership>/<tenant>/<shared subscription>   a gateway's membership in a share group
    m/<tenant>/<shared subscription>\0<client_id>   a session that is a member of a share group

Epochs are offsets of the shard: the epoch of a session is that of the claim by which its holder got
it, the epoch of an owner that of its record `o/owner`. A record says its epoch in the header
`epoch`, and `owner` when the owner of the shard has written it, not the holder of the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from mqlake.errors import InvalidRecord
from mqlake.records import compact_json
from mqlake.records.members import load
from mqlake.records.messages import HEADER_BY
from mqlake.records.versions import RECORD_VERSION, VERSION_HEADER, Headers

if TYPE_CHECKING:
    from collections.abc import Iterable

CLAIM: Final = "c"
OWNER: Final = "o"
LEFT: Final = "l"
QUESTION: Final = "v"
MEMBERSHIP: Final = "h"
MEMBER: Final = "m"

HEADER_EPOCH: Final = "epoch"
HEADER_OWNER: Final = "owner"

OWNER_KEY: Final = b"o/owner"

ORDERING_KEYS: Final = tuple(
    f"{kind}/".encode() for kind in (CLAIM, OWNER, LEFT, QUESTION, MEMBERSHIP, MEMBER)
)
"""Keys of records that gateways alone read begin so: the right to write, and share groups."""

NO_EPOCH: Final = -1
"""Before every epoch: of a record without one, as version 0.1 wrote them."""

ANYBODY: Final = "\0"
"""The principal of a claim that may have anybody's session; no text of MQTT is this."""

Key = tuple[str, str]
"""Tenant and client identifier."""


def shard_of(tenant: str, client_id: str, shards: int) -> int:
    """Return the shard of a client's records: CRC-32 of `<tenant>/<client_id>`, modulo shards.

    A load balancer computes the same (HAProxy: `concat`, `crc32`, `mod`).
    """
    return crc32(f"{tenant}/{client_id}".encode()) % shards


class Run(NamedTuple):
    """One run of a gateway."""

    gateway: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A gateway wants the session of a client for a connection."""

    run: Run
    number: int
    """Counts the claims of one run; a claim that is repeated keeps its number."""
    epoch: int
    """Offset in its shard."""
    at_ms: int
    """When it was appended, by the log's time."""
    clean_start: bool = False
    """The client wants nothing of the stored session."""
    goes_on: bool = False
    """The session began before, without a claim: a client that has come since has it instead."""
    principal: str | None = ANYBODY
    """Principal of the login; None: none. Version 0.1 did not write it, so `ANYBODY` then."""
    session: dict[str, Any] | None = None
    """JSON of the session's record as it is with this connection, if nothing is stored of it: with
    that the claim is all that CONNACK needs. None: a record of the session is written before."""

    def may_have(self, principal: str | None) -> bool:
        """Tell whether it may have a session of a principal; None and `ANYBODY` own none."""
        return self.principal in {ANYBODY, principal} or principal in {None, ANYBODY}


class Stamp(NamedTuple):
    """Writer of a record, from its headers."""

    by: str
    """Incarnation of the gateway."""
    epoch: int
    owner: int | None
    """Epoch of the owner that wrote it; None: the holder of the session did."""


def claim_key(tenant: str, client_id: str) -> bytes:
    return f"{CLAIM}/{tenant}/{client_id}".encode()


def left_key(gateway: str) -> bytes:
    return f"{LEFT}/{gateway}".encode()


def question_key(gateway: str) -> bytes:
    return f"{QUESTION}/{gateway}".encode()


def stamp_headers(by: str, epoch: int | None = None, owner: int | None = None) -> Headers:
    """Return the headers of a record of a shard."""
    headers: Headers = [VERSION_HEADER, (HEADER_BY, by.encode())]
    if epoch is not None:
        headers.append((HEADER_EPOCH, b"%d" % epoch))
    if owner is not None:
        headers.append((HEADER_OWNER, b"%d" % owner))
    return headers


def read_stamp(headers: Iterable[tuple[str, bytes]]) -> Stamp:
    """Undo `stamp_headers`.

    Raises:
        InvalidRecord: An epoch is no number.
    """
    by, epoch, owner = "", NO_EPOCH, None
    try:
        for name, value in headers:
            if name == HEADER_EPOCH:
                epoch = int(value)
            elif name == HEADER_BY:
                by = value.decode()
            elif name == HEADER_OWNER:
                owner = int(value)
    except ValueError as exc:
        raise InvalidRecord(f"headers of a session record are malformed: {exc}") from exc
    return _new(Stamp, (by, epoch, owner))


_new: Final = tuple.__new__  # half the cost of Stamp(...)


def encode_claim(
    run: Run,
    number: int,
    *,
    clean_start: bool,
    goes_on: bool = False,
    principal: str | None = ANYBODY,
    session: dict[str, Any] | None = None,
) -> bytes:
    """Write the value of a claim; `Claim` describes it."""
    members: dict[str, object] = {
        "v": RECORD_VERSION,
        "gateway": run.gateway,
        "incarnation": run.incarnation,
        "number": number,
        "clean_start": clean_start,
    }
    if goes_on:
        members["goes_on"] = True
    if principal != ANYBODY:
        members["principal"] = principal
    if session is not None:
        members["session"] = session
    return compact_json.encode(members)


def decode_claim(value: bytes, epoch: int, at_ms: int) -> Claim:
    """Undo `encode_claim` for a claim that stands there since then.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing.
    """
    found = load(value, "claim")
    try:
        run = Run(str(found["gateway"]), str(found["incarnation"]))
        clean_start = bool(found.get("clean_start", False))
        goes_on = bool(found.get("goes_on", False))
        principal = found.get("principal", ANYBODY)
        if principal is not None and type(principal) is not str:
            raise TypeError(f"principal is {principal!r}, expected text or null")
        session = found.get("session")
        if session is not None and type(session) is not dict:
            raise TypeError(f"session is {type(session).__name__}, expected an object")
        number = int(found["number"])
        return Claim(run, number, epoch, at_ms, clean_start, goes_on, principal, session)
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"claim is malformed: {exc!r}") from exc


def encode_run(run: Run, number: int = 0) -> bytes:
    """Write the value of `o/owner`, `l/<gateway>` and `v/<gateway>`."""
    return compact_json.encode(
        {
            "v": RECORD_VERSION,
            "gateway": run.gateway,
            "incarnation": run.incarnation,
            "number": number,
        }
    )


def decode_run(value: bytes) -> tuple[Run, int]:
    """Undo `encode_run`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing.
    """
    found = load(value, "record of a gateway's run")
    try:
        return Run(str(found["gateway"]), str(found["incarnation"])), int(found["number"])
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"record of a gateway's run is malformed: {exc!r}") from exc
