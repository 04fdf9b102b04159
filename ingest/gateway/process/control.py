"""Requests of operators and owners of shards: control records of this gateway's delivery topic.

A record that makes no sense is refused with `InvalidRecord`, as any delivery that cannot be read.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.clients.draining import DEFAULT_CONNECTIONS_PER_SECOND, Drain
from ingest.gateway.sessions.redelivery import redeliver
from ingest.gateway.sessions.sessions import BETWEEN_GATEWAYS
from ingest.protocol.reason_codes import DisconnectReasonCode
from ingest.session.groups.share_acts import SHARE
from mqlake.errors import InvalidRecord
from mqlake.records.retained import ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.context import Context
    from ingest.gateway.clients.draining import Draining
    from ingest.gateway.sessions.sessions import Sessions
    from ingest.session.subscriptions import Subscriptions

logger = logging.getLogger(__name__)


class Control:
    """Carries out control records.

    Args:
        context: Shared by all parts of the gateway.
        sessions: Sessions of its clients.
        subscriptions: Those in force.
        draining: Lets its clients go.
        reload: Has certificates and users read again.
        on_answer: Takes another gateway's answer about retained messages.
        told: Takes messages of the owner of a shard.
    """

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        subscriptions: Subscriptions[Any],
        draining: Draining,
        reload: Callable[[], None],
        on_answer: Callable[[bytes], None],
        told: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._draining = draining
        self._reload_files = reload
        self._on_answer = on_answer
        self._told = told

    def process(self, action: str, value: bytes) -> None:
        """Take a control record.

        Raises:
            InvalidRecord: Its value does not fit the action.
        """
        if action == ANSWER:
            self._on_answer(value)
            return
        work = _ACTIONS.get(action)
        if work is None and action not in BETWEEN_GATEWAYS and action != SHARE:
            logger.warning("unknown control record", extra={"fields": {"action": action}})
            return
        try:
            asked = json.loads(value or b"{}")
        except (ValueError, RecursionError) as exc:
            raise InvalidRecord(f"control record {action!r} is not JSON: {exc}") from exc
        if not isinstance(asked, dict):
            raise InvalidRecord(f"control record {action!r} is not a JSON object")
        if work is None:
            self._told(action, asked)
        else:
            work(self, asked)

    def _reload(self, _asked: dict[str, Any]) -> None:
        self._reload_files()

    def _drain(self, asked: dict[str, Any]) -> None:
        rate = asked.get("connections_per_second", DEFAULT_CONNECTIONS_PER_SECOND)
        if type(rate) not in {int, float} or not math.isfinite(rate) or rate <= 0:
            raise InvalidRecord(f"connections_per_second is {rate!r}, expected a positive number")
        reference = asked.get("server_reference")
        drain = Drain(
            rate,
            "" if reference is None else _member(asked, "server_reference", str),
            "moved" in asked and _member(asked, "moved", bool),
        )
        self._draining.begin(drain)

    def _serve(self, _asked: dict[str, Any]) -> None:
        self._draining.undo()

    def _disconnect(self, asked: dict[str, Any]) -> None:
        """Close a client's connection and, if asked to, end its session.

        All gateways are asked. The one that has the client acts; for the session of an absent
        client it is the one that cares for its will and its expiry, so that exactly one does.
        """
        key = (_member(asked, "tenant", str), _member(asked, "client_id", str))
        ends = _member(asked, "end_session", bool)
        try:
            session = self._sessions.get(*key)
        except KeyError:
            if ends:
                self._sessions.end_stored(key)
            return
        if ends:
            session.expiry_interval = 0
        connection = session.connection
        if connection is not None:
            connection.close(
                DisconnectReasonCode.ADMINISTRATIVE_ACTION, log_reason="closed by an administrator"
            )

    def _deliver(self, asked: dict[str, Any]) -> None:
        """Give messages to one client, if it is here."""
        key = (_member(asked, "tenant", str), _member(asked, "client_id", str))
        messages = _member(asked, "messages", list)
        try:
            session = self._sessions.get(*key)
        except KeyError:
            return
        redeliver(self._context, self._subscriptions, session, messages)


_ACTIONS: Final[dict[str, Callable[[Control, dict[str, Any]], None]]] = {
    "reload": Control._reload,
    "drain": Control._drain,
    "serve": Control._serve,
    "disconnect": Control._disconnect,
    "deliver": Control._deliver,
}


def _member(asked: dict[str, Any], name: str, kind: type) -> Any:
    value = asked.get(name)
    if type(value) is not kind:
        raise InvalidRecord(f"member {name!r} is {value!r}, expected {kind.__name__}")
    return value
