"""Messages of neighbours go into the log of this site, each once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial as bind
from typing import TYPE_CHECKING, Final

from ingest.federation.packets import CONTROL
from ingest.federation.sites.holding import HeldMessage, Holding
from ingest.federation.sites.links.words import (
    Asked,
    DeliveryWays,
    Passed,
    encode_asked,
    encode_passed,
    encode_ways,
)
from ingest.federation.sites.streams.bodies import Bodies
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict, stream_of
from ingest.federation.sites.streams.log_messages import of_offer, of_publish, to_record
from ingest.federation.sites.streams.passing import EVERYTHING
from ingest.federation.sites.streams.streams import Streams
from ingest.protocol.packets import Publish
from mqlake.errors import LogError
from mqlake.records.messages import INBOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingest.federation.envelope import SiteMessage
    from ingest.federation.prefixes import Prefixes
    from ingest.federation.settings import FederationSettings
    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.events import LinkEvents
    from ingest.federation.sites.links.link import SiteLink
    from ingest.federation.sites.streams.log_messages import Carried
    from ingest.federation.sites.streams.passing import Passing
    from ingest.federation.sites.streams.streams import StreamKey
    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter

LOOK_SECONDS: Final = 0.1
"""Pause between looks at offers whose messages have not come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingContext:
    """Parts of a site that take messages from others.

    Attributes:
        settings: Settings of the process.
        prefixes: Names of topics in the federation.
        writer: Writer of the site's log.
        clock: Measures the patience with offers.
        links: Links of the site.
        is_latest: Tells whether a retained message, with its topic here, is the latest one.
        on_failure: Called when the log has not taken a message.
        passing: Knows what neighbours bring no more.
        events: Takes the events of the site's links.
    """

    settings: FederationSettings
    prefixes: Prefixes
    writer: LogWriter
    clock: Clock
    links: dict[int, SiteLink]
    is_latest: Callable[[str, SiteMessage], bool]
    on_failure: Callable[[BaseException], None]
    passing: Passing
    events: LinkEvents


class Taking:
    """All messages that come to a site. Make it inside the event loop.

    Args:
        context: Parts of the site that take messages.

    Attributes:
        inlet: Messages that this site has had; another one when these are known.
        sent: Packets that asked neighbours to change how they send.
    """

    def __init__(self, context: TakingContext) -> None:
        settings = context.settings
        self.inlet = Inlet(Streams(), {})
        self.bodies = Bodies()
        self.holding = Holding(settings.max_inflight, context.events)
        self.sent = 0
        self._site = settings.host.id
        self._tenant = settings.tenant
        self._prefix = settings.control_prefix
        self._topic = f"{self._prefix}/{CONTROL}/{self._site}"
        self._prefixes = context.prefixes
        self._writer = context.writer
        self._clock = context.clock
        self._links = context.links
        self._is_latest = context.is_latest
        self._on_failure = context.on_failure
        self._passing = context.passing
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def close(self, site: int) -> None:
        """Hear that a connection has ended: other neighbours send all messages whole."""
        self._passing.close(site)
        self.holding.close(site)
        for other in self.bodies.close(site):
            self._tell(other, DeliveryWays())

    def stop(self) -> None:
        """Ask for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def take(self, link: SiteLink, connection: SiteConnection, publish: Publish) -> None:
        """Take a message.

        Raises:
            InvalidEnvelope: It is none.
        """
        carried = of_publish(publish, prefix=self._prefix)
        acknowledge = bind(link.acknowledge, connection, publish)
        counters = self.inlet.counters
        message = carried.message
        counters.received += 1
        if message.key.origin == self._site:
            counters.echoes += 1
            acknowledge()
            return
        if not link.may_bring(message.topic):
            counters.refused += 1
            acknowledge()
            return
        key = stream_of(message)
        if message.key.origin == link.site:
            self._passing.came(link.site, key, message.sequence)
        one = HeldMessage(link.site, connection, publish, carried)
        if not self._take(one):
            self.holding.hold(key, one)

    def pass_on(self, ends: Mapping[int, int], epoch: int) -> None:
        """Answer neighbours that have gaps, close gaps here and ask for more of them.

        Args:
            ends: Ends of the log, as they were just seen.
            epoch: Epoch of the log.
        """

        def last(key: StreamKey) -> int:
            return ends.get(key.partition, 0) if key.epoch == epoch else EVERYTHING

        has_all = {site: link.has_all for site, link in self._links.items()}
        for site, numbers in self._passing.answers(self.inlet, last, ends, has_all).items():
            limit = self._links[site].limit
            found = {one: min(number, limit(one.key)) for one, number in numbers.items()}
            self._say(site, encode_passed(Passed(found)))
        for site, questions in self._passing.settle(self.inlet, has_all).items():
            self._say(site, encode_asked(Asked(tuple(questions))))
        keys, anew = self.holding.look(self.inlet.streams, self._clock.monotonic())
        for key in keys:
            self.holding.resume(key, self._take)
        for site in anew:
            link = self._links.get(site)
            if link is not None and link.connection is not None:
                link.connection.close("it begins anew, with other limits for what makes gaps")

    def _take(self, one: HeldMessage) -> bool:
        """Take a message unless it has to wait for gaps to be filled."""
        carried, message, link = one.carried, one.carried.message, self._links[one.site]
        origin = message.key.origin
        acknowledge = bind(link.acknowledge, one.connection, one.publish)
        most = self.holding.most(stream_of(message), message.hops)
        verdict = self.inlet.take(message, acknowledge, most)
        if verdict is InletVerdict.FULL:
            return False
        if verdict is InletVerdict.NEW:
            self.bodies.brought(link.site, origin)
            self._append(link, carried)
            return True
        if verdict is InletVerdict.DUPLICATE:
            acknowledge()
        if self.bodies.repeated(link.site, origin, self._clock.monotonic()):
            self._tell(link.site, DeliveryWays(spare=(origin,)))
        return True

    def hear_offer(self, link: SiteLink, connection: SiteConnection, publish: Publish) -> None:
        """Take the offer of a message, which is acknowledged when the log has it.

        Raises:
            InvalidEnvelope: It is none.
        """
        number = of_offer(publish)
        acknowledge = bind(connection.acknowledge, publish.packet_id)
        if number[0].origin == self._site:
            acknowledge()
            return
        origin = number[0].origin
        verdict = self.inlet.hear_offer(number, acknowledge)
        if verdict is not InletVerdict.NEW:
            self.bodies.offered_late(link.site, origin)
            if verdict is InletVerdict.DUPLICATE:
                acknowledge()
            return
        now = self._clock.monotonic()
        self.bodies.offer(link.site, number, acknowledge, now)
        if self.bodies.is_faster(link.site, origin, now):
            self._tell(link.site, DeliveryWays(whole=(origin,)))
        self._schedule()

    def _append(self, link: SiteLink, carried: Carried) -> None:
        carried.message.hops += 1
        carried.sender = link.site
        message = carried.message
        topic = self._prefixes.to_local(message.topic)
        retain = message.retain and self._is_latest(topic, message)
        self.inlet.counters.outdated += message.retain and not retain
        key, value, headers = to_record(carried, self._tenant, topic, retain=retain)
        try:
            self._writer.append(INBOUND, key, value, headers, bind(self._appended, carried))
        except LogError as exc:
            self._on_failure(exc)

    def _appended(
        self, carried: Carried, partition: int, offset: int, error: LogError | None
    ) -> None:
        if error is not None:
            self._on_failure(error)
        else:
            message = carried.message
            self.inlet.appended(message, partition, offset)
            key = stream_of(message)
            self.bodies.had((key, message.sequence))
            self.holding.resume(key, self._take)

    def _schedule(self) -> None:
        if self._timer is None and self.bodies.waiting:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Ask for messages that are offered and have not come."""
        self._timer = None
        for site, origin in self.bodies.overdue(self._clock.monotonic()):
            self._tell(site, DeliveryWays(whole=(origin,)))
        self._schedule()

    def _tell(self, site: int, ways: DeliveryWays) -> None:
        self._say(site, encode_ways(ways))

    def _say(self, site: int, word: bytes) -> None:
        link = self._links.get(site)
        if link is not None and link.connection is not None:
            link.connection.publish([Publish(self._topic, word)])
            self.sent += 1
