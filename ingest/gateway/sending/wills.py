"""Wills that are due: appended to the log like messages of clients.

Whether one was published before is not asked here: see `ingest.session.shard.acts`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.gateway.base.drops import DropReason
from ingest.gateway.routing.publishing import client_headers
from ingest.protocol.packets import Publish
from mqlake.log.contract import LogFull, settle
from mqlake.records.messages import HEADER_EXCHANGE
from mqlake.records.sessions import StoredWill
from mqlake.rights.grants import NO_GRANTS, Grants, GrantsError, grants_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.base.client import Client
    from ingest.gateway.base.drops import Drops
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.retained.retained_quota import RetainedQuota
    from ingest.gateway.routing.publishing import Publisher
    from ingest.protocol.packets import Will
    from ingest.protocol.properties import Properties
    from mqlake.records.sessions import SessionRecord
    from mqlake.records.versions import Headers

FULL_SECONDS: Final = 0.01
"""How often a full log is asked whether it has room again."""


class Wills:
    """Publishes wills.

    Args:
        publisher: Publisher of the gateway.
        origin: `<site>/<gateway>`.
        authorizer: Gives the rights at the time of publishing.
        retained_quota: Says whether one may be retained; else it is published only.
        limits: Charged for deliveries of wills.
        drops: Takes those that may not be.

    Attributes:
        waiting: How many are on their way into the log.
    """

    def __init__(
        self,
        publisher: Publisher,
        origin: str,
        authorizer: Authorizer,
        retained_quota: RetainedQuota,
        limits: SharedLimits,
        drops: Drops,
    ) -> None:
        self._publisher = publisher
        self._origin = origin
        self._authorizer = authorizer
        self._retained_quota = retained_quota
        self._limits = limits
        self._drops = drops
        self.waiting = 0

    async def publish(self, wills: Sequence[tuple[SessionRecord, bytes]]) -> None:
        """Append the wills of sessions, each under its exchange; return when the log has them.

        One that its client may not publish any more is dropped.

        [MQTT5-3.1.2-8] [MQTT5-3.1.2-10] [MQTT5-3.1.3-9] [MQTT311-3.1.2-8] Retained or not as its
        CONNECT says. [MQTT5-3.1.2-14] [MQTT5-3.1.2-15] [MQTT311-3.1.2-16] [MQTT311-3.1.2-17]

        Raises:
            LogError: The log did not take one, or this is unknown.
        """
        self.waiting += len(wills)
        try:
            await asyncio.gather(*(self._publish(session, exchange) for session, exchange in wills))
        finally:
            self.waiting -= len(wills)

    async def _publish(self, session: SessionRecord, exchange: bytes) -> None:
        will = session.will
        assert will is not None
        client = session.tenant, session.client_id, session.principal
        drop = session.tenant, session.client_id, will.topic_name, will.qos
        rights = self._authorizer.of(*client, _grants(will))
        if rights is not None and not rights.may_publish(will.topic_name, will.qos, will.retain):
            self._drops.add(DropReason.NOT_AUTHORIZED, *drop)
            return
        retain = will.retain
        if retain and self._retained_quota.take(session.tenant, will.topic_name, will.payload):
            self._drops.add(DropReason.RETAINED_FULL, *drop)
            retain = False
        if self._limits.counts_deliveries:
            cost = 1 + self._limits.reach(session.tenant, will.topic_name)
            self._limits.charge(session.tenant, session.client_id, cost, session.principal)
        publish = Publish(
            will.topic_name,
            will.payload,
            will.qos,
            retain,
            properties=cast("Properties", will.properties),
        )
        headers = client_headers(session.client_id, self._origin, session.username)
        headers.append((HEADER_EXCHANGE, exchange))
        await self._append(session, publish, headers)

    async def _append(self, session: SessionRecord, publish: Publish, headers: Headers) -> None:
        """Publish as soon as the log takes more; wait until it has it."""
        appended: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        while True:
            try:
                self._publisher.publish(
                    session.tenant + "/",
                    publish,
                    session.protocol_level,
                    headers,
                    partial(settle, appended),
                )
                break
            except LogFull:
                await asyncio.sleep(FULL_SECONDS)
        self._publisher.count_appended(*await appended, None)


def _grants(will: StoredWill) -> Grants:
    """Return the grants of a will's login; those that this release cannot read allow nothing."""
    try:
        return grants_of(will.grants) if will.grants else NO_GRANTS
    except GrantsError:
        return NO_GRANTS


def stored_will(will: Will, client: Client) -> StoredWill:
    """Return the will of a CONNECT as it is kept with its session, with the client's rights."""
    properties: dict[str, Any] = {**will.properties}
    delay = properties.pop("will_delay_interval", 0)
    rights = client.rights
    grants = {} if rights is None or rights.grants == NO_GRANTS else rights.grants.members()
    return StoredWill(
        will.topic_name, will.payload, will.qos, will.retain, properties, delay, grants
    )
