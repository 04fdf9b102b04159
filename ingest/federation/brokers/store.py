"""The messages that a site has passed on lately, for neighbours that miss one.

Bounded by age, number and bytes; messages that go before their age are counted. The latest retained
message of each topic is kept beyond that, for sites that join later.
"""

from collections import OrderedDict, deque
from operator import attrgetter
from typing import Final

from ingest.federation.envelope import ChainKey, SiteMessage

MESSAGE_OVERHEAD_BYTES: Final = 500
"""About the memory of an empty message."""


class MeshStore:
    """Messages that neighbours may ask for.

    Args:
        seconds: How long a message is kept.
        most_messages: How many are.
        most_bytes: How many bytes they may take.
        most_retained: Topics whose retained message is kept.
    """

    def __init__(
        self, *, seconds: float, most_messages: int, most_bytes: int, most_retained: int
    ) -> None:
        self._seconds = seconds
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._most_retained = most_retained
        self._chains: dict[ChainKey, deque[SiteMessage]] = {}
        self._order: deque[tuple[float, ChainKey]] = deque()
        self._bytes = 0
        self.retained: OrderedDict[str, SiteMessage] = OrderedDict()
        """Topic -> its latest retained message by stamp; one without a payload is a deletion."""
        self.unsaved: list[SiteMessage] = []
        """Added since the host has saved the last time; the host empties it."""
        self.overflowed = 0
        """Messages that had to go before their time."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, message: SiteMessage, now: float) -> bool:
        """Keep a message; return whether it is the latest retained one of its topic."""
        self._chains.setdefault(message.key, deque()).append(message)
        self._order.append((now, message.key))
        self.unsaved.append(message)
        self._bytes += _bytes(message)
        while len(self._order) > self._most_messages or self._bytes > self._most_bytes:
            self._drop_oldest()
            self.overflowed += 1
        return message.retain and self._retain(message)

    def _retain(self, message: SiteMessage) -> bool:
        known = self.retained.get(message.topic)
        if known is not None and order_of(known) >= order_of(message):
            return False
        self.retained[message.topic] = message
        self.retained.move_to_end(message.topic)
        if len(self.retained) > self._most_retained:
            self.retained.popitem(last=False)
        return True

    def expire(self, now: float) -> None:
        """Let go messages that are too old."""
        while self._order and now - self._order[0][0] > self._seconds:
            self._drop_oldest()

    def between(
        self, key: ChainKey, after: int, upto: int, *, since: float | None, most: int
    ) -> list[SiteMessage]:
        """Return messages of a chain, in order.

        Args:
            key: The chain.
            after: Only messages after this sequence.
            upto: And not after this one.
            since: And was published since then; None: whenever. `upto` itself counts whenever it
                was: the asker knows of it, and two clocks need not agree.
            most: How many at once.
        """
        found = [
            one
            for one in self._chains.get(key, ())
            if after < one.sequence <= upto
            and (since is None or one.since >= since or one.sequence == upto)
        ]
        # Repaired messages have come out of order.
        found.sort(key=_sequence)
        if not found:
            latest = self.retained.get(key.topic)
            if latest is not None and latest.key == key and latest.sequence == upto:
                found = [latest]
        return found[:most]

    def last(self, key: ChainKey) -> SiteMessage | None:
        """Return the message of a chain with the highest sequence."""
        messages = self._chains.get(key)
        return None if messages is None else max(messages, key=_sequence)

    def chains(self) -> list[ChainKey]:
        """Return the chains of which it has something."""
        return list(self._chains)

    def _drop_oldest(self) -> None:
        _, key = self._order.popleft()
        messages = self._chains[key]
        self._bytes -= _bytes(messages.popleft())
        if not messages:
            del self._chains[key]


def order_of(message: SiteMessage) -> tuple[int, int, int, int]:
    """Return the key by which the later of two retained messages is found, alike at each site."""
    return message.stamp, message.key.origin, message.key.epoch, message.sequence


def _bytes(message: SiteMessage) -> int:
    return MESSAGE_OVERHEAD_BYTES + len(message.payload) + len(message.topic)


_sequence: Final = attrgetter("sequence")
