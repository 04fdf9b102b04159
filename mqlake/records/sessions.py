r"""Sessions in the log: the records of `mqlake.sessions`, from and to bytes.

Distinguished by the key, each a JSON object (a reader ignores members it does not know):

    s/<tenant>/<client_id>   the session: client, gateway, subscriptions, will
    u/<tenant>/<client_id>\0<filter>   a subscription that has no room in the session's record
    p/<tenant>/<client_id>   its progress: messages that it was given and has not acknowledged
    g/<gateway>              marks: how far all settled sessions of a gateway have come

The last two are in `mqlake.records.progress`, those that name their writers in
`mqlake.records.shards`.

A tombstone under `s/` and `p/` ends the session; one under `u/` the subscription. A subscription
names the session that it is of: that of a session that has ended means nothing, and the owner of
the shard removes it. Where a filter stands in the session's record too, that counts.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records import compact_json
from mqlake.records.members import (
    BOOLEAN,
    LIST,
    MAX_UINT16,
    MAX_UINT32,
    OBJECT,
    OPTIONAL_OBJECT,
    integer,
    integers,
    load,
    member,
    optional,
    parse,
    short,
    text,
)
from mqlake.records.messages import decode_properties, encode_properties
from mqlake.records.usual_json import NUMBER, PACKET_ID, TEXT, VERSION, list_of
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqlake.records.messages import Properties

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
    not. None: this has not begun."""
    principal: str | None = None
    """Owner: the user that has logged in. None: no user, so any client may have it."""

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


class SessionsKey(NamedTuple):
    """A key of `mqlake.sessions` taken apart."""

    kind: str
    """`SESSION`, `SUBSCRIPTION`, `PROGRESS` or `MARKS`."""
    tenant: str
    """Empty for `MARKS`."""
    name: str
    """Client identifier; for `MARKS` the gateway."""
    topic_filter: str = ""
    """Topic filter of a `SUBSCRIPTION`."""


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
        InvalidRecord: Its kind is unknown, a part is missing, or not UTF-8.
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
    return to_session(load(data, "session"))


def to_session(found: dict[str, Any]) -> SessionRecord:
    """Return a session whose JSON has been read.

    Raises:
        InvalidRecord: A member is missing or out of range.
    """
    will = member(found, "will", OPTIONAL_OBJECT)
    return SessionRecord(
        session_id=text(found, "id"),
        tenant=text(found, "tenant"),
        client_id=text(found, "client_id"),
        protocol_level=integer(found, "protocol_level", 3, 5),
        username=optional(text, found, "username"),
        keep_alive=integer(found, "keep_alive", 0, MAX_UINT16),
        clean_start=member(found, "clean_start", BOOLEAN),
        session_expiry_interval=integer(found, "expiry", 0, MAX_UINT32),
        gateway=text(found, "gateway"),
        incarnation=text(found, "incarnation"),
        connected=member(found, "connected", BOOLEAN),
        connected_at_ms=integer(found, "connected_at"),
        disconnected_at_ms=optional(integer, found, "disconnected_at"),
        reason=optional(text, found, "reason"),
        subscriptions=[to_subscription(item) for item in member(found, "subscriptions", LIST)],
        more=integer(found, "more") if "more" in found else 0,
        will=None if will is None else _will(will),
        will_at_ms=optional(integer, found, "will_at"),
        will_from=integers(found, "will_from", 0) if "will_from" in found else None,
        principal=optional(text, found, "principal") if "principal" in found else None,
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
    found = load(data, "session")
    will = found.get("will")
    return SessionOutline(
        text(found, "tenant"),
        text(found, "client_id"),
        text(found, "gateway"),
        text(found, "incarnation"),
        member(found, "connected", BOOLEAN),
        optional(integer, found, "disconnected_at"),
        integer(found, "expiry", 0, MAX_UINT32),
        integer(member(found, "will", OBJECT), "delay", 0, MAX_UINT32) if will else None,
        text(found, "id"),
        optional(text, found, "principal") if "principal" in found else None,
    )


def encode_subscription(subscription: StoredSubscription) -> bytes:
    """Write a subscription as it stands in its session."""
    return compact_json.encode(_subscription_members(subscription))


def decode_subscription(data: bytes | str) -> StoredSubscription:
    """Undo `encode_subscription`.

    Raises:
        InvalidRecord: Not JSON, or a member is missing or out of range.
    """
    return to_subscription(parse(data, "subscription"))


def encode_subscription_record(session_id: str, subscription: StoredSubscription) -> bytes:
    """Write the value of a subscription that has a record of its own."""
    members = _subscription_members(subscription)
    return compact_json.encode({"v": RECORD_VERSION, "id": session_id, **members})


def decode_subscription_record(data: bytes) -> SubscriptionRecord:
    """Undo `encode_subscription_record`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is missing or out of range.
    """
    found = load(data, "subscription")
    return SubscriptionRecord(text(found, "id"), to_subscription(found))


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
    properties = member(found, "properties", OBJECT)
    try:
        payload = b64decode(text(found, "payload"), validate=True)
    except ValueError as exc:
        raise InvalidRecord(f"member 'payload' is not base64: {exc}") from exc
    return StoredWill(
        topic_name=text(found, "topic"),
        payload=payload,
        qos=integer(found, "qos", 0, 2),
        retain=member(found, "retain", BOOLEAN),
        # Through the form that messages have: binary values, pairs of user properties.
        properties=decode_properties(json.dumps(properties).encode()) if properties else {},
        will_delay_interval=integer(found, "delay", 0, MAX_UINT32),
        grants=member(found, "grants", OBJECT) if "grants" in found else {},
    )


def to_subscription(item: Any) -> StoredSubscription:
    """Return a subscription whose JSON has been read.

    Raises:
        InvalidRecord: A member is missing or out of range.
    """
    if type(item) is not dict:
        raise InvalidRecord(f"a subscription is {short(item)}, expected an object")
    return StoredSubscription(
        topic_filter=text(item, "filter"),
        qos=integer(item, "qos", 0, 2),
        no_local=member(item, "no_local", BOOLEAN),
        retain_as_published=member(item, "retain_as_published", BOOLEAN),
        retain_handling=integer(item, "retain_handling", 0, 2),
        identifier=optional(integer, item, "identifier"),
        starts=optional(integers, item, "starts"),
    )


# As `encode_session` writes one that has no will: texts of ASCII that need no escape, all in it.
_GROUP: Final = rb'"([ !#-\[\]-~]*)"'
_FLAG: Final = rb"(?:true|false)"
_UINT16: Final = rb"(?:0|%b)" % PACKET_ID
_UINT32: Final = rb"(?:0|[1-9][0-9]{0,8}|[1-3][0-9]{9}|4294967295)"
_USUAL_SUBSCRIPTION: Final = (
    rb'\{"filter":%b,"qos":[012],"no_local":%b,"retain_as_published":%b,"retain_handling":[012]'
    rb',"identifier":(?:null|%b),"starts":(?:null|%b)\}'
) % (TEXT, _FLAG, _FLAG, NUMBER, list_of(NUMBER))
_USUAL_SESSION: Final = re.compile(
    rb'\{"v":%b,"id":%b,"tenant":%b,"client_id":%b,"protocol_level":[345],"username":(?:null|%b)'
    rb',"keep_alive":%b,"clean_start":%b,"expiry":(%b),"gateway":%b,"incarnation":%b'
    rb',"connected":(true|false),"connected_at":%b,"disconnected_at":(null|%b)'
    rb',"reason":(?:null|%b),"subscriptions":%b,"will":null,"will_at":null'
    rb'(?:,"more":%b)?(?:,"principal":%b)?\}'
    % (
        VERSION,
        _GROUP,
        _GROUP,
        _GROUP,
        TEXT,
        _UINT16,
        _FLAG,
        _UINT32,
        _GROUP,
        _GROUP,
        NUMBER,
        NUMBER,
        TEXT,
        list_of(_USUAL_SUBSCRIPTION),
        NUMBER,
        _GROUP,
    )
)
_new: Final = tuple.__new__  # half the cost of a call of the named tuple
