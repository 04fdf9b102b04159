"""Targets of a replay's messages: the log, like any other, or one client alone."""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, Protocol

from api.clients.cache import SessionCache
from api.clients.presence import Gateways
from api.log.appending import LogAppender
from api.messages.messages import MessageMaker, show_time
from api.replay.rows import StoredMessage
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.log.contract import ANY_PARTITION
from mqlake.records.messages import CONTROL_KEY_PREFIX, INBOUND, delivery_topic, encode_properties
from mqlake.records.sessions import SessionRecord, decode_session

PROPERTY_JOB: Final = "mqlake-replay"
PROPERTY_ID: Final = "mqlake-replay-id"
PROPERTY_TIME: Final = "mqlake-replay-time"
"""User properties of a replayed message: the job, the original's identifier and its time."""

DELIVER: Final = "deliver"
"""Action of the control record that gives messages to one client."""


class ReplayError(MqlakeError):
    """A replay cannot begin, or cannot go on."""


class ReplayTarget(Protocol):
    """Takes messages in their order."""

    def send(self, messages: Sequence[StoredMessage]) -> None:
        """Have them in the log.

        Raises:
            LogDiskFull: It is full; none is in it.
            LogError: It does not answer; some may be in it.
            ReplayError: They cannot be sent any more.
        """
        ...


class Published:
    """All subscribers: the messages are published again, with their origin as properties.

    Args:
        log: Takes them.
        maker: Gives them identifiers and a time.
        tenant: Whose topics.
        username: Name of the caller.
        job_id: In their properties.
        keep_retain: The RETAIN flag is kept.
    """

    def __init__(
        self,
        log: LogAppender,
        maker: MessageMaker,
        tenant: str,
        username: str,
        job_id: str,
        *,
        keep_retain: bool,
    ) -> None:
        self._log = log
        self._maker = maker
        self._tenant = tenant
        self._username = username
        self._job_id = job_id
        self._keep_retain = keep_retain

    def send(self, messages: Sequence[StoredMessage]) -> None:
        records = [self._record(one) for one in messages]
        self._log.append_all(INBOUND, records, what="replayed messages")

    def _record(self, message: StoredMessage) -> Append:
        properties = dict(message.properties or {})
        properties["user_property"] = [
            *properties.get("user_property", []),
            (PROPERTY_JOB, self._job_id),
            (PROPERTY_ID, message.message_id),
            (PROPERTY_TIME, show_time(message.at_us // 1000)),
        ]
        made = self._maker.make(
            self._tenant,
            message.topic_name,
            message.payload,
            qos=message.qos,
            retain=message.retain and self._keep_retain,
            username=self._username,
            properties=properties,
        )
        return Append(ANY_PARTITION, made.key, made.value, made.headers, made.timestamp_ms)


class OneClient:
    """One client that is connected: it gets the messages that its subscriptions match, unchanged.

    Of a session that outlives its connection the log says where it is; of another nothing does, so
    every gateway is asked and the one that has it acts.

    Args:
        log: Takes the control records.
        cache: Knows the sessions that outlive their connections.
        gateways: Knows the live gateways.
        tenant: Tenant of the client.
        client_id: The client that gets the messages.

    Raises:
        ReplayError: It is not connected.
    """

    def __init__(
        self, log: LogAppender, cache: SessionCache, gateways: Gateways, tenant: str, client_id: str
    ) -> None:
        self._log = log
        self._cache = cache
        self._gateways = gateways
        self._tenant = tenant
        self._client_id = client_id
        self._known = self._session()

    def send(self, messages: Sequence[StoredMessage]) -> None:
        record = Append(0, CONTROL_KEY_PREFIX + DELIVER.encode(), self._value(messages), headers=[])
        for gateway in self._names():
            self._log.append_all(
                delivery_topic(gateway),
                [record],
                what=f"messages for client {self._client_id!r}",
            )

    def _names(self) -> list[str]:
        """Return the gateways that may have the client.

        Messages that it has not taken are gone with its connection, so the next one does not go on.
        """
        known, session = self._known, self._session()
        if session is None and known is None:
            names = [one.name for one in self._gateways.all() if one.is_alive]
            if not names:
                raise ReplayError("no gateway is alive")
            return names
        if known is None or session is None or _connection(known) != _connection(session):
            raise ReplayError(f"client {self._client_id!r} has gone, or connected again")
        return [session.gateway]

    def _session(self) -> SessionRecord | None:
        stored = self._cache.client(self._tenant, self._client_id)
        if stored is None:
            return None
        session = decode_session(stored.session)
        if not session.connected:
            raise ReplayError(f"client {self._client_id!r} is not connected")
        return session

    def _value(self, messages: Sequence[StoredMessage]) -> bytes:
        members: dict[str, Any] = {
            "tenant": self._tenant,
            "client_id": self._client_id,
            "messages": [
                {
                    "topic": one.topic_name,
                    "payload": b64encode(one.payload).decode("ascii"),
                    "qos": one.qos,
                    "retain": one.retain,
                    "from_client_id": one.client_id,
                    "received_at": one.at_us // 1000,
                    "properties": json.loads(encode_properties(one.properties or {})),
                }
                for one in messages
            ],
        }
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def _connection(session: SessionRecord) -> tuple[str, str, int]:
    return session.session_id, session.incarnation, session.connected_at_ms
