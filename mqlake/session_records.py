r"""Sessions in the log: the records of `mqlake.sessions`, from and to bytes.

Told apart by the key, each a JSON object (a reader ignores members it does not know):

    s/<tenant>/<client_id>   the session: client, gateway, subscriptions, will
    u/<tenant>/<client_id>\0<filter>   a subscription that has no room in the session's record
    p/<tenant>/<client_id>   its progress: messages that it was given and has not acknowledged
    g/<gateway>              marks: how far all settled sessions of a gateway have come

Those that say who may write them are in `mqlake.shard_records`.

A tombstone under `s/` and `p/` ends the session; one under `u/` the subscription. A subscription
names the session that it is of: that of a session that has ended means nothing, and the owner of
the shard removes it. Where a filter stands in the session's record too, that counts.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mqlake import compact_json
from mqlake.errors import InvalidRecord
from mqlake.offsets import latest
from mqlake.record_versions import OLDEST_READ, RECORD_VERSION, check_version
from mqlake.records import decode_properties, encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqlake.records import Properties

SESSION: Final = "s"
SUBSCRIPTION: Final = "u"
PROGRESS: Final = "p"
MARKS: Final = "g"

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that is kept until it is taken away. [MQTT5-3.1.2.11.2]"""

OWN_RECORDS_SINCE: Final = 2
"""Version of records in which subscriptions may have records of their own."""

FULL_CLAIMS_SINCE: Final = 3
"""Version of records in which a claim may say all that the session's record will."""

_MAX_UINT16: Final = 0xFFFF
_MAX_UINT32: Final = 0xFFFF_FFFF
_MAX_INT64: Final = 2**63 - 1


@dataclass(slots=True)
class StoredSubscription:
    """One topic filter of a session with the options it asked for."""

    topic_filter: str
    """As subscribed, `$share/<name>/` included."""
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    starts: Sequence[int] | None = None
    """Per partition the first offset that counts; None once all of them have passed."""


@dataclass(slots=True)
class StoredWill:
    """The message that the server publishes when the client is gone."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = field(default_factory=dict)
    will_delay_interval: int = 0
    grants: dict[str, Any] = field(default_factory=dict)
    """Grants of its client's login (`mqlake.rights.grants`), for when it is due."""


@dataclass(slots=True)
class SessionRecord:
    """A session, as the gateway that takes it over must know it."""

    session_id: str
    """16 hexadecimal digits; another session of the same client has another."""
    tenant: str
    client_id: str
    protocol_level: int
    """3 (MQTT 3.1), 4 (3.1.1) or 5 (5.0)."""
    username: str | None
    keep_alive: int
    clean_start: bool
    session_expiry_interval: int
    """Seconds after the connection has ended; `NEVER_EXPIRES` is for ever."""
    gateway: str
    incarnation: str
    """The run of that gateway."""
    connected: bool
    connected_at_ms: int
    disconnected_at_ms: int | None = None
    reason: str | None = None
    subscriptions: list[StoredSubscription] = field(default_factory=list)
    """Those that stand in this record."""
    more: int = 0
    """How many had records of their own when this one was written."""
    will: StoredWill | None = None
    will_at_ms: int | None = None
    """When the will is due; None while connected and without a will."""
    will_from: list[int] | None = None
    """The will is being published: per partition of `mqlake.inbound` the offset below which it is
    not. None: nobody has begun to."""
    principal: str | None = None
    """Whose it is: the user that has logged in. None: nobody's, so that anybody may have it."""

    def expires_at_ms(self) -> int | None:
        """Return when the session ends by itself; None while connected and when it never does."""
        if self.disconnected_at_ms is None or self.session_expiry_interval == NEVER_EXPIRES:
            return None
        return self.disconnected_at_ms + self.session_expiry_interval * 1000

    def due_at_ms(self) -> int | None:
        """Return when something is to be done about it: its will sent, or itself removed."""
        expires_at_ms = self.expires_at_ms()
        if self.will_at_ms is None:
            return expires_at_ms
        return self.will_at_ms if expires_at_ms is None else min(self.will_at_ms, expires_at_ms)


class SessionOutline(NamedTuple):
    """Fields that order and time a session; the rest of it is only handed on."""

    tenant: str
    client_id: str
    gateway: str
    incarnation: str
    connected: bool
    disconnected_at_ms: int | None
    session_expiry_interval: int
    will_delay_interval: int | None
    """None: it has no will."""
    id: str
    principal: str | None

    def due_at_ms(self, closed_at_ms: int | None) -> int | None:
        """Return when something is to be done about it, if its holder let go then."""
        expiry, delay = self.session_expiry_interval, self.will_delay_interval
        if closed_at_ms is None or (expiry == NEVER_EXPIRES and delay is None):
            return None
        if expiry == NEVER_EXPIRES or (delay is not None and delay < expiry):
            assert delay is not None
            return closed_at_ms + delay * 1000
        return closed_at_ms + expiry * 1000


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
    """Whose subscriptions count from their own cursors."""
    sent_before: list[int] = field(default_factory=list)
    """Per partition: between the cursor and this offset a holder that has died may have sent
    messages of QoS 1; empty when there are none."""
    last_packet_id: int | None = None
    """Of a member of share groups: of messages in flight for it, this record knows up to here."""


@dataclass(slots=True)
class MarksRecord:
    """How far a gateway has come: the last offset per partition that it has dealt with."""

    incarnation: str
    marks: list[int]
    """-1 where there was none yet."""
    next: int = 0
    """The first offset of its delivery topic that it has not dealt with."""


class SessionsKey(NamedTuple):
    """A key of `mqlake.sessions` taken apart."""

    kind: str
    """`SESSION`, `SUBSCRIPTION`, `PROGRESS` or `MARKS`."""
    tenant: str
    """Empty for `MARKS`."""
    name: str
    """Client identifier; for `MARKS` the gateway."""
    topic_filter: str = ""
    """Of a `SUBSCRIPTION`."""


class SubscriptionRecord(NamedTuple):
    """A subscription that has a record of its own."""

    session_id: str
    subscription: StoredSubscription


def session_key(tenant: str, client_id: str) -> bytes:
    return f"{SESSION}/{tenant}/{client_id}".encode()


def progress_key(tenant: str, client_id: str) -> bytes:
    return f"{PROGRESS}/{tenant}/{client_id}".encode()


def subscription_key(tenant: str, client_id: str, topic_filter: str) -> bytes:
    return f"{SUBSCRIPTION}/{tenant}/{client_id}\0{topic_filter}".encode()


def marks_key(gateway: str) -> bytes:
    return f"{MARKS}/{gateway}".encode()


def decode_sessions_key(key: bytes) -> SessionsKey:
    """Read a key of `mqlake.sessions`; a client identifier may hold slashes, a tenant none.

    Neither holds U+0000, as no text of MQTT does.

    Raises:
        InvalidRecord: Of no known kind, a part is missing, or not UTF-8.
    """
    try:
        kind, _, rest = key.decode().partition("/")
    except UnicodeDecodeError as exc:
        raise InvalidRecord(f"sessions key {key!r} is not UTF-8") from exc
    if kind == MARKS and rest:
        return SessionsKey(kind, "", rest)
    tenant, _, client_id = rest.partition("/")
    topic_filter = ""
    if kind == SUBSCRIPTION:
        client_id, _, topic_filter = client_id.partition("\0")
        if not topic_filter:
            tenant = ""
    if kind not in {SESSION, SUBSCRIPTION, PROGRESS} or not tenant or not client_id:
        raise InvalidRecord(
            f"sessions key {key!r}, expected s/tenant/client, u/tenant/client\\0filter, "
            "p/tenant/client or g/gateway"
        )
    return SessionsKey(kind, tenant, client_id, topic_filter)


def resume_cursor(
    session: SessionRecord, progress: ProgressRecord, marks: MarksRecord | None
) -> list[int]:
    """Return from where to read on: the progress, moved on by its gateway's marks if settled.

    Marks count only for the incarnation that holds the session.
    """
    if not progress.settled or marks is None or marks.incarnation != session.incarnation:
        return list(progress.cursor)
    return latest(progress.cursor, [mark + 1 for mark in marks.marks])


def exchange_name(session_id: str, packet_id: int, incarnation: str) -> bytes:
    """Return the header `exchange` of a QoS 2 message, by which it is looked for after a crash.

    Packet identifiers are used again, by other runs of gateways too, whose messages may be behind
    the offset from which on is looked. One run knows where its own last message is.
    """
    return f"{session_id}/{packet_id}/{incarnation}".encode()


def will_exchange(session: SessionRecord) -> bytes:
    """Return the header `exchange` of a will: of one connection of one session.

    Calendars of gateways differ: a client that moves may connect twice at the same time.
    """
    return f"{session.session_id}/will/{session.incarnation}/{session.connected_at_ms}".encode()


def encode_session(session: SessionRecord) -> bytes:
    """Write the value of a session."""
    return compact_json.encode(session_members(session))


def session_members(session: SessionRecord) -> dict[str, Any]:
    """Return the value of a session, still to be written as JSON."""
    will = session.will
    members: dict[str, Any] = {
        "v": RECORD_VERSION,
        "id": session.session_id,
        "tenant": session.tenant,
        "client_id": session.client_id,
        "protocol_level": session.protocol_level,
        "username": session.username,
        "keep_alive": session.keep_alive,
        "clean_start": session.clean_start,
        "expiry": session.session_expiry_interval,
        "gateway": session.gateway,
        "incarnation": session.incarnation,
        "connected": session.connected,
        "connected_at": session.connected_at_ms,
        "disconnected_at": session.disconnected_at_ms,
        "reason": session.reason,
        "subscriptions": [_subscription_members(one) for one in session.subscriptions],
        "will": None if will is None else _will_members(will),
        "will_at": session.will_at_ms,
    }
    if session.more:
        members["more"] = session.more
    if session.will_from is not None:
        members["will_from"] = session.will_from
    if session.principal is not None:
        members["principal"] = session.principal
    return members


def decode_session(data: bytes) -> SessionRecord:
    """Undo `encode_session`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    return to_session(_load(data, "session"))


def to_session(found: dict[str, Any]) -> SessionRecord:
    """Return a session whose JSON has been read.

    Raises:
        InvalidRecord: A member is missing or out of range.
    """
    will = _member(found, "will", _OPTIONAL_OBJECT)
    return SessionRecord(
        session_id=_text(found, "id"),
        tenant=_text(found, "tenant"),
        client_id=_text(found, "client_id"),
        protocol_level=_integer(found, "protocol_level", 3, 5),
        username=_optional(_text, found, "username"),
        keep_alive=_integer(found, "keep_alive", 0, _MAX_UINT16),
        clean_start=_member(found, "clean_start", _BOOLEAN),
        session_expiry_interval=_integer(found, "expiry", 0, _MAX_UINT32),
        gateway=_text(found, "gateway"),
        incarnation=_text(found, "incarnation"),
        connected=_member(found, "connected", _BOOLEAN),
        connected_at_ms=_integer(found, "connected_at"),
        disconnected_at_ms=_optional(_integer, found, "disconnected_at"),
        reason=_optional(_text, found, "reason"),
        subscriptions=[to_subscription(item) for item in _member(found, "subscriptions", _LIST)],
        more=_integer(found, "more") if "more" in found else 0,
        will=None if will is None else _will(will),
        will_at_ms=_optional(_integer, found, "will_at"),
        will_from=_integers(found, "will_from", 0) if "will_from" in found else None,
        principal=_optional(_text, found, "principal") if "principal" in found else None,
    )


def read_outline(data: bytes) -> SessionOutline:
    """Read from the value of a session the fields that its shard needs; a usual one is not parsed.

    Raises:
        InvalidRecord: Not JSON, another version, or one of these members is missing.
    """
    usual = _USUAL_SESSION.fullmatch(data)
    if usual is not None:
        id_, tenant, client_id, expiry, gateway, incarnation, connected, closed_at, principal = (
            usual.groups()
        )
        return _new(
            SessionOutline,
            (
                tenant.decode(),
                client_id.decode(),
                gateway.decode(),
                incarnation.decode(),
                connected == b"true",
                None if closed_at == b"null" else int(closed_at),
                int(expiry),
                None,
                id_.decode(),
                None if principal is None else principal.decode(),
            ),
        )
    found = _load(data, "session")
    will = found.get("will")
    return SessionOutline(
        _text(found, "tenant"),
        _text(found, "client_id"),
        _text(found, "gateway"),
        _text(found, "incarnation"),
        _member(found, "connected", _BOOLEAN),
        _optional(_integer, found, "disconnected_at"),
        _integer(found, "expiry", 0, _MAX_UINT32),
        _integer(_member(found, "will", _OBJECT), "delay", 0, _MAX_UINT32) if will else None,
        _text(found, "id"),
        _optional(_text, found, "principal") if "principal" in found else None,
    )


def encode_subscription(subscription: StoredSubscription) -> bytes:
    """Write a subscription as it stands in its session."""
    return compact_json.encode(_subscription_members(subscription))


def decode_subscription(data: bytes | str) -> StoredSubscription:
    """Undo `encode_subscription`.

    Raises:
        InvalidRecord: Not JSON, or a member is missing or out of range.
    """
    return to_subscription(_parse(data, "subscription"))


def encode_subscription_record(session_id: str, subscription: StoredSubscription) -> bytes:
    """Write the value of a subscription that has a record of its own."""
    members = _subscription_members(subscription)
    return compact_json.encode({"v": RECORD_VERSION, "id": session_id, **members})


def decode_subscription_record(data: bytes) -> SubscriptionRecord:
    """Undo `encode_subscription_record`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    found = _load(data, "subscription")
    return SubscriptionRecord(_text(found, "id"), to_subscription(found))


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
    return to_progress(_load(data, "progress"))


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
        session_id=_text(found, "id"),
        cursor=_integers(found, "cursor", 0),
        settled=_member(found, "settled", _BOOLEAN),
        outgoing=[_outgoing(item) for item in _member(found, "out", _LIST)],
        incoming=_integers(found, "in", 1, _MAX_UINT16),
        storing=_integers(found, "storing", 1, _MAX_UINT16),
        storing_from=_integers(found, "storing_from", 0),
        scans=[_scan(item) for item in _member({"retained": []} | found, "retained", _LIST)],
        shared=_shared(found.get("shared", [])),
        histories=[_history(item) for item in _member({"history": []} | found, "history", _LIST)],
        sent_before=_integers({"sent_before": []} | found, "sent_before", 0),
        last_packet_id=_integer(found, "last", 0, _MAX_UINT16) if "last" in found else None,
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
    found = _load(data, "marks")
    return MarksRecord(
        incarnation=_text(found, "incarnation"),
        marks=_integers(found, "marks", -1),
        next=_integer(found, "next") if "next" in found else 0,
    )


def _subscription_members(subscription: StoredSubscription) -> dict[str, Any]:
    starts = subscription.starts
    return {
        "filter": subscription.topic_filter,
        "qos": subscription.qos,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "retain_handling": subscription.retain_handling,
        "identifier": subscription.identifier,
        "starts": None if starts is None else list(starts),
    }


def _will_members(will: StoredWill) -> dict[str, Any]:
    properties = json.loads(encode_properties(will.properties)) if will.properties else {}
    members = {
        "topic": will.topic_name,
        "payload": b64encode(will.payload).decode("ascii"),
        "qos": will.qos,
        "retain": will.retain,
        "properties": properties,
        "delay": will.will_delay_interval,
    }
    if will.grants:
        members["grants"] = will.grants
    return members


def _will(found: dict[str, Any]) -> StoredWill:
    properties = _member(found, "properties", _OBJECT)
    try:
        payload = b64decode(_text(found, "payload"), validate=True)
    except ValueError as exc:
        raise InvalidRecord(f"member 'payload' is not base64: {exc}") from exc
    return StoredWill(
        topic_name=_text(found, "topic"),
        payload=payload,
        qos=_integer(found, "qos", 0, 2),
        retain=_member(found, "retain", _BOOLEAN),
        # Through the form that messages have: binary values, pairs of user properties.
        properties=decode_properties(json.dumps(properties).encode()) if properties else {},
        will_delay_interval=_integer(found, "delay", 0, _MAX_UINT32),
        grants=_member(found, "grants", _OBJECT) if "grants" in found else {},
    )


def to_subscription(item: Any) -> StoredSubscription:
    """Return a subscription whose JSON has been read.

    Raises:
        InvalidRecord: A member is missing or out of range.
    """
    if type(item) is not dict:
        raise InvalidRecord(f"a subscription is {_short(item)}, expected an object")
    return StoredSubscription(
        topic_filter=_text(item, "filter"),
        qos=_integer(item, "qos", 0, 2),
        no_local=_member(item, "no_local", _BOOLEAN),
        retain_as_published=_member(item, "retain_as_published", _BOOLEAN),
        retain_handling=_integer(item, "retain_handling", 0, 2),
        identifier=_optional(_integer, item, "identifier"),
        starts=_optional(_integers, item, "starts"),
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
        raise InvalidRecord(f"a scan of retained messages is {_short(item)}, expected an object")
    return RetainedScan(
        topic_filter=_text(item, "filter"),
        qos=_integer(item, "qos", 0, 2),
        identifiers=tuple(_integers(item, "identifiers", 1)),
        limits=_integers(item, "limits", 0),
        shard=_integer({"shard": 0} | item, "shard", 0),  # the first version had none
        position=_optional(_text, item, "position"),
    )


def _history_members(history: HistoryRecord) -> dict[str, Any]:
    return {
        "filters": history.topic_filters,
        "from": history.from_ms,
        "cursor": history.cursor,
    }


def _history(item: Any) -> HistoryRecord:
    if type(item) is not dict:
        raise InvalidRecord(f"a history is {_short(item)}, expected an object")
    filters = _member(item, "filters", _LIST)
    if any(type(one) is not str for one in filters):
        raise _refusal("filters", filters, "a list of topic filters")
    return HistoryRecord(filters, _integer(item, "from"), _integers(item, "cursor", 0))


def _shared(pairs: Any) -> dict[int, str]:
    try:
        shared = dict(pairs)
    except (TypeError, ValueError) as exc:
        raise _refusal("shared", pairs, "a list of pairs") from exc
    if any(type(one) is not int or type(other) is not str for one, other in shared.items()):
        raise _refusal("shared", pairs, "pairs of a number and a filter")
    return shared


def _outgoing(item: Any) -> Outgoing:
    if not _are_integers(item, 0, _MAX_INT64) or len(item) != 5:
        raise InvalidRecord(f"an outgoing message is {_short(item)}, expected five numbers")
    packet_id, qos, partition, offset, released = item
    if not 1 <= packet_id <= _MAX_UINT16 or not 1 <= qos <= 2 or released > 1:
        raise InvalidRecord(f"an outgoing message is {_short(item)}: a number is out of range")
    return Outgoing(packet_id, qos, partition, offset, bool(released))


def _list_of(item: bytes) -> bytes:
    return rb"\[(?:%b(?:,%b)*)?\]" % (item, item)


# As `encode_progress` writes progress without history owed and without share groups.
_VERSION: Final = b"[%d-%d]" % (OLDEST_READ, RECORD_VERSION)
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,17})"
_PACKET_ID: Final = (  # 1 to 65,535
    rb"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}"
    rb"|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
_TEXT: Final = rb'"[ !#-\[\]-~]*"'
"""Of ASCII that needs no escape."""
_USUAL_SCAN: Final = rb'\{"filter":%b,"qos":[012],"identifiers":%b,"limits":%b,"shard":%b,%b\}' % (
    _TEXT,
    _list_of(_PACKET_ID),
    _list_of(_NUMBER),
    _NUMBER,
    rb'"position":(?:null|%b)' % _TEXT,
)
_USUAL_PROGRESS: Final = re.compile(
    rb'\{"v":%b,"id":"[0-9A-Za-z_-]+","cursor":%b,"settled":(?:true|false),"out":%b,"in":%b'
    rb',"storing":%b,"storing_from":%b(?:,"retained":%b)?\}'
    % (
        _VERSION,
        _list_of(_NUMBER),
        _list_of(rb"\[%b,[12],%b,%b,[01]\]" % (_PACKET_ID, _NUMBER, _NUMBER)),
        _list_of(_PACKET_ID),
        _list_of(_PACKET_ID),
        _list_of(_NUMBER),
        _list_of(_USUAL_SCAN),
    )
)

# As `encode_session` writes one that has no will: texts of ASCII that need no escape, all in it.
_GROUP: Final = rb'"([ !#-\[\]-~]*)"'
_FLAG: Final = rb"(?:true|false)"
_UINT16: Final = rb"(?:0|%b)" % _PACKET_ID
_UINT32: Final = rb"(?:0|[1-9][0-9]{0,8}|[1-3][0-9]{9}|4294967295)"
_USUAL_SUBSCRIPTION: Final = (
    rb'\{"filter":%b,"qos":[012],"no_local":%b,"retain_as_published":%b,"retain_handling":[012]'
    rb',"identifier":(?:null|%b),"starts":(?:null|%b)\}'
) % (_TEXT, _FLAG, _FLAG, _NUMBER, _list_of(_NUMBER))
_USUAL_SESSION: Final = re.compile(
    rb'\{"v":%b,"id":%b,"tenant":%b,"client_id":%b,"protocol_level":[345],"username":(?:null|%b)'
    rb',"keep_alive":%b,"clean_start":%b,"expiry":(%b),"gateway":%b,"incarnation":%b'
    rb',"connected":(true|false),"connected_at":%b,"disconnected_at":(null|%b)'
    rb',"reason":(?:null|%b),"subscriptions":%b,"will":null,"will_at":null'
    rb'(?:,"more":%b)?(?:,"principal":%b)?\}'
    % (
        _VERSION,
        *(_GROUP, _GROUP, _GROUP, _TEXT, _UINT16, _FLAG, _UINT32, _GROUP, _GROUP),
        *(_NUMBER, _NUMBER, _TEXT, _list_of(_USUAL_SUBSCRIPTION), _NUMBER, _GROUP),
    )
)

_new: Final = tuple.__new__  # half the cost of a call of the named tuple


def _parse(data: bytes | str, what: str) -> Any:
    try:
        return compact_json.decode(data)
    except ValueError as exc:
        raise InvalidRecord(f"{what} is not JSON: {exc}") from exc


def _load(data: bytes, what: str) -> dict[str, Any]:
    found = _parse(data, what)
    if type(found) is not dict:
        raise InvalidRecord(f"{what} is {_short(found)}, expected an object")
    check_version(found.get("v"), what)
    return found


# The readers of members compare types exactly: to Python true is a number, to the record it is not.
_BOOLEAN: Final = ((bool,), "true or false")
_LIST: Final = ((list,), "a list")
_OBJECT: Final = ((dict,), "an object")
_OPTIONAL_OBJECT: Final = ((dict, type(None)), "an object or null")

_ABSENT: Final = object()
Value = TypeVar("Value")


def _member(found: dict[str, Any], name: str, expected: tuple[tuple[type, ...], str]) -> Any:
    value = found.get(name, _ABSENT)
    types, description = expected
    if type(value) not in types:
        raise _refusal(name, value, description)
    return value


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name, _ABSENT)
    if type(value) is not str:
        raise _refusal(name, value, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as exc:  # JSON can spell half of a surrogate pair
            raise InvalidRecord(f"member {name!r} has no UTF-8 form") from exc
    return value


def _integer(found: dict[str, Any], name: str, low: int = 0, high: int = _MAX_INT64) -> int:
    value = found.get(name, _ABSENT)
    if type(value) is not int or not low <= value <= high:
        raise _refusal(name, value, f"a number from {low} to {high}")
    return value


def _integers(found: dict[str, Any], name: str, low: int = 0, high: int = _MAX_INT64) -> list[int]:
    value = found.get(name, _ABSENT)
    if not _are_integers(value, low, high):
        raise _refusal(name, value, f"a list of numbers from {low} to {high}")
    numbers: list[int] = value
    return numbers


def _are_integers(value: object, low: int, high: int) -> bool:
    return type(value) is list and all(type(i) is int and low <= i <= high for i in value)


def _optional(
    read: Callable[[dict[str, Any], str], Value], found: dict[str, Any], name: str
) -> Value | None:
    return None if found.get(name, _ABSENT) is None else read(found, name)


def _refusal(name: str, value: object, expected: str) -> InvalidRecord:
    if value is _ABSENT:
        return InvalidRecord(f"member {name!r} is missing, expected {expected}")
    return InvalidRecord(f"member {name!r} is {_short(value)}, expected {expected}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
