"""Messages of the past for one client, on request: the control record `deliver`.

They are sent like any other that the client's subscriptions match, under its window and in its
queue. They have no offset in the log, so they do not outlive the client's connection.
"""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from ingest.gateway.base.outbound import LOCAL, deliver_copies, read_message
from mqlake.errors import InvalidRecord
from mqlake.records.messages import HEADER_PROPERTIES, Source, mqtt_header
from mqlake.records.versions import HEADER_MQTT

if TYPE_CHECKING:
    from ingest.gateway.base.context import Context
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.session.subscriptions import Subscriptions

logger = logging.getLogger(__name__)

_EVERYWHERE = sys.maxsize
"""An offset at which every subscription counts."""


def redeliver(
    context: Context,
    subscriptions: Subscriptions[Any],
    session: ClientSession,
    messages: list[Any],
) -> None:
    """Give messages to a client; those that none of its subscriptions matches it does not get.

    Args:
        context: Shared by all parts of the gateway.
        subscriptions: Those in force.
        session: Session of the client.
        messages: Messages of the control record.

    Raises:
        InvalidRecord: One is malformed; those before it were given.
    """
    now_ms = context.clock.now_ms()
    for found in messages:
        message = _read(found, now_ms)
        copies = subscriptions.copies(
            session.tenant, message.topic_name, 0, _EVERYWHERE, message.publisher
        )
        own = [copy for copy in copies if copy.client is session.sender]
        if own:
            deliver_copies(message, own, session.tenant, context.drops, now_ms)


def _read(found: Any, now_ms: int) -> OutboundMessage:
    try:
        headers = {HEADER_MQTT: mqtt_header(5, found["qos"], retain=found["retain"], dup=False)}
        if found["properties"]:
            headers[HEADER_PROPERTIES] = json.dumps(found["properties"]).encode()
        source = Source(LOCAL, 0, found["received_at"])
        payload = b64decode(found["payload"])
        message = read_message(found["topic"], payload, headers, source, now_ms)
        message.publisher = found["from_client_id"]
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"message to be delivered is malformed: {exc!r}") from exc
    else:
        return message
