"""One site of a federation: events in, effects out; no socket and no clock.

The host calls `step` with events and `tick` ten times a second, both with the time of a monotonic
clock, and after each takes the effects from `ready`: packets for neighbours, messages for local
subscribers, words for the log. Nothing else comes out, so a whole federation runs in one process
under a clock of its own (`tests/ingest/federation/brokers/simulation.py`).

**A message** from a local client gets an identifier, from a neighbour it has one. The first time a
site sees it, it passes it on at once: to the parents and children of *all* meshes whose filter
matches, but the neighbour that it came from. One decision for all meshes, made once for a message:
so filters that overlap neither double it nor stop it half-way. Local subscribers get it in the
order of its chain (`chains`).

**Missing messages** are fetched (`repair`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ingest.federation.brokers.chains import Marks, new_marks
from ingest.federation.brokers.events import (
    Beacon,
    Deliver,
    Effect,
    Gone,
    LinkDown,
    LinkUp,
    MeshCounters,
    Neighbours,
    PassedOn,
    PublishedHere,
    SavedSite,
    Send,
    SiteLimits,
    SiteNote,
    StepEvent,
)
from ingest.federation.brokers.interests import SLACK_SECONDS, Interests, LocalInterest
from ingest.federation.brokers.meshes import Mesh, Timing
from ingest.federation.brokers.neighbours import BEACONS_MISSED, Neighbourhood
from ingest.federation.brokers.repair import Repair
from ingest.federation.brokers.store import MeshStore, order_of
from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import (
    Announcement,
    ControlPacket,
    CoreSearch,
    Head,
    Membership,
    Want,
    Word,
)
from mqlake.topics.matching import TopicFilterTrie

SWEEP_SECONDS: Final = 1.0


class _Origin(NamedTuple):
    sequence: int
    at_ms: int


class Federator:
    """The federation's part at one site.

    Args:
        site: Its identifier; the lowest one of those that want the same filter becomes its core.
        epoch: Epoch of this run, higher than that of any before.
        neighbours: Sites it has links to.
        limits: Limits of its memory and its intervals.
        timing: Intervals of its meshes.
        interest_filters: Filters of messages that local subscribers may get from other sites.
        seed: For the moment in a second at which it looks at its meshes.
        now: The time.
    """

    def __init__(
        self,
        site: int,
        epoch: int,
        neighbours: Iterable[int],
        *,
        limits: SiteLimits | None = None,
        timing: Timing | None = None,
        interest_filters: Iterable[str] = ("#",),
        seed: int = 0,
        now: float = 0.0,
    ) -> None:
        self.site = site
        self.epoch = epoch
        self.limits = limits = limits or SiteLimits()
        self.timing = timing or Timing()
        self.counters = MeshCounters()
        self.meshes: dict[str, Mesh] = {}
        self._interests = Interests(
            interest_filters,
            most=limits.most_meshes,
            linger_seconds=self.timing.core_announcement_interval,
            clock_skew=limits.clock_skew,
        )
        self.store = MeshStore(
            seconds=limits.store_seconds,
            most_messages=limits.store_messages,
            most_bytes=limits.store_bytes,
            most_retained=limits.most_retained,
        )
        self.marks: Marks = new_marks(limits)
        self._matching: TopicFilterTrie[Mesh] = TopicFilterTrie()
        self._neighbours = Neighbourhood(neighbours, limits.beacon_interval, self)
        self._effects: list[Effect] = []
        self._sequence = 0
        self._origins: OrderedDict[str, _Origin] = OrderedDict()
        self._stamp = 0
        self._repair = Repair((site, epoch), limits, self.marks, self.store, self)
        self._next_sequence = 1
        """Number of a new mesh: above those of all before, as others may remember their ends."""
        self._swept_at = now - SWEEP_SECONDS * (seed * 0x9E3779B1 % 1000) / 1000

    # Events.

    def step(self, event: StepEvent, now: float) -> None:
        """Take one event."""
        _STEPS[type(event)](self, event, now)

    def tick(self, now: float) -> None:
        """Let time pass; ten times a second is often enough."""
        self._repair.tick(now)
        for message in self.marks.give_up(now):
            self.deliver(message)
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            self._sweep(now)

    def ready(self, now: float) -> list[Effect]:
        """Return the effects to be carried out, in this order, and forget them."""
        self._repair.tell_edges(now)
        effects = self._effects
        self._effects = []
        for site, packet in self._neighbours.packets(self.site, self.epoch, now):
            self.counters.control_sent += 1
            effects.append(Send(site, packet))
        return effects

    # State that outlives a run.

    def restore(self, saved: SavedSite, now: float) -> None:
        """Go on where a former run was, before anything else happens.

        Its messages are there for neighbours, its marks say which messages local subscribers have
        had, and its subscribers count for as long as their beacons would have.
        """
        self._stamp = saved.stamp
        self.marks.load(saved.marks)
        last: dict[ChainKey, int] = {}
        for message in saved.messages:
            self.store.add(message, now)
            if message.key.origin == self.site:
                last[message.key] = max(last.get(message.key, 0), message.sequence)
        self.store.unsaved.clear()
        self.marks.load(last.items())
        for topic_filter, age in saved.interests.items():
            self._process_beacon(Beacon(topic_filter, age_seconds=age), now)

    def unsaved(self, now: float) -> SavedSite:
        """Return changes since the last call."""
        messages, self.store.unsaved = self.store.unsaved, []
        marks, self.marks.changed = self.marks.changed, {}
        ages = {one: now - known.since for one, known in self.interests.items()}
        return SavedSite(list(marks.items()), messages, ages, self._stamp)

    # Queries.

    def neighbours(self) -> dict[int, bool]:
        """Return the neighbours, and which of them are there."""
        return self._neighbours.there()

    @property
    def summary(self) -> frozenset[str]:
        """The filters that this site wants from others."""
        return self._interests.summary

    @property
    def interests(self) -> Mapping[str, LocalInterest]:
        """The filters of local subscribers."""
        return self._interests.known

    def targets(self, topic: str) -> set[int]:
        """Return the neighbours that a message goes to."""
        found: set[int] = set()
        for mesh in self._matching.match(topic):
            found.update(mesh.targets())
        return found

    # Messages.

    def _process_published(self, event: PublishedHere, now: float) -> None:
        if event.topic.startswith("$"):
            return
        self.counters.published += 1
        self._sequence += 1
        before = self._origins.pop(event.topic, None)
        after, gap = (0, 0) if before is None else (before.sequence, event.at_ms - before.at_ms)
        self._origins[event.topic] = _Origin(self._sequence, event.at_ms)
        if len(self._origins) > self.limits.most_chains:
            self._origins.popitem(last=False)
        self._stamp = max(event.at_ms, self._stamp + 1)
        key = ChainKey(self.site, self.epoch, event.topic)
        message = SiteMessage(
            key,
            self._sequence,
            after,
            max(gap, 0),
            self._stamp,
            event.payload,
            event.qos,
            event.retain,
            event.properties,
            since=now,
        )
        self.store.add(message, now)
        self._repair.touch(key, now)
        self._pass_on(message, self.targets(event.topic))

    def _process_routed(self, event: PassedOn, now: float) -> None:
        message, sender = event.message, event.sender
        if not self._hear(sender, now):
            return
        self.counters.received += 1
        if message.key[:2] == (self.site, self.epoch):
            self.counters.echoes += 1
            return
        is_new = not self.marks.has_seen(message)
        if not is_new and not self._repair.is_missing(message):
            self.counters.duplicates += 1
            return
        self._stamp = max(self._stamp, message.stamp)
        message.hops += 1
        message.since = now - message.age_ms / 1000
        self.store.add(message, now)
        askers = self._repair.askers(message)
        if not is_new:
            self._pass_on(message, askers - {sender})
            return
        since = self.wanted_since(message.topic, now)
        for one in self.marks.admit(message, sender, now, now if since is None else since):
            self.deliver(one)
        self._repair.touch(message.key, now)
        self._pass_on(message, (self.targets(message.topic) | askers) - {sender})

    def _pass_on(self, message: SiteMessage, sites: Iterable[int]) -> None:
        if message.hops >= self.limits.hop_limit:
            self.counters.over_hop_limit += 1
            return
        for site in sites:
            if not self.is_origin(site, message.key):
                self.counters.sent += 1
                self.send(site, message)

    def deliver(self, message: SiteMessage) -> None:
        """Give a message to local subscribers, if there are and were any."""
        if message.key.origin == self.site:
            return  # local subscribers have had it
        if not self._interests.have(message.topic):
            self.counters.unwanted += 1
            return
        if not self._interests.had(message):
            return
        self.counters.delivered += 1
        retain = message.retain
        if retain:
            latest = self.store.retained.get(message.topic)
            retain = latest is None or order_of(latest) <= order_of(message)
        self._effects.append(Deliver(message, retain))

    def is_origin(self, neighbour: int, key: ChainKey) -> bool:
        """Tell whether a chain is that of a neighbour's present run; a new run knows none."""
        return key.origin == neighbour and self._neighbours.has_run(neighbour, key.epoch)

    def wanted_since(self, topic: str, now: float) -> float | None:
        """Return since when messages of a topic are wanted that anybody may have; None: not."""
        meshes = self._matching.match(topic)
        if not meshes:
            return None
        known = min(mesh.known_since for mesh in meshes)
        allowance = SLACK_SECONDS + self.limits.clock_skew * (now - known)
        return max(known - allowance, now - self.limits.store_seconds)

    # Neighbours.

    def _process_control(self, event: ControlPacket, now: float) -> None:
        sender = event.sender
        if not self._hear(sender, now, event.epoch):
            return
        self.counters.control_received += 1
        for word in event.words:
            if isinstance(word, Announcement | Membership | CoreSearch):
                self._process_mesh_word(sender, word, now)
            elif isinstance(word, Head):
                self._repair.hear_head(sender, word, now)
            elif isinstance(word, Want):
                self._repair.hear_want(sender, word, now)
            else:
                self._repair.hear_lack(sender, word)

    def _process_mesh_word(
        self, sender: int, word: Announcement | Membership | CoreSearch, now: float
    ) -> None:
        mesh = self.meshes.get(word.topic_filter)
        if isinstance(word, Announcement):
            if mesh is None:
                if word.has_resigned and word.core.site != self.site:
                    return
                mesh = self._new_mesh(word.topic_filter, now)
            before = mesh.core
            mesh.hear_announcement(sender, word, self, now)
            if before is not None and mesh.core is not None and before.site != mesh.core.site:
                self.counters.elections += 1
        elif mesh is None:
            return
        elif isinstance(word, Membership):
            mesh.hear_membership(sender, word, self, now)
        else:
            mesh.hear_search(sender, word, self, now)

    def _hear(self, sender: int, now: float, epoch: int | None = None) -> bool:
        """Note that a neighbour has said something; return False if that does not count."""
        self.counters.strangers += sender not in self._neighbours
        return self._neighbours.hear(sender, now, epoch)

    def neighbour_came(self, site: int, now: float) -> None:
        """Greet a neighbour that is there."""
        self._note("a neighbour is there", neighbour=site)
        for mesh in self.meshes.values():
            mesh.greet(site, self, now)

    def neighbour_went(self, site: int, now: float) -> None:
        """Do without a neighbour."""
        self._note("a neighbour is not there any more", neighbour=site)
        for mesh in list(self.meshes.values()):
            mesh.lose_neighbour(site, self, now)

    def _process_link_up(self, event: LinkUp, now: float) -> None:
        self._neighbours.link_is_up(event.neighbour, now)

    def _process_link_down(self, event: LinkDown, now: float) -> None:
        self._neighbours.link_is_down(event.neighbour, now)

    def _process_gone(self, event: Gone, now: float) -> None:
        self._neighbours.is_gone(event.neighbour, now)

    def _process_neighbours(self, event: Neighbours, now: float) -> None:
        self._neighbours.become(event.sites, now)

    # Calls of meshes and of the repair (`meshes.Out`, `repair.Site`).

    def say(self, neighbour: int, word: Word) -> None:
        """Tell a neighbour, if it is there."""
        self._neighbours.say(neighbour, word)

    def flood(self, word: Word, *, but: int | None = None) -> None:
        """Tell all neighbours that are there, but one."""
        self._neighbours.flood(word, but=but)

    def send(self, neighbour: int, message: SiteMessage) -> None:
        """Give a message to a neighbour."""
        self._effects.append(Send(neighbour, message))

    def present(self) -> list[int]:
        """Return the neighbours that are there."""
        return self._neighbours.present()

    def edges_changed(self, mesh: Mesh, neighbour: int) -> None:
        """Tell a new parent or child later of messages that it may have missed."""
        self._repair.edge_changed(mesh.topic_filter, neighbour)

    # Meshes and interests.

    def _new_mesh(self, topic_filter: str, now: float) -> Mesh:
        mesh = Mesh(self.site, self.epoch, topic_filter, self.limits.redundancy, self.timing, now)
        mesh.next_sequence = self._next_sequence
        self.meshes[topic_filter] = mesh
        self._matching.insert(topic_filter, mesh)
        return mesh

    def _process_beacon(self, event: Beacon, now: float) -> None:
        until = float("inf")
        if not event.is_permanent:
            until = now + BEACONS_MISSED * self.limits.beacon_interval
        since = now - event.age_seconds
        added = self._interests.hear(event.topic_filter, until=until, since=since, now=now)
        self._want(added, now)

    def _want(self, filters: Iterable[str], now: float) -> None:
        for one in filters:
            mesh = self.meshes.get(one) or self._new_mesh(one, now)
            mesh.known_since = min(mesh.known_since, self._interests.since(one))
            mesh.want(self, now, is_wanted=True)

    def _sweep(self, now: float) -> None:
        self.store.expire(now)
        self._neighbours.sweep(now)
        self._want(self._interests.expire(now), now)
        for one in self._interests.lingered(now):
            if one in self.meshes:
                self.meshes[one].want(self, now, is_wanted=False)
        for topic_filter, mesh in list(self.meshes.items()):
            mesh.sweep(self, now)
            if mesh.is_over:
                del self.meshes[topic_filter]
                self._next_sequence = max(self._next_sequence, mesh.next_sequence)
                self._matching.remove(topic_filter, mesh)

    def _note(self, words: str, **fields: object) -> None:
        self._effects.append(SiteNote(words, fields))


_STEPS: Final[dict[type, Callable[[Federator, Any, float], None]]] = {
    PublishedHere: Federator._process_published,
    Beacon: Federator._process_beacon,
    LinkUp: Federator._process_link_up,
    LinkDown: Federator._process_link_down,
    Gone: Federator._process_gone,
    Neighbours: Federator._process_neighbours,
    PassedOn: Federator._process_routed,
    ControlPacket: Federator._process_control,
}
