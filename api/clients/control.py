"""Requests of the API to gateways: records in the log that they read with their deliveries.

No answer comes back; the gateway's log tells of its action, its next heartbeat in
`mqlake.gateways` of its state.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from api.log.appending import LogAppender
from api.messages.messages import MessageMaker
from mqlake.records.messages import CONTROL_KEY_PREFIX, INBOUND, delivery_topic

DRAIN_PER_SECOND: Final = 50
"""Clients that a draining gateway parts from, unless another number is asked for."""
MAX_DRAIN_PER_SECOND: Final = 100_000


def ask_gateway(log: LogAppender, gateway: str, action: str, **value: Any) -> None:
    """Append a control record and wait until the log has it.

    Raises:
        LogError: It does not answer in time, or refuses.
    """
    log.append(
        delivery_topic(gateway),
        CONTROL_KEY_PREFIX + action.encode(),
        json.dumps(value).encode(),
        what=f"control record for {gateway}",
    )


def disconnect(
    log: LogAppender, gateways: Iterable[str], tenant: str, client_id: str, *, end_session: bool
) -> None:
    """Ask each of these gateways to close a client's connection, or to end its session.

    Raises:
        LogError: As `ask_gateway`.
    """
    for gateway in gateways:
        ask_gateway(
            log, gateway, "disconnect", tenant=tenant, client_id=client_id, end_session=end_session
        )


def clear_retained(
    log: LogAppender, maker: MessageMaker, tenant: str, topic: str, *, username: str | None
) -> None:
    """Publish the empty message that deletes the retained one of a topic.

    Raises:
        LogError: As `ask_gateway`.
    """
    empty = maker.make(tenant, topic, b"", qos=1, retain=True, username=username)
    log.append(
        INBOUND,
        empty.key,
        empty.value,
        what=f"deletion of {topic!r}",
        headers=empty.headers,
        timestamp_ms=empty.timestamp_ms,
    )
