"""How many of the retained messages are a client's, or a user's: those that it has published last.

Counted in the copies of shards that this gateway has. One or two gateways have all of them, and
count exactly. Of more each has a part, and topics are spread evenly: it takes the others for alike.
Messages that were let in and are not in a copy yet are counted by themselves.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.store.retained import CLIENT, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.settings.limits import LimitSettings
    from mqlake.clock import Clock

COMING_SECONDS: Final = 5.0
"""How long a message may be on its way to a copy that is not here."""
MOST_COMING: Final = 100_000
"""Messages on their way that are counted; of more the first are taken to have come."""

_WHOSE: Final = {CLIENT: "the client", USER: "its user"}


class RetainedPublisher(NamedTuple):
    """Publisher of a message that is to be retained."""

    tenant: str
    client_id: str
    user: str | None
    """With which it has logged in."""


class _Coming(NamedTuple):
    publisher: RetainedPublisher
    size: int
    until: float


class RetainedPublishers:
    """Knows which publishers are at a limit of retained messages, or of their bytes.

    Args:
        settings: Limits of a client and of a user.
        retained: The copies that are here.
        shards: How many there are.
        clock: Says how long something has been on its way.

    Attributes:
        is_needed: Whether there is such a limit.
    """

    def __init__(
        self, settings: LimitSettings, retained: Retained, shards: int, clock: Clock
    ) -> None:
        limits = {
            CLIENT: (settings.retained_messages, settings.retained_bytes),
            USER: (settings.user_retained_messages, settings.user_retained_bytes),
        }
        self._limits = {kind: most for kind, most in limits.items() if any(most)}
        self._retained = retained
        self._shards = shards
        self._clock = clock
        # By tenant and topic, in the order in which they were let in.
        self._coming: dict[tuple[str, str], _Coming] = {}
        self._messages = Counter[tuple[str, str, str]]()
        self._bytes = Counter[tuple[str, str, str]]()
        self.is_needed = bool(self._limits)
        if self.is_needed:
            retained.count_publishers(self._limits, self._came)

    def full(self, publisher: RetainedPublisher, shard: int, topic_name: str, size: int) -> str:
        """Return whose limit leaves no room for a message; "": there is room.

        Args:
            publisher: Publisher of the message.
            shard: Shard of its topic.
            topic_name: A message of the same publisher on it is replaced.
            size: Bytes of payload and topic name.
        """
        self._forget_old()
        last, last_size = self._last(publisher.tenant, shard, topic_name)
        for kind, name in self._names(publisher):
            is_last = last.get(kind) == name
            most_messages, most_bytes = self._limits[kind]
            messages, size_of_all = self._has(kind, publisher.tenant, name)
            if not is_last and most_messages and messages + 1 > most_messages:
                return _WHOSE[kind]
            grown = size - (last_size if is_last else 0)
            if most_bytes and grown > 0 and size_of_all + grown > most_bytes:
                return _WHOSE[kind]
        return ""

    def let_in(self, publisher: RetainedPublisher, topic_name: str, size: int) -> None:
        """Count a message that is on its way to the copies."""
        key = publisher.tenant, topic_name
        self._came(*key)
        if len(self._coming) >= MOST_COMING:
            self._came(*next(iter(self._coming)))
        until = self._clock.monotonic() + COMING_SECONDS
        self._coming[key] = _Coming(publisher, size, until)
        self._add(self._coming[key], 1)

    def _came(self, tenant: str, topic_name: str) -> None:
        """Count a message no more by itself: a copy has it, or a later one."""
        coming = self._coming.pop((tenant, topic_name), None)
        if coming is not None:
            self._add(coming, -1)

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._coming:
            key = next(iter(self._coming))
            if self._coming[key].until > now:
                return
            self._came(*key)

    def _add(self, coming: _Coming, sign: int) -> None:
        for kind, name in self._names(coming.publisher):
            key = coming.publisher.tenant, kind, name
            self._messages[key] += sign
            self._bytes[key] += sign * coming.size
            if not self._messages[key]:
                del self._messages[key], self._bytes[key]

    def _has(self, kind: str, tenant: str, name: str) -> tuple[float, float]:
        """Return how many messages a client or user has, and their bytes; of all shards."""
        messages, size, shards = self._retained.published(kind, tenant, name)
        scale = self._shards / shards if shards else 0.0
        key = tenant, kind, name
        return messages * scale + self._messages[key], size * scale + self._bytes[key]

    def _last(self, tenant: str, shard: int, topic_name: str) -> tuple[dict[str, str], int]:
        """Return publishers of a topic's last message, by kind, and its size."""
        coming = self._coming.get((tenant, topic_name))
        if coming is not None:
            return dict(self._names(coming.publisher)), coming.size
        held = self._retained.holder(shard, tenant, topic_name)
        if held is None:
            return {}, 0
        return {CLIENT: held.client_id, USER: held.username}, held.size

    def _names(self, publisher: RetainedPublisher) -> Iterator[tuple[str, str]]:
        for kind in self._limits:
            name = publisher.client_id if kind == CLIENT else publisher.user
            if name is not None:
                yield kind, name
