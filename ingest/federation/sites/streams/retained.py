"""The latest of the retained messages of a topic, the same at all sites.

Each site retains the message that stands last in its log, and two sites that set a topic while they
are apart have the two messages in different orders. So each retained message has a stamp, and the
one with the higher rank is the later one everywhere, a deletion too. The stamp is a hybrid logical
clock of its partition at its origin, and it follows from the log alone: the time of the record, but
never behind earlier records of the log. So a client that sets a topic that it has seen from a site
with a fast clock still comes later (Kulkarni et al., Logical Physical Clocks, 2014).

A neighbour's message that is not the latest one is appended without RETAIN. That is decided before
the log has all that clients publish at the same moment. When one of theirs with a higher rank
turns out to stand before it, that one is shown again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ingest.federation.envelope import NAME, InvalidEnvelope, SiteMessage, to_header
from ingest.federation.sites.streams.log_messages import Carried, of_record
from mqlake.errors import InvalidRecord
from mqlake.records.federation import LinkPosition
from mqlake.records.messages import LogRecord, is_retained


class Rank(NamedTuple):
    """Orders retained messages; of two from the same place and time the second is higher."""

    stamp: int
    origin: int
    epoch: int
    partition: int
    sequence: int


Position = tuple[int, int]
"""Partition and offset of the log."""


class Stamps:
    """The clock of each partition, as a reader of the log has it.

    Args:
        clock: Milliseconds UTC and more by partition; moves.
    """

    def __init__(self, clock: dict[int, int]) -> None:
        self.clock: Final = clock

    def note(self, carried: Carried, site: int, partition: int) -> None:
        """Pass a message in the order of the log; a retained one of this site gets its stamp."""
        message = carried.message
        if not message.retain:
            return
        clock = self.clock.get(partition, 0)
        if carried.sender == site:
            self.clock[partition] = message.stamp = max(message.stamp, clock)
        else:
            self.clock[partition] = max(message.stamp + 1, clock)


@dataclass(slots=True)
class _Topic:
    latest: Rank
    at: Position | None = None
    """Position in the log; None: it is on its way, or will come again."""
    shown: Rank | None = None
    """Rank of the last message in the log with RETAIN: subscribers get that one."""


class SiteRetained:
    """Retained messages of the federation, as one site knows them.

    Args:
        site: This one.
        epoch: Epoch of its log.
        tenant: Tenant whose messages are federated.
        crosses: Tells whether a topic of this site may be known to others.
        most: Topics that are kept; of others the last in the log counts.
        position: Up to where the log has been read, and the clocks there; moves.
    """

    def __init__(
        self,
        site: int,
        epoch: int,
        tenant: str,
        crosses: Callable[[str], bool],
        most: int,
        position: LinkPosition,
    ) -> None:
        self.position: Final = position
        self.forgotten = 0
        """Topics that were too many."""
        self.shown_again = 0
        self._site = site
        self._epoch = epoch
        self._tenant = tenant
        self._crosses = crosses
        self._most = most
        self._stamps = Stamps(position.clock)
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._changed: set[str] = set()
        self._messages: dict[str, LogRecord] = {}
        self._wrong: set[str] = set()
        self._showing: set[str] = set()

    def __len__(self) -> int:
        """Return how many topics are known."""
        return len(self._topics)

    def is_latest(self, topic: str, message: SiteMessage) -> bool:
        """Tell whether a neighbour's retained message is to be retained here, too.

        Args:
            topic: As it is called here.
            message: Is appended to the log now.
        """
        rank = _rank(message)
        known = self._topics.get(topic)
        if known is not None and rank < known.latest:
            return False
        if known is None or rank > known.latest:
            self._set(topic, rank, None)
        return True

    def take(self, records: Iterable[LogRecord]) -> None:
        """Follow the log."""
        for record in records:
            headers = dict(record.headers)
            shows = is_retained(headers)
            if shows or NAME in headers:
                self._take(record, shows=shows)
            self.position.cursor[record.partition] = record.offset + 1

    def wrong(self) -> dict[str, tuple[Position, Rank]]:
        """Return the topics whose latest message is to be shown again, and where it is; once."""
        found = {}
        for topic in self._wrong - self._showing:
            known = self._topics[topic]
            if known.at is not None:
                found[topic] = known.at, known.latest
        self._showing |= found.keys()
        self._wrong.clear()
        return found

    def changes(self) -> dict[str, list[Any] | None]:
        """Return the state for `restore` of topics that have changed; None: of no more."""
        found: dict[str, list[Any] | None] = {}
        for topic in self._changed:
            known = self._topics.get(topic)
            found[topic] = None if known is None else [known.latest, known.at, known.shown]
        self._changed.clear()
        return found

    def messages(self) -> dict[str, LogRecord]:
        """Return the latest messages that are new since the last call, with envelopes."""
        found, self._messages = self._messages, {}
        return found

    def restore(self, found: Mapping[str, list[Any]]) -> None:
        """Begin with the state of a run before.

        Raises:
            InvalidRecord: It is nothing that `changes` makes.
        """
        try:
            for topic, (latest, at, shown) in found.items():
                self._topics[topic] = _Topic(
                    Rank(*map(int, latest)),
                    None if at is None else (int(at[0]), int(at[1])),
                    None if shown is None else Rank(*map(int, shown)),
                )
        except (TypeError, ValueError, IndexError) as exc:
            raise InvalidRecord(f"a retained message's rank cannot be read: {exc!r}") from exc
        self._wrong = {topic for topic, known in self._topics.items() if _is_wrong(known)}

    def _take(self, record: LogRecord, *, shows: bool) -> None:
        try:
            carried = of_record(record, self._tenant, self._site, self._epoch)
        except (InvalidEnvelope, InvalidRecord):
            return
        if carried is None:
            return
        message = carried.message
        if not carried.is_again:
            self._stamps.note(carried, self._site, record.partition)
        if not message.retain or not self._crosses(message.topic):
            return
        rank, known = _rank(message), self._topics.get(message.topic)
        if known is None or rank >= known.latest:
            known = self._set(message.topic, rank, (record.partition, record.offset))
            if carried.sender == self._site and not carried.is_again:
                headers = [*record.headers, to_header(message, self._site)]
                record = record._replace(headers=headers)
            self._messages[message.topic] = record
        if shows:
            known.shown = rank
            self._changed.add(message.topic)
            self._showing.discard(message.topic)
            if _is_wrong(known):
                self._wrong.add(message.topic)
            else:
                self._wrong.discard(message.topic)

    def _set(self, topic: str, rank: Rank, at: Position | None) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic(rank)
        known.latest, known.at = rank, at
        self._topics.move_to_end(topic)
        self._changed.add(topic)
        if len(self._topics) > self._most:
            oldest, _ = self._topics.popitem(last=False)
            self.forgotten += 1
            self._changed.add(oldest)
            self._messages.pop(oldest, None)
            self._wrong.discard(oldest)
            self._showing.discard(oldest)
        return known


def _is_wrong(known: _Topic) -> bool:
    """Tell whether subscribers get another message than the latest, which the log has."""
    return known.shown is not None and known.shown < known.latest and known.at is not None


def _rank(message: SiteMessage) -> Rank:
    origin, epoch, _ = message.key
    return Rank(message.stamp, origin, epoch, message.partition, message.sequence)
