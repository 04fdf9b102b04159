"""Progress of sessions, and marks of gateways, in `mqlake.sessions`: from and to bytes.

Keys and the other records are in `mqlake.records.sessions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records import compact_json
from mqlake.records.members import (
    BOOLEAN,
    LIST,
    MAX_INT64,
    MAX_UINT16,
    are_integers,
    integer,
    integers,
    load,
    member,
    optional,
    refusal,
    short,
    text,
    texts,
)
from mqlake.records.offsets import latest
from mqlake.records.usual_json import NUMBER, PACKET_ID, TEXT, VERSION, list_of
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqlake.records.sessions import SessionRecord


class Outgoing(NamedTuple):
    """A message on its way to the client: sent, not acknowledged to the end."""

    packet_id: int
    qos: int
    partition: int
    offset: int
    released: bool
    """QoS 2 only: the client has the message; PUBREL and PUBCOMP are left."""


@dataclass(slots=True)
class RetainedScan:
    """The retained messages that a new subscription is still owed."""

    topic_filter: str
    qos: int
    """The most the subscription grants."""
    identifiers: tuple[int, ...]
    limits: Sequence[int]
    """Per partition the first offset that comes as a live message: not sent twice."""
    shard: int = 0
    """Partition of `mqlake.inbound` whose messages are next: those before it are done. Without a
    wildcard there is only the topic's own."""
    position: str | None = None
    """Topic name with which to go on in that partition; None begins."""


@dataclass(slots=True)
class HistoryRecord:
    """History that subscriptions asked for and have not got yet; they are not in force before."""

    topic_filters: list[str]
    from_ms: int
    """Messages accepted before are left out, UTC epoch."""
    cursor: list[int]
    """Per partition the next offset; everything before it was handed over."""
    fell_behind: bool = False
    """The reason is a full queue of the client, not a request; the log has what comes next."""


@dataclass(slots=True)
class ProgressRecord:
    """How far a session has come in `mqlake.inbound`."""

    session_id: str
    cursor: list[int]
    """Per partition the next offset; everything before it was handed over or is in `outgoing`."""
    settled: bool
    """Nothing is on its way: the marks of its gateway may move the cursor on."""
    outgoing: list[Outgoing] = field(default_factory=list)
    """In the order of sending, which is the order of sending again. [MQTT5-4.6.0-1]"""
    incoming: list[int] = field(default_factory=list)
    """Packet identifiers of QoS 2 messages received and stored, not released."""
    storing: list[int] = field(default_factory=list)
    """Those received of which it is not known whether `mqlake.inbound` has them."""
    storing_from: list[int] = field(default_factory=list)
    """Per partition the offset below which none of these is; empty when there are none."""
    scans: list[RetainedScan] = field(default_factory=list)
    """Retained messages that new subscriptions have not got yet."""
    shared: dict[int, str] = field(default_factory=dict)
    """Packet identifier -> the shared subscription for which a message of `outgoing` came."""
    histories: list[HistoryRecord] = field(default_factory=list)
    """Readers of history, whose subscriptions count from their own cursors."""
    sent_before: list[int] = field(default_factory=list)
    """Per partition: between the cursor and this offset a holder that has died may have sent
    messages of QoS 1; empty when there are none."""
    last_packet_id: int | None = None
    """Last packet identifier that this record knows of, for a member of share groups."""


@dataclass(slots=True)
class MarksRecord:
    """How far a gateway has come: the last offset per partition that it has dealt with."""

    incarnation: str
    marks: list[int]
    """-1 where there was none yet."""
    next: int = 0
    """The first offset of its delivery topic that it has not dealt with."""


def resume_cursor(
    session: SessionRecord, progress: ProgressRecord, marks: MarksRecord | None
) -> list[int]:
    """Return from where to read on: the progress, moved on by its gateway's marks if settled.

    Marks count only for the incarnation that holds the session.
    """
    if not progress.settled or marks is None or marks.incarnation != session.incarnation:
        return list(progress.cursor)
    return latest(progress.cursor, [mark + 1 for mark in marks.marks])


def encode_progress(progress: ProgressRecord) -> bytes:
    """Write the value of a progress."""
    members = {
        "v": RECORD_VERSION,
        "id": progress.session_id,
        "cursor": progress.cursor,
        "settled": progress.settled,
        "out": [
            (packet_id, qos, partition, offset, int(released))
            for packet_id, qos, partition, offset, released in progress.outgoing
        ],
        "in": progress.incoming,
        "storing": progress.storing,
        "storing_from": progress.storing_from,
    }
    if progress.scans:  # few sessions have any, and not for long
        members["retained"] = [_scan_members(scan) for scan in progress.scans]
    if progress.shared:
        members["shared"] = list(progress.shared.items())
    if progress.histories:
        members["history"] = [_history_members(one) for one in progress.histories]
    if progress.sent_before:
        members["sent_before"] = progress.sent_before
    if progress.last_packet_id is not None:
        members["last"] = progress.last_packet_id
    return compact_json.encode(members)


def decode_progress(data: bytes) -> ProgressRecord:
    """Undo `encode_progress`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    return to_progress(load(data, "progress"))


def check_progress(data: bytes) -> None:
    """Tell whether a progress can be decoded, at an eighth of the cost where it is a usual one.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    if not _USUAL_PROGRESS.fullmatch(data):
        decode_progress(data)


def to_progress(found: dict[str, Any]) -> ProgressRecord:
    """Return a progress whose JSON has been read.

    Raises:
        InvalidRecord: A member is missing or out of range.
    """
    return ProgressRecord(
        session_id=text(found, "id"),
        cursor=integers(found, "cursor", 0),
        settled=member(found, "settled", BOOLEAN),
        outgoing=[_outgoing(item) for item in member(found, "out", LIST)],
        incoming=integers(found, "in", 1, MAX_UINT16),
        storing=integers(found, "storing", 1, MAX_UINT16),
        storing_from=integers(found, "storing_from", 0),
        scans=[_scan(item) for item in member({"retained": []} | found, "retained", LIST)],
        shared=_shared(found.get("shared", [])),
        histories=[_history(item) for item in member({"history": []} | found, "history", LIST)],
        sent_before=integers({"sent_before": []} | found, "sent_before", 0),
        last_packet_id=integer(found, "last", 0, MAX_UINT16) if "last" in found else None,
    )


def is_storing(progress: bytes) -> bool:
    """Tell whether an encoded progress names messages that may not be stored yet.

    Cheaper than to decode it, and true where that is not certain.
    """
    return b'"storing":[]' not in progress


def encode_marks(marks: MarksRecord) -> bytes:
    """Write the value of a gateway's marks."""
    return compact_json.encode(
        {
            "v": RECORD_VERSION,
            "incarnation": marks.incarnation,
            "marks": marks.marks,
            "next": marks.next,
        }
    )


def decode_marks(data: bytes) -> MarksRecord:
    """Undo `encode_marks`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    found = load(data, "marks")
    return MarksRecord(
        incarnation=text(found, "incarnation"),
        marks=integers(found, "marks", -1),
        next=integer(found, "next") if "next" in found else 0,
    )


def _scan_members(scan: RetainedScan) -> dict[str, Any]:
    return {
        "filter": scan.topic_filter,
        "qos": scan.qos,
        "identifiers": scan.identifiers,
        "limits": list(scan.limits),
        "shard": scan.shard,
        "position": scan.position,
    }


def _scan(item: Any) -> RetainedScan:
    if type(item) is not dict:
        raise InvalidRecord(f"a scan of retained messages is {short(item)}, expected an object")
    return RetainedScan(
        topic_filter=text(item, "filter"),
        qos=integer(item, "qos", 0, 2),
        identifiers=tuple(integers(item, "identifiers", 1)),
        limits=integers(item, "limits", 0),
        shard=integer({"shard": 0} | item, "shard", 0),  # the first version had none
        position=optional(text, item, "position"),
    )


def _history_members(history: HistoryRecord) -> dict[str, Any]:
    members = {
        "filters": history.topic_filters,
        "from": history.from_ms,
        "cursor": history.cursor,
    }
    return members | {"fell_behind": True} if history.fell_behind else members


def _history(item: Any) -> HistoryRecord:
    if type(item) is not dict:
        raise InvalidRecord(f"a history is {short(item)}, expected an object")
    return HistoryRecord(
        texts(item, "filters"),
        integer(item, "from"),
        integers(item, "cursor"),
        member({"fell_behind": False} | item, "fell_behind", BOOLEAN),
    )


def _shared(pairs: Any) -> dict[int, str]:
    try:
        shared = dict(pairs)
    except (TypeError, ValueError) as exc:
        raise refusal("shared", pairs, "a list of pairs") from exc
    if any(type(one) is not int or type(other) is not str for one, other in shared.items()):
        raise refusal("shared", pairs, "pairs of a number and a filter")
    return shared


def _outgoing(item: Any) -> Outgoing:
    if not are_integers(item, 0, MAX_INT64) or len(item) != 5:
        raise InvalidRecord(f"an outgoing message is {short(item)}, expected five numbers")
    packet_id, qos, partition, offset, released = item
    if not 1 <= packet_id <= MAX_UINT16 or not 1 <= qos <= 2 or released > 1:
        raise InvalidRecord(f"an outgoing message is {short(item)}: a number is out of range")
    return Outgoing(packet_id, qos, partition, offset, bool(released))


# As `encode_progress` writes progress without history owed and without share groups.
_USUAL_SCAN: Final = rb'\{"filter":%b,"qos":[012],"identifiers":%b,"limits":%b,"shard":%b,%b\}' % (
    TEXT,
    list_of(PACKET_ID),
    list_of(NUMBER),
    NUMBER,
    rb'"position":(?:null|%b)' % TEXT,
)
_USUAL_PROGRESS: Final = re.compile(
    rb'\{"v":%b,"id":"[0-9A-Za-z_-]+","cursor":%b,"settled":(?:true|false),"out":%b,"in":%b'
    rb',"storing":%b,"storing_from":%b(?:,"retained":%b)?\}'
    % (
        VERSION,
        list_of(NUMBER),
        list_of(rb"\[%b,[12],%b,%b,[01]\]" % (PACKET_ID, NUMBER, NUMBER)),
        list_of(PACKET_ID),
        list_of(PACKET_ID),
        list_of(NUMBER),
        list_of(_USUAL_SCAN),
    )
)
