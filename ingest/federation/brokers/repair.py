"""Messages that a site and its neighbours miss: how they are found, asked for and given.

Two things show that something is missing. A message names the one before it in its chain, so
`Marks` knows its *holes*. And when a chain has been quiet for a while (`HEAD_SECONDS`) neighbours
tell each other how far it has come; they do so for all that they hold when one becomes parent or
child of the other, which follows the death of a broker or a federator. A site that hears of more
than it has, has a *tail* to fetch.

Holes and tails are asked for until they are there, or until `patience_seconds` are over: first of
the neighbour that has shown them, then of everybody (`waves`). A neighbour may have passed on
messages above a hole and still wait for those in it; or its chain begins later than this site's, as
it did not know yet since when the messages are wanted. So that a neighbour has nothing does not
mean that no site has.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ingest.federation.brokers.chains import UNKNOWN, Marks
from ingest.federation.brokers.events import MeshCounters, SiteLimits
from ingest.federation.brokers.store import MeshStore
from ingest.federation.brokers.waves import OWN, WaveEnded, Waves
from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import Head, Lack, Want, Wave, Word
from mqlake.topics.matching import TopicFilterTrie

HEAD_SECONDS: Final = (0.5, 3.0, 10.0)
"""Times of silence of a chain after which neighbours hear how far it has come."""

MOST_REPAIRED: Final = 500
"""Messages that one Want brings; those above are asked for when these are there."""


class Site(Protocol):
    """The site, as the repair needs it."""

    counters: MeshCounters

    def say(self, neighbour: int, word: Word) -> None:
        """Tell a neighbour, if it is there."""
        ...

    def send(self, neighbour: int, message: SiteMessage) -> None:
        """Give a message to a neighbour."""
        ...

    def deliver(self, message: SiteMessage) -> None:
        """Give a message to local subscribers, if they want it."""
        ...

    def present(self) -> Collection[int]:
        """Return the neighbours that are there."""
        ...

    def targets(self, topic: str) -> Collection[int]:
        """Return the neighbours that a message goes to."""
        ...

    def is_origin(self, neighbour: int, key: ChainKey) -> bool:
        """Tell whether a chain is that of a neighbour's present run."""
        ...

    def wanted_since(self, topic: str, now: float) -> float | None:
        """Return since when messages of a topic are wanted; None: they are not."""
        ...


@dataclass(slots=True)
class _Tail:
    """Messages of a chain that a neighbour has announced."""

    upto: int
    teller: int
    after: int
    """In a chain that this site knows nothing of: from where on messages are wanted,"""
    since: float | None
    """and since when they were published; None: at any time."""
    told_at: float
    asked_at: float = float("-inf")
    asked_after: int = UNKNOWN
    is_urgent: bool = False
    """The neighbour does not have the messages that it announced."""


class Repair:
    """The part of a site that fetches missing messages.

    Args:
        name: The site, and the epoch of its run.
        limits: Limits of the site.
        marks: Messages that it has had.
        store: Messages that it has.
        host: The site itself.
    """

    def __init__(
        self, name: tuple[int, int], limits: SiteLimits, marks: Marks, store: MeshStore, host: Site
    ) -> None:
        self._name = name
        self._limits = limits
        self._marks = marks
        self._store = store
        self._host = host
        self._quiet: tuple[OrderedDict[ChainKey, float], ...] = tuple(
            OrderedDict() for _ in HEAD_SECONDS
        )
        self._edges: dict[int, set[str]] = defaultdict(set)
        """Neighbour -> filters whose messages it has to hear of."""
        self._tails: OrderedDict[ChainKey, _Tail] = OrderedDict()
        self._waves = Waves(seconds=limits.patience_seconds, most=limits.most_waiting)
        self._wave_number = 0

    def tick(self, now: float) -> None:
        """Send heads and wants that are due by time."""
        for stage, delay in enumerate(HEAD_SECONDS):
            self._tell_heads(stage, delay, now)
        for hole in list(self._marks.holes(now)):
            within = self._within_ms(hole.key.topic, now) if hole.after == 0 else 0
            want = Want(hole.key, hole.after, hole.upto, within)
            self._ask(want, now, first=None if hole.times_asked else hole.source)
        for key, tail in list(self._tails.items()):
            self._fetch(key, tail, now)
        self._waves.expire(now)

    # Telling.

    def touch(self, key: ChainKey, now: float) -> None:
        """Hear that a chain has gone on."""
        for stage in self._quiet:
            stage.pop(key, None)
        self._quiet[0][key] = now

    def edge_changed(self, topic_filter: str, neighbour: int) -> None:
        """Tell a new parent or child later of messages that it may have missed."""
        self._edges[neighbour].add(topic_filter)

    def tell_edges(self, now: float) -> None:
        """Tell new parents and children of all that they may have missed."""
        if not self._edges:
            return
        edges, self._edges = self._edges, defaultdict(set)
        keys = self._store.chains()
        for site in edges.keys() & set(self._host.present()):
            trie: TopicFilterTrie[None] = TopicFilterTrie()
            for one in edges[site]:
                trie.insert(one, None)
            told: set[ChainKey] = set()
            for key in keys:
                if not self._host.is_origin(site, key) and trie.match(key.topic):
                    last = self._store.last(key)
                    if last is not None:
                        told.add(key)
                        self._say_head(site, last, now)
            for latest in self._store.retained.values():
                key = latest.key
                if (
                    key not in told
                    and not self._host.is_origin(site, key)
                    and trie.match(key.topic)
                ):
                    self._say_head(site, latest, now)

    def _tell_heads(self, stage: int, delay: float, now: float) -> None:
        quiet = self._quiet[stage]
        while quiet:
            key, since = next(iter(quiet.items()))
            if now - since < delay:
                return
            del quiet[key]
            if stage + 1 < len(self._quiet):
                self._quiet[stage + 1][key] = since
            last = self._store.last(key)
            if last is not None:
                for site in self._host.targets(key.topic):
                    if not self._host.is_origin(site, key):
                        self._say_head(site, last, now)

    def _say_head(self, site: int, message: SiteMessage, now: float) -> None:
        stamp = message.stamp if self._store.retained.get(message.topic) is message else 0
        self._host.say(site, Head(message.key, message.sequence, _age_ms(message, now), stamp))

    # Asking.

    def hear_head(self, sender: int, head: Head, now: float) -> None:
        """Fetch messages that a neighbour has announced, if they are not there and wanted."""
        key = head.key
        if key[:2] == self._name:
            return
        mark = self._marks.behind(key, head.sequence)
        if mark is None:
            return
        after, since = head.sequence - 1, None
        if mark == UNKNOWN:
            since = self._host.wanted_since(key.topic, now)
            if since is None:
                return
            if now - head.age_ms / 1000 >= since:
                after = 0
            else:
                latest = self._store.retained.get(key.topic)
                if not head.stamp or (latest is not None and latest.stamp >= head.stamp):
                    return
                since = None
        known = self._tails.get(key)
        if known is not None and now - known.asked_at < self._limits.again_seconds:
            known.upto = max(head.sequence, known.upto)
            return
        self._tails[key] = tail = _Tail(head.sequence, sender, after, since, now)
        self._tails.move_to_end(key)
        if len(self._tails) > self._limits.most_waiting:
            self._tails.popitem(last=False)
        self._fetch(key, tail, now)

    def _fetch(self, key: ChainKey, tail: _Tail, now: float) -> None:
        """Ask for a tail again when it is time, and forget it when it is there."""
        mark = self._marks.behind(key, tail.upto)
        if mark is None:
            if self._marks.hole(key) is None:
                del self._tails[key]
            return  # a hole is asked for anyway
        has_come = mark > tail.asked_after
        if has_come:
            tail.told_at = now
        elif now - tail.told_at >= self._limits.patience_seconds:
            del self._tails[key]
            return
        if now - tail.asked_at < self._limits.again_seconds and not tail.is_urgent:
            return
        is_first = tail.asked_at == float("-inf")
        tail.asked_at, tail.asked_after, tail.is_urgent = now, mark, False
        after = tail.after if mark == UNKNOWN else mark
        within = 0
        if mark == UNKNOWN and tail.since is not None:
            within = _ms(now - tail.since) + 1
        want = Want(key, after, tail.upto, within)
        self._ask(want, now, first=tail.teller if is_first or has_come else None)

    def _ask(self, want: Want, now: float, *, first: int | None) -> None:
        """Ask one neighbour, or everybody."""
        if first is not None and first in self._host.present():
            self._host.say(first, want)
            return
        self._host.counters.waves += 1
        self._wave_number += 1
        wave = Wave(*self._name, self._wave_number)
        self._join(wave, OWN, want._replace(wave=wave), now)

    def hear_want(self, sender: int, want: Want, now: float) -> None:
        """Give a neighbour the messages that it asks for, or ask on."""
        since = now - want.within_ms / 1000 if want.within_ms else None
        found = self._store.between(
            want.key, want.after, want.upto, since=since, most=MOST_REPAIRED
        )
        for message in found:
            age_ms = _age_ms(message, now)
            expiry = message.properties.get("message_expiry_interval")
            if expiry is not None and age_ms > expiry * 1000:
                continue
            self._host.counters.repaired += 1
            self._host.send(sender, replace(message, age_ms=age_ms))
        if want.wave is None:
            top = want.upto if not found else found[0].after
            if top > want.after and (not found or _follows(found[0], since)):
                self._host.say(sender, Lack(want.key, top))
        elif not found:
            self._take_part(sender, want, want.wave, now)

    def _take_part(self, sender: int, want: Want, wave: Wave, now: float) -> None:
        if want.key[:2] == self._name:
            self._host.say(sender, Lack(want.key, want.upto, wave))
            return  # no site has messages that their origin has no more
        if wave not in self._waves:
            self._join(wave, sender, want, now)
            return
        was_awaited, ended = self._waves.answer(wave, sender)
        if not was_awaited:
            self._host.say(sender, Lack(want.key, want.upto, wave))
        self._conclude(ended)

    def _join(self, wave: Wave, asker: int, want: Want, now: float) -> None:
        asked = [site for site in self._host.present() if site != asker]
        ended = self._waves.join(wave, asker, want, asked, now)
        for site in asked:
            self._host.say(site, want)
        self._conclude(ended)

    def hear_lack(self, sender: int, lack: Lack) -> None:
        """Hear that a neighbour has not the messages asked for."""
        if lack.wave is not None:
            self._conclude(self._waves.answer(lack.wave, sender)[1])
            return
        hole = self._marks.hole(lack.key)
        if hole is not None and hole.upto == lack.upto:
            self._marks.hurry(lack.key)
        tail = self._tails.get(lack.key)
        if tail is not None and tail.upto == lack.upto:
            tail.is_urgent = True

    def _conclude(self, ended: WaveEnded | None) -> None:
        """Say that no site has them, or begin a chain above such messages."""
        if ended is None:
            return
        key, upto = ended.want.key, ended.want.upto
        hole = self._marks.hole(key)
        has_source = hole is not None and hole.source in self._host.present()
        if ended.asker != OWN:
            may_come = hole is not None and hole.after < upto and (hole.after or not has_source)
            if not may_come:
                self._host.say(ended.asker, Lack(key, upto, ended.want.wave))
            return
        tail = self._tails.get(key)
        if tail is not None and tail.upto == upto:
            del self._tails[key]
        if has_source:
            for message in self._marks.lack(key, upto):
                self._host.deliver(message)

    # Taking.

    def askers(self, message: SiteMessage) -> set[int]:
        """Return the neighbours on whose behalf this site has asked for a message."""
        return self._waves.askers(message)

    def is_missing(self, message: SiteMessage) -> bool:
        """Tell whether a message below its chain's mark is to be taken for others."""
        before = message.sequence - 1
        return bool(self._waves.askers(message)) and not self._store.between(
            message.key, before, message.sequence, since=None, most=1
        )

    def _within_ms(self, topic: str, now: float) -> int:
        since = self._host.wanted_since(topic, now)
        return _ms(now - (now if since is None else since)) + 1


def _age_ms(message: SiteMessage, now: float) -> int:
    return _ms(now - message.since)


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 0)


def _follows(message: SiteMessage, since: float | None) -> bool:
    """Tell whether the message before this one is wanted too."""
    return since is None or message.since - message.gap_ms / 1000 >= since
