"""One site of a federation: events in, what is to be done out; no socket and no clock.

The host calls `step` with what has happened and `tick` ten times a second, both with the time of a
monotonic clock, and after each takes from `ready` what to do: packets for neighbours, messages for
local subscribers, words for the log. Nothing else comes out, so a whole federation runs in one
process under a clock of its own (`tests/ingest/federation/simulation.py`).

**A message** from a local client gets an identifier, from a neighbour it has one. The first time a
site sees it, it passes it on at once: to the parents and children of *all* meshes whose filter
matches, but the neighbour that it came from. One decision for all meshes, made once for a message:
so filters that overlap neither double it nor stop it half-way. Local subscribers get it in the
order of its chain (`chains`).

**What is missing** is found in two ways: the next message of a chain names the one before, and when
a chain has been quiet for a while (`HEAD_SECONDS`) neighbours tell each other how far it has come.
They do so for all that they hold when one becomes parent or child of the other, which is what
follows when a broker or a federator has died. Then the missing messages are asked for.

**A neighbour is there** when its link is up and it was heard within three beacon intervals; each
says something every beacon interval. One that is not there is neither parent nor child.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ingest.federation.chains import Chains, Hole, Marks, RecentIds
from ingest.federation.envelope import ChainKey, Message
from ingest.federation.filters import covers, meet, summarise, uncovered
from ingest.federation.meshes import Mesh, Timing
from ingest.federation.packets import (
    Announcement,
    Control,
    Head,
    Lack,
    Membership,
    Search,
    Want,
    Word,
    to_packets,
)
from ingest.federation.store import Store, order_of
from ingest.protocol.properties import NO_PROPERTIES, Properties
from mqlake.matching import TopicFilterTrie

BEACONS_MISSED: Final = 3
HEAD_SECONDS: Final = (0.5, 3.0, 10.0)
"""After a chain has been quiet for so long, neighbours are told how far it has come."""

SWEEP_SECONDS: Final = 1.0
SLACK_SECONDS: Final = 0.05
"""Ages are in whole milliseconds: what was published about when it began to be wanted is wanted."""

MOST_REPAIRED: Final = 500
"""Messages that one Want brings; what is above is asked for when they are there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a site may hold; durations in seconds."""

    redundancy: int = 2
    beacon_interval: float = 5.0
    hop_limit: int = 16
    keep_order: bool = True
    cache_size: int = 5_000
    """Identifiers remembered without order."""
    most_chains: int = 100_000
    most_waiting: int = 10_000
    most_meshes: int = 256
    """Filters of its own that it announces; more are summarised."""
    store_seconds: float = 120.0
    store_messages: int = 20_000
    store_bytes: int = 64 * 1024 * 1024
    most_retained: int = 10_000
    ask_seconds: float = 0.1
    again_seconds: float = 1.0
    patience_seconds: float = 10.0


# Events.


@dataclass(slots=True)
class Published:
    """A client of the own broker has published."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    at_ms: int
    """Wall clock, UTC epoch."""
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Beacon:
    """There are local subscribers for a filter."""

    topic_filter: str
    is_permanent: bool = False
    age_seconds: float = 0.0
    """For how long there have been, when a former run has known."""


@dataclass(slots=True)
class LinkUp:
    neighbour: int


@dataclass(slots=True)
class LinkDown:
    neighbour: int


@dataclass(slots=True)
class Gone:
    """A neighbour's broker says that its federator is not there any more; the link still is."""

    neighbour: int


@dataclass(slots=True)
class Neighbours:
    """These are the neighbours from now on."""

    sites: tuple[int, ...]


@dataclass(slots=True)
class Routed:
    """A neighbour has passed a message on."""

    sender: int
    message: Message


StepEvent = Published | Beacon | LinkUp | LinkDown | Gone | Neighbours | Routed | Control


# Effects.


@dataclass(slots=True)
class Send:
    """Give a packet to a neighbour, in order with the others."""

    neighbour: int
    packet: Control | Message


@dataclass(slots=True)
class Deliver:
    """Publish a message at the own broker."""

    message: Message
    retain: bool
    """False for a retained message that a later one has overtaken."""


@dataclass(slots=True)
class Note:
    """Something that people may want to know."""

    words: str
    fields: dict[str, object]


Effect = Send | Deliver | Note


@dataclass(slots=True)
class Counters:
    published: int = 0
    received: int = 0
    duplicates: int = 0
    echoes: int = 0
    """Copies of what this site has published itself."""
    sent: int = 0
    delivered: int = 0
    unwanted: int = 0
    """Came by a summary, and no local subscriber wants it."""
    repaired: int = 0
    """Sent again to neighbours that missed it."""
    over_hop_limit: int = 0
    control_sent: int = 0
    control_received: int = 0
    elections: int = 0
    strangers: int = 0
    """Packets from sites that are no neighbours."""


@dataclass(slots=True)
class Saved:
    """What one run leaves to the next."""

    marks: Sequence[tuple[ChainKey, int]] = ()
    messages: Sequence[Message] = ()
    interests: Mapping[str, float] = field(default_factory=dict)
    """Filter -> for how many seconds there have been subscribers."""
    stamp: int = 0


@dataclass(slots=True)
class Interest:
    """Local subscribers of a filter, in monotonic seconds."""

    until: float
    since: float


@dataclass(slots=True)
class _Neighbour:
    link_is_up: bool = False
    is_there: bool = False
    heard_at: float = float("-inf")
    said_at: float = float("-inf")
    epoch: int = -1
    words: list[Word] = field(default_factory=list)
    """To be sent when the host asks."""
    owes_hello: bool = False
    """It is to hear that this site is there, if only by an empty packet."""


class _Origin(NamedTuple):
    sequence: int
    at_ms: int


class Federator:
    """The federation's part at one site.

    Args:
        site: Its identifier; the lowest one of those that want the same filter becomes its core.
        epoch: Of this run, higher than that of any before.
        neighbours: Sites it has links to.
        limits: What it may hold.
        timing: Of its meshes.
        interest_filters: What local subscribers may get from other sites.
        seed: For the moment in a second at which it looks at its meshes.
        now: The time.
    """

    def __init__(
        self,
        site: int,
        epoch: int,
        neighbours: Iterable[int],
        *,
        limits: Limits | None = None,
        timing: Timing | None = None,
        interest_filters: Iterable[str] = ("#",),
        seed: int = 0,
        now: float = 0.0,
    ) -> None:
        self.site = site
        self.epoch = epoch
        self.limits = limits = limits or Limits()
        self.timing = timing or Timing()
        self.counters = Counters()
        self.meshes: dict[str, Mesh] = {}
        self.interests: dict[str, Interest] = {}
        """Filters of local subscribers."""
        self.store = Store(
            seconds=limits.store_seconds,
            most_messages=limits.store_messages,
            most_bytes=limits.store_bytes,
            most_retained=limits.most_retained,
        )
        self.marks: Marks = new_marks(limits)
        self._interest_filters = uncovered(interest_filters)
        self._wanted: TopicFilterTrie[str] = TopicFilterTrie()
        self._summary: set[str] = set()
        self._lingering: dict[str, float] = {}
        self._matching: TopicFilterTrie[Mesh] = TopicFilterTrie()
        self._neighbours: dict[int, _Neighbour] = {one: _Neighbour() for one in neighbours}
        self._effects: list[Effect] = []
        self._sequence = 0
        self._origins: OrderedDict[str, _Origin] = OrderedDict()
        self._stamp = 0
        self._quiet: tuple[OrderedDict[ChainKey, float], ...] = tuple(
            OrderedDict() for _ in HEAD_SECONDS
        )
        self._edges: dict[int, set[str]] = defaultdict(set)
        """Neighbour -> filters whose messages it has to be told of."""
        self._asked: OrderedDict[tuple[ChainKey, int], float] = OrderedDict()
        self._next_sequence = 1
        """Of a new mesh: above those of all that were, as others may remember their ends."""
        self._swept_at = now - SWEEP_SECONDS * (seed * 0x9E3779B1 % 1000) / 1000

    # What happens.

    def step(self, event: StepEvent, now: float) -> None:
        """Take one event."""
        _STEPS[type(event)](self, event, now)

    def tick(self, now: float) -> None:
        """Let time pass; ten times a second is often enough."""
        for delay, stage in zip(HEAD_SECONDS, range(len(HEAD_SECONDS)), strict=True):
            self._tell_heads(stage, delay, now)
        for hole in self.marks.holes(now):
            self._ask(hole, now)
        for message in self.marks.give_up(now):
            self._deliver(message)
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            self._sweep(now)

    def ready(self, now: float) -> list[Effect]:
        """Return what is to be done, in this order, and forget it."""
        self._tell_edges(now)
        effects = self._effects
        self._effects = []
        for site, neighbour in self._neighbours.items():
            if neighbour.link_is_up and (neighbour.words or neighbour.owes_hello):
                words, neighbour.words = neighbour.words, []
                neighbour.owes_hello = False
                neighbour.said_at = now
                packets = [Send(site, one) for one in to_packets(self.site, self.epoch, words)]
                self.counters.control_sent += len(packets)
                effects += packets
        return effects

    # What outlives a run.

    def restore(self, saved: Saved, now: float) -> None:
        """Go on where a former run was, before anything else happens.

        Its messages are there for neighbours, its marks say what local subscribers have had, and
        its subscribers count for as long as their beacons would have.
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

    def unsaved(self, now: float) -> Saved:
        """Return what has changed since this was asked for the last time."""
        messages, self.store.unsaved = self.store.unsaved, []
        marks, self.marks.changed = self.marks.changed, {}
        ages = {one: now - known.since for one, known in self.interests.items()}
        return Saved(list(marks.items()), messages, ages, self._stamp)

    # What others may ask.

    def neighbours(self) -> dict[int, bool]:
        """Return the neighbours, and which of them are there."""
        return {site: one.is_there for site, one in self._neighbours.items()}

    @property
    def summary(self) -> frozenset[str]:
        """The filters that this site wants from others."""
        return frozenset(self._summary)

    def targets(self, topic: str) -> set[int]:
        """Return the neighbours that a message goes to."""
        found: set[int] = set()
        for mesh in self._matching.match(topic):
            found.update(mesh.targets())
        return found

    # Messages.

    def _process_published(self, event: Published, now: float) -> None:
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
        message = Message(
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
        self._pass_on(message, self.site, now)

    def _process_routed(self, event: Routed, now: float) -> None:
        message, sender = event.message, event.sender
        if not self._hear(sender, now):
            return
        self.counters.received += 1
        if message.key[:2] == (self.site, self.epoch):
            self.counters.echoes += 1
            return
        if self.marks.has_seen(message):
            self.counters.duplicates += 1
            return
        self._stamp = max(self._stamp, message.stamp)
        message.hops += 1
        message.since = now - message.age_ms / 1000
        self.store.add(message, now)
        since = self._wanted_since(message.topic, now)
        for one in self.marks.admit(message, sender, now, since):
            self._deliver(one)
        self._pass_on(message, sender, now)

    def _pass_on(self, message: Message, sender: int, now: float) -> None:
        if message.hops >= self.limits.hop_limit:
            self.counters.over_hop_limit += 1
            return
        for site in self.targets(message.topic):
            if site != sender and not self._is_origin(site, message.key):
                self.counters.sent += 1
                self._effects.append(Send(site, message))
        for stage in self._quiet:
            stage.pop(message.key, None)
        self._quiet[0][message.key] = now

    def _deliver(self, message: Message) -> None:
        if message.key.origin == self.site:
            return  # local subscribers have had it
        wanted = self._wanted.match(message.topic)
        if not wanted:
            self.counters.unwanted += 1
            return
        if not message.retain and all(
            message.since < self.interests[one].since - SLACK_SECONDS for one in wanted
        ):
            return  # from before there was anybody
        self.counters.delivered += 1
        retain = message.retain
        if retain:
            latest = self.store.retained.get(message.topic)
            retain = latest is None or order_of(latest) <= order_of(message)
        self._effects.append(Deliver(message, retain))

    def _is_origin(self, neighbour: int, key: ChainKey) -> bool:
        """Tell whether a chain is that of a neighbour's present run; a new run knows none."""
        there = self._neighbours.get(neighbour)
        return key.origin == neighbour and there is not None and there.epoch == key.epoch

    def _wanted_since(self, topic: str, now: float) -> float:
        known = min((mesh.known_since for mesh in self._matching.match(topic)), default=now)
        return known - SLACK_SECONDS

    # What is missing.

    def _tell_heads(self, stage: int, delay: float, now: float) -> None:
        quiet = self._quiet[stage]
        while quiet:
            key, since = next(iter(quiet.items()))
            if now - since < delay:
                return
            del quiet[key]
            if stage + 1 < len(self._quiet):
                self._quiet[stage + 1][key] = since
            last = self.store.last(key)
            if last is not None:
                for site in self.targets(key.topic):
                    if not self._is_origin(site, key):
                        self._say_head(site, last, now)

    def _tell_edges(self, now: float) -> None:
        """Tell new parents and children of all that they may have missed."""
        if not self._edges:
            return
        edges, self._edges = self._edges, defaultdict(set)
        keys = self.store.chains()
        for site, filters in edges.items():
            if site not in self._neighbours or not self._neighbours[site].is_there:
                continue
            trie: TopicFilterTrie[None] = TopicFilterTrie()
            for one in filters:
                trie.insert(one, None)
            told: set[ChainKey] = set()
            for key in keys:
                if not self._is_origin(site, key) and trie.match(key.topic):
                    last = self.store.last(key)
                    if last is not None:
                        told.add(key)
                        self._say_head(site, last, now)
            for latest in self.store.retained.values():
                key = latest.key
                if key not in told and not self._is_origin(site, key) and trie.match(key.topic):
                    self._say_head(site, latest, now)

    def _say_head(self, site: int, message: Message, now: float) -> None:
        stamp = message.stamp if self.store.retained.get(message.topic) is message else 0
        self.say(site, Head(message.key, message.sequence, _age_ms(message, now), stamp))

    def _process_head(self, sender: int, head: Head, now: float) -> None:
        key = head.key
        if key[:2] == (self.site, self.epoch):
            return
        mark = self.marks.behind(key, head.sequence)
        if mark is None:
            return
        since = self._wanted_since(key.topic, now)
        within = 0
        if mark < 0:
            latest = self.store.retained.get(key.topic)
            is_retained = head.stamp and (latest is None or latest.stamp < head.stamp)
            if now - head.age_ms / 1000 >= since:
                within = _within_ms(since, now)
            elif not is_retained or not self._matching.match(key.topic):
                return
            mark = 0 if within else head.sequence - 1
        asked = key, head.sequence
        if now - self._asked.get(asked, float("-inf")) < self.limits.again_seconds:
            return
        self._asked[asked] = now
        self._asked.move_to_end(asked)
        if len(self._asked) > self.limits.most_waiting:
            self._asked.popitem(last=False)
        self.say(sender, Want(key, mark, head.sequence, within))

    def _ask(self, hole: Hole, now: float) -> None:
        """Ask all that may have it; what comes twice is dropped."""
        within = 0
        if hole.after == 0:
            since = self._wanted_since(hole.key.topic, now)
            within = _within_ms(since, now)
        asked = {hole.source, *self.targets(hole.key.topic)}
        for site in asked:
            self.say(site, Want(hole.key, hole.after, hole.upto, within))

    def _process_want(self, sender: int, want: Want, now: float) -> None:
        since = now - want.within_ms / 1000 if want.within_ms else None
        found = self.store.between(want.key, want.after, want.upto, since=since, most=MOST_REPAIRED)
        for message in found:
            age_ms = _age_ms(message, now)
            expiry = message.properties.get("message_expiry_interval")
            if expiry is not None and age_ms > expiry * 1000:
                continue
            self.counters.repaired += 1
            self._effects.append(Send(sender, replace(message, age_ms=age_ms)))
        if not found or found[0].after > want.after:
            self.say(sender, Lack(want.key, want.upto))

    def _process_lack(self, sender: int, lack: Lack, now: float) -> None:
        for message in self.marks.lack(lack.key, sender, self.targets(lack.key.topic)):
            self._deliver(message)

    # Neighbours.

    def _process_control(self, event: Control, now: float) -> None:
        sender = event.sender
        if not self._hear(sender, now, event.epoch):
            return
        self.counters.control_received += 1
        for word in event.words:
            if isinstance(word, Announcement | Membership | Search):
                self._process_mesh_word(sender, word, now)
            elif isinstance(word, Head):
                self._process_head(sender, word, now)
            elif isinstance(word, Want):
                self._process_want(sender, word, now)
            else:
                self._process_lack(sender, word, now)

    def _process_mesh_word(
        self, sender: int, word: Announcement | Membership | Search, now: float
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
        """Note that a neighbour has said something; return False for a stranger."""
        neighbour = self._neighbours.get(sender)
        if neighbour is None:
            self.counters.strangers += 1
            return False
        neighbour.heard_at = now
        if epoch is not None and epoch != neighbour.epoch:
            if epoch < neighbour.epoch:
                return False  # from before its restart
            neighbour.epoch = epoch
            self._lose(sender, now)
        if neighbour.link_is_up and not neighbour.is_there and neighbour.epoch >= 0:
            neighbour.is_there = True
            self._note("a neighbour is there", neighbour=sender)
            for mesh in self.meshes.values():
                mesh.greet(sender, self, now)
            neighbour.owes_hello = True
        return True

    def _lose(self, site: int, now: float) -> None:
        neighbour = self._neighbours[site]
        neighbour.words.clear()
        if neighbour.is_there:
            neighbour.is_there = False
            self._note("a neighbour is not there any more", neighbour=site)
            for mesh in list(self.meshes.values()):
                mesh.lose_neighbour(site, self, now)

    def _process_link_up(self, event: LinkUp, now: float) -> None:
        neighbour = self._neighbours.get(event.neighbour)
        if neighbour is not None:
            neighbour.link_is_up = neighbour.owes_hello = True
            if now - neighbour.heard_at < BEACONS_MISSED * self.limits.beacon_interval:
                self._hear(event.neighbour, neighbour.heard_at)

    def _process_link_down(self, event: LinkDown, now: float) -> None:
        neighbour = self._neighbours.get(event.neighbour)
        if neighbour is not None:
            neighbour.link_is_up = False
            neighbour.heard_at = float("-inf")
            self._lose(event.neighbour, now)

    def _process_gone(self, event: Gone, now: float) -> None:
        if event.neighbour in self._neighbours:
            self._neighbours[event.neighbour].heard_at = float("-inf")
            self._lose(event.neighbour, now)

    def _process_neighbours(self, event: Neighbours, now: float) -> None:
        for site in self._neighbours.keys() - set(event.sites):
            self._lose(site, now)
            del self._neighbours[site]
        for site in event.sites:
            self._neighbours.setdefault(site, _Neighbour())

    # What meshes say (`meshes.Out`).

    def say(self, neighbour: int, word: Word) -> None:
        """Tell a neighbour, if it is there."""
        there = self._neighbours.get(neighbour)
        if there is not None and there.is_there:
            there.words.append(word)

    def flood(self, word: Word, *, but: int | None = None) -> None:
        """Tell all neighbours that are there, but one."""
        for site, neighbour in self._neighbours.items():
            if neighbour.is_there and site != but:
                neighbour.words.append(word)

    def edges_changed(self, mesh: Mesh, neighbour: int) -> None:
        """Tell a new parent or child later of what it may have missed."""
        self._edges[neighbour].add(mesh.topic_filter)

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
        is_new = False
        for allowed in self._interest_filters:
            common = meet(allowed, event.topic_filter)
            if common is None or common.startswith("$"):
                continue
            if common not in self.interests:
                self._wanted.insert(common, common)
                is_new = is_new or not any(covers(one, common) for one in self._summary)
            known = self.interests.setdefault(common, Interest(until, now - event.age_seconds))
            known.until = max(until, known.until)
        if is_new:
            self._summarise(now)

    def _summarise(self, now: float) -> None:
        """Bring the summary up to date, and keep what it was until the new meshes stand."""
        summary = summarise(self.interests.keys(), self.limits.most_meshes)
        for one in self._summary - summary:
            lingers = any(meet(one, other) is not None for other in summary)
            self._lingering[one] = now + (self.timing.core_announcement_interval if lingers else 0)
        added = summary - self._summary
        self._summary = summary
        for one in added:
            self._lingering.pop(one, None)
            mesh = self.meshes.get(one) or self._new_mesh(one, now)
            mesh.known_since = min(mesh.known_since, self._since(one))
            mesh.want(self, now, is_wanted=True)

    def _since(self, topic_filter: str) -> float:
        """Return since when there are subscribers for what a filter of the summary covers."""
        return min(
            known.since for one, known in self.interests.items() if covers(topic_filter, one)
        )

    def _is_too_wide(self) -> bool:
        """Tell whether the summary could be narrower; not each time that one filter less counts."""
        if len(self.interests) <= self.limits.most_meshes // 2:
            return True
        return not all(
            one in self.interests or any(covers(one, other) for other in self.interests)
            for one in self._summary
        )

    def _sweep(self, now: float) -> None:
        self.store.expire(now)
        silent = now - BEACONS_MISSED * self.limits.beacon_interval
        for site, neighbour in self._neighbours.items():
            if neighbour.is_there and neighbour.heard_at < silent:
                self._lose(site, now)
            if neighbour.link_is_up and now - neighbour.said_at >= self.limits.beacon_interval:
                neighbour.owes_hello = True
        ended = [one for one, known in self.interests.items() if known.until <= now]
        for one in ended:
            del self.interests[one]
            self._wanted.remove(one, one)
        if ended and self._is_too_wide():
            self._summarise(now)
        for one in [one for one, until in self._lingering.items() if until <= now]:
            del self._lingering[one]
            if one in self.meshes:
                self.meshes[one].want(self, now, is_wanted=False)
        for topic_filter, mesh in list(self.meshes.items()):
            mesh.sweep(self, now)
            if mesh.is_over:
                del self.meshes[topic_filter]
                self._next_sequence = max(self._next_sequence, mesh.next_sequence)
                self._matching.remove(topic_filter, mesh)

    def _note(self, words: str, **fields: object) -> None:
        self._effects.append(Note(words, fields))


def _age_ms(message: Message, now: float) -> int:
    return max(round((now - message.since) * 1000), 0)


def _within_ms(since: float, now: float) -> int:
    return max(round((now - since) * 1000), 0) + 1


def new_marks(limits: Limits) -> Chains | RecentIds:
    """Return what keeps order and finds duplicates, as the limits say."""
    if not limits.keep_order:
        return RecentIds(limits.cache_size)
    return Chains(
        limits.most_chains,
        ask_seconds=limits.ask_seconds,
        again_seconds=limits.again_seconds,
        patience_seconds=limits.patience_seconds,
        most_waiting=limits.most_waiting,
    )


_STEPS: Final[dict[type, Callable[[Federator, Any, float], None]]] = {
    Published: Federator._process_published,
    Beacon: Federator._process_beacon,
    LinkUp: Federator._process_link_up,
    LinkDown: Federator._process_link_down,
    Gone: Federator._process_gone,
    Neighbours: Federator._process_neighbours,
    Routed: Federator._process_routed,
    Control: Federator._process_control,
}
