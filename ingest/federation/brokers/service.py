"""The federator's process: `core.Federator` between MQTT brokers.

All comes in by the link to the own broker: messages of local clients, their beacons, messages of
neighbours. It goes out by the links to the neighbours' brokers. A message from the own broker is
acknowledged when its effects are saved and, if it was delivered, delivered: so the broker keeps
messages of a federator that was killed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.federation import packets
from ingest.federation.brokers.cache_need import CacheNeed
from ingest.federation.brokers.chains import Chains, RecentIds
from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.echoes import Echoes
from ingest.federation.brokers.events import (
    Beacon,
    Deliver,
    Gone,
    LinkDown,
    LinkUp,
    Neighbours,
    PassedOn,
    PublishedHere,
    Send,
    SiteLimits,
    SiteNote,
    StepEvent,
)
from ingest.federation.brokers.links import Link, LinkLimits
from ingest.federation.brokers.meshes import Timing
from ingest.federation.brokers.neighbours import BEACONS_MISSED
from ingest.federation.brokers.saving import SavedState
from ingest.federation.envelope import (
    ROUTED,
    ROUTING,
    InvalidEnvelope,
    SiteMessage,
    from_mqtt,
    to_mqtt,
)
from ingest.federation.filters import covers, disjoint
from ingest.federation.finding import SiteOverlay
from ingest.federation.overlay_events import Away, WayDown, WayUp
from ingest.federation.overlay_packets import OVERLAY
from ingest.federation.packets import ControlPacket, InvalidPacket
from ingest.federation.prefixes import Prefixes
from ingest.protocol.packets import MQTT_5_0, Publish, Subscription, Will
from ingest.protocol.properties import NO_PROPERTIES, Properties
from mqlake.errors import InvalidTopic
from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import SEPARATOR, validate_topic_filter

if TYPE_CHECKING:
    from ingest.federation.overlay_map import SiteMember
    from ingest.federation.settings import BrokerSettings, FederationSettings, NeighborSettings
    from mqlake.clock import Clock

_logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
SAVE_SECONDS: Final = 0.025
INTERESTS_SECONDS: Final = 1.0
LAST_SAVE_SECONDS: Final = 2.0
"""How long a federator that stops waits for its broker's acknowledgements."""

BEACON: Final = "beacon"
GONE: Final = "gone"
CONTROL_EXPIRY_SECONDS: Final = 10
"""A packet that a neighbour's broker keeps for longer tells of a state that is past."""

ECHO_SECONDS: Final = 60.0
_NOT_PASSED_ON: Final = ("topic_alias", "subscription_identifier")


class FederationService:
    """One site's federator and its links.

    Args:
        settings: Settings of the process.
        clock: Clock of the machine.
    """

    def __init__(self, settings: FederationSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._prefix = settings.control_prefix
        self._prefixes = Prefixes([(one.local, one.federated) for one in settings.prefixes])
        self._out: TopicFilterTrie[None] = TopicFilterTrie()
        for one in settings.filters_out:
            self._out.insert(one, None)
        self._echoes = Echoes(settings.max_queued, ECHO_SECONDS)
        site = settings.host.id
        now = clock.monotonic()
        self.state: SavedState | None = None
        epoch = clock.now_ms()
        if settings.state_dir is not None:
            self.state = SavedState(
                settings.state_dir / f"federation-{site}.sqlite",
                site,
                store_seconds=settings.store_seconds,
                interest_seconds=3 * settings.beacon_interval + settings.store_seconds,
            )
            epoch = self.state.new_epoch(epoch)
        self.federator = Federator(
            site,
            epoch,
            [one.id for one in settings.neighbors],
            limits=_limits(settings),
            timing=Timing(settings.core_announcement_interval, settings.core_patience),
            interest_filters=settings.filters_in,
            seed=site,
            now=now,
        )
        if self.state is not None:
            self.federator.restore(self.state.load(now, clock.now_ms()), now)
        for one in settings.interests:
            self.federator.step(Beacon(one, is_permanent=True), now)
        self.finding = SiteOverlay(settings, epoch, now)
        self.cache_need = CacheNeed(BEACONS_MISSED * settings.beacon_interval)
        if self.state is not None:
            self.finding.overlay.restore(self.state.load_members(), now)
        self._members: list[SiteMember] = []
        self.host = self._new_link(settings.host, is_host=True)
        self.links: dict[int, Link] = {}
        self.malformed = 0
        """Packets of neighbours that could not be read."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._to_acknowledge: list[int] = []
        self._is_due = False
        self._interests_at = float("-inf")

    # The process.

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        self._follow()
        tasks = [
            asyncio.create_task(self.host.run()),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._save()),
        ]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopped, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            tasks[-1].cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SAVE_SECONDS):
                    await self._save_once()
            for link in (*self.links.values(), self.host):
                link.close()
            for task in (*self._tasks.values(), *tasks):
                task.cancel()
            results = await asyncio.gather(*tasks, *self._tasks.values(), return_exceptions=True)
            if self.state is not None:
                self.state.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def reload(self, neighbours: tuple[NeighborSettings, ...]) -> None:
        """Take other neighbours; links to those that stay as they are are not cut."""
        self.finding.become(neighbours, self._clock.monotonic())
        self._follow()

    def _follow(self) -> None:
        """Have the links that the overlay asks for, and send its packets."""
        for site, payload in self.finding.ready(self._clock.monotonic()):
            link = self.links.get(site)
            if link is not None:
                link.publish(_control(self.finding.topic, payload))
        self._set_links(self.finding.brokers())
        neighbours = self.finding.overlay.neighbours
        if set(neighbours) != self.federator.neighbours().keys():
            self.step(Neighbours(tuple(neighbours)))
            for site in neighbours:
                link = self.links.get(site)
                if link is not None and link.is_up and self.host.is_up:
                    self.step(LinkUp(site))

    def _set_links(self, wanted: dict[int, NeighborSettings]) -> None:
        for site in [s for s, link in self.links.items() if wanted.get(s) != link.broker]:
            self.links.pop(site).close()
            self._tasks.pop(site).cancel()
            self._way_is_down(site)
        for site, broker in wanted.items():
            if site not in self.links:
                link = self.links[site] = self._new_link(broker, is_host=False)
                self._tasks[site] = asyncio.create_task(link.run())

    def _new_link(self, broker: BrokerSettings, *, is_host: bool) -> Link:
        settings = self.settings
        site = settings.host.id
        subscriptions: list[Subscription] = []
        will = None
        if is_host:
            # With other filters of the federation these would overlap: then there is one for both.
            topics = {f"{self._prefix}/#"}
            for one in settings.filters_out:
                topics |= self._prefixes.to_local_filters(one)
            subscriptions = [
                Subscription(one, 1, no_local=True, retain_as_published=True, retain_handling=2)
                for one in sorted(disjoint(topics))
            ]
        else:
            will = Will(f"{self._prefix}/{GONE}/{site}", b"", qos=1)
        name = "federator" if is_host else "federation"
        return Link(
            broker,
            f"mqlake-{name}-{site}",
            self,
            subscriptions=subscriptions,
            will=will,
            limits=LinkLimits(
                keep_alive_seconds=settings.keep_alive_seconds,
                max_queued=settings.max_queued,
                max_inflight=settings.max_inflight,
                max_packet_bytes=settings.max_packet_bytes,
                max_pause_seconds=settings.reconnect_max_seconds,
            ),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            self.federator.tick(now)
            self._carry_out()
            self.finding.overlay.tick(now)
            self._follow()

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self._save_once()

    async def _save_once(self) -> None:
        """Save and acknowledge, in the order that loses nothing."""
        now = self._clock.monotonic()
        unsaved = self.federator.unsaved(now)
        packet_ids, self._to_acknowledge = self._to_acknowledge, []
        connection = self.host.connections
        if unsaved.marks or unsaved.messages or packet_ids:
            await self.host.settled()
        if self.state is not None:
            if unsaved.marks or unsaved.messages:
                self.state.save(unsaved, now, self._clock.now_ms())
            if now - self._interests_at >= INTERESTS_SECONDS:
                self._interests_at = now
                self.state.save_interests(unsaved, self._clock.now_ms())
                members = [one._replace(sequence=0, links=()) for one in self.finding.members()]
                if members != self._members:
                    self._members = members
                    self.state.save_members(members)
        if packet_ids and connection == self.host.connections:
            self.host.acknowledge(packet_ids)

    # Callbacks of links.

    def link_is_up(self, link: Link) -> None:
        """Take a neighbour's link for usable, once its answers can be heard."""
        for site, one in self.links.items():
            if one.is_up and self.host.is_up and link in (one, self.host):
                self.step(LinkUp(site))
                self.finding.step(WayUp(site), self._clock.monotonic())
        self._follow()

    def link_is_down(self, link: Link) -> None:
        """Take a neighbour's link for broken."""
        if link is self.host:
            self._to_acknowledge.clear()  # the broker sends those again
            for site in self.links:
                self._way_is_down(site)
        elif self.links.get(link.broker.id) is link:
            self._way_is_down(link.broker.id)

    def _way_is_down(self, site: int) -> None:
        self.step(LinkDown(site))
        self.finding.step(WayDown(site), self._clock.monotonic())

    def receive(self, link: Link, publish: Publish) -> None:
        """Take a message of the own broker."""
        if publish.packet_id:
            self._to_acknowledge.append(publish.packet_id)
        topic = publish.topic_name
        try:
            if topic.startswith(self._prefix + SEPARATOR):
                event = self._of_neighbour(publish)
            else:
                event = self._of_client(publish)
        except (InvalidEnvelope, InvalidPacket, InvalidTopic) as exc:
            self.malformed += 1
            fields = {"topic": topic[:200], "reason": str(exc)}
            _logger.warning("a packet of a neighbour cannot be read", extra={"fields": fields})
            return
        if event is not None:
            self.step(event)

    def _of_neighbour(self, publish: Publish) -> StepEvent | None:
        topic = publish.topic_name
        kind, _, rest = topic[len(self._prefix) + 1 :].partition(SEPARATOR)
        if kind in (ROUTING, ROUTED):
            prefix = self._prefix
            message, sender = from_mqtt(topic, publish.payload, publish.properties, prefix=prefix)
            return PassedOn(sender, message)
        if kind == packets.CONTROL:
            return packets.decode(publish.payload)
        if kind == BEACON:
            topic_filter = rest or publish.payload.decode(errors="replace")
            validate_topic_filter(topic_filter)
            return Beacon(self._prefixes.to_federated(topic_filter))
        if kind == GONE and rest.isascii() and rest.isdigit():
            self.finding.step(Away(int(rest)), self._clock.monotonic())
            return Gone(int(rest))
        if kind == OVERLAY:
            self.finding.hear(publish.payload, self._clock.monotonic())
            self._follow()
            return None
        raise InvalidPacket(f"expected a packet of a federator, got one below {kind[:50]!r}")

    def _of_client(self, publish: Publish) -> StepEvent | None:
        is_5 = self.settings.host.protocol_level == MQTT_5_0
        topic = publish.topic_name
        if not is_5 and (
            publish.retain  # stored before the subscription, not published now
            or self._echoes.is_echo(topic, publish.payload, self._clock.monotonic())
        ):
            return None
        federated = self._prefixes.to_federated(topic)
        if not self._out.match(federated):
            return None
        properties = publish.properties
        if properties:
            kept = {name: one for name, one in properties.items() if name not in _NOT_PASSED_ON}
            properties = cast("Properties", kept) if kept else NO_PROPERTIES
        return PublishedHere(
            federated,
            publish.payload,
            publish.qos,
            publish.retain,
            self._clock.now_ms(),
            properties,
        )

    # The core.

    def step(self, event: StepEvent) -> None:
        """Take an event; its effects are carried out in the same turn of the loop."""
        self.federator.step(event, self._clock.monotonic())
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._carry_out)

    def _carry_out(self) -> None:
        self._is_due = False
        encoded: dict[tuple[int, int], tuple[str, Properties]] = {}
        for effect in self.federator.ready(self._clock.monotonic()):
            if isinstance(effect, Send):
                link = self.links.get(effect.neighbour)
                if link is not None:
                    self._send(link, effect.packet, encoded)
            elif isinstance(effect, Deliver):
                self._deliver(effect)
            else:
                assert isinstance(effect, SiteNote)
                _logger.info(effect.words, extra={"fields": effect.fields})

    def _send(
        self,
        link: Link,
        packet: ControlPacket | SiteMessage,
        encoded: dict[tuple[int, int], tuple[str, Properties]],
    ) -> None:
        site = self.settings.host.id
        level = link.broker.protocol_level
        if isinstance(packet, ControlPacket):
            topic = f"{self._prefix}/{packets.CONTROL}/{site}"
            link.publish(_control(topic, packets.encode(packet)))
            return
        known = encoded.get((id(packet), level))
        if known is None:
            known = to_mqtt(packet, site, prefix=self._prefix, protocol_level=level)
            encoded[id(packet), level] = known
        topic, properties = known
        link.publish(Publish(topic, packet.payload, min(packet.qos, 1), properties=properties))

    def _deliver(self, effect: Deliver) -> None:
        message = effect.message
        topic = self._prefixes.to_local(message.topic)
        if self.settings.host.protocol_level < MQTT_5_0 and any(
            covers(one, message.topic) for one in self.settings.filters_out
        ):
            self._echoes.expect(topic, message.payload, self._clock.monotonic())
        self.host.publish(
            Publish(
                topic,
                message.payload,
                min(message.qos, 1),
                retain=effect.retain,
                properties=message.properties,
            )
        )

    # Health and status.

    def health(self) -> tuple[bool, str]:
        """Tell whether it does its work, with one line about it."""
        there = self.federator.neighbours()
        missing = [str(site) for site, is_there in there.items() if not is_there]
        if not self.host.is_up:
            return False, f"no connection to its broker {self.host.broker.uri}: {self.host.reason}"
        detail = f"{len(there) - len(missing)} of {len(there)} neighbours there"
        if missing:
            detail += f"; not {', '.join(missing)}"
        if self.finding.finds:
            detail += f"; {self.finding.detail()}"
            return len(missing) < len(there), detail
        return not there or len(missing) < len(there), detail

    def look_at_cache(self) -> str:
        """Measure the need of `cache_size`; return a warning if it is less, or nothing."""
        marks, counters = self.federator.marks, self.federator.counters
        had = counters.received - counters.duplicates - counters.echoes
        need, there = self.cache_need, self.federator.neighbours()
        need.look(had, there, self._clock.monotonic())
        if not isinstance(marks, RecentIds) or need.identifiers <= self.settings.cache_size:
            return ""
        return (
            f"cache_size should be {need.identifiers}: {need.rate:.0f} messages a second times an "
            f"outage of {need.outage_seconds:.0f} s; a copy that is later is delivered again"
        )

    def warnings(self) -> dict[str, str]:
        """Return what the log should say once of each limit that is too small, by its name."""
        federator = self.federator
        marks = federator.marks
        found = {"cache_size": self.look_at_cache()}
        if federator.store.overflowed:
            found["store"] = "store_seconds is not reached: raise store_messages or store_bytes"
        if isinstance(marks, Chains) and marks.forgotten:
            found["topics"] = "max_topics is too small: an old copy may be delivered again"
        return {name: words for name, words in found.items() if words}

    def figures(self) -> dict[str, Any]:
        """Return the figures that `mqlake federation status` shows."""
        federator = self.federator
        there = federator.neighbours()
        return {
            "site": federator.site,
            "epoch": federator.epoch,
            "links": [
                {
                    "site": site,
                    "uri": link.broker.uri,
                    "link": link.is_up,
                    "there": there.get(site, False),
                    "waiting": link.waiting,
                    "dropped": link.dropped,
                    "reason": link.reason,
                }
                for site, link in self.links.items()
            ],
            "meshes": [
                {
                    "filter": mesh.topic_filter,
                    "state": mesh.state.value,
                    "core": None if mesh.core is None else mesh.core.site,
                    "distance": mesh.distance,
                    "parents": mesh.parents,
                    "children": list(mesh.children),
                }
                for mesh in list(federator.meshes.values())[:200]
            ],
            "mesh_count": len(federator.meshes),
            "interests": len(federator.interests),
            "overlay": self.finding.figures(),
            "counters": {
                name: getattr(federator.counters, name) for name in federator.counters.__slots__
            },
        }


def _control(topic: str, payload: bytes) -> Publish:
    properties: Properties = {"message_expiry_interval": CONTROL_EXPIRY_SECONDS}
    return Publish(topic, payload, 1, properties=properties)


def _limits(settings: FederationSettings) -> SiteLimits:
    return SiteLimits(
        redundancy=settings.redundancy,
        beacon_interval=settings.beacon_interval,
        hop_limit=settings.hop_limit,
        keep_order=settings.order == "origin",
        cache_size=settings.cache_size,
        most_chains=settings.max_topics,
        most_meshes=settings.max_meshes,
        store_seconds=settings.store_seconds,
        store_messages=settings.store_messages,
        store_bytes=settings.store_bytes,
        most_retained=settings.max_retained,
    )
