"""Topics that were seen lately: how many messages, how often, and the last one."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from math import exp
from typing import Any, Final, NamedTuple

from api.live.feed import Record
from mqlake.topics.matching import filter_matches

MAX_TOPICS: Final = 10_000
MAX_KEPT_BYTES: Final = 4_096
"""Largest payload that is remembered; of a larger one only its size is."""
RATE_SECONDS: Final = 10.0
"""Older messages count less and less in a rate."""

Name = tuple[str, str]
"""Tenant and topic name."""


class SeenRecord(NamedTuple):
    """The last record of a topic."""

    partition: int
    offset: int
    key: bytes
    payload: bytes | None
    """None: too large to be kept."""
    payload_bytes: int
    headers: Any
    timestamp_ms: int


@dataclass(slots=True)
class SeenTopic:
    """Recent figures of a topic."""

    messages: int
    per_second: float
    """As of `at`."""
    at: float
    last: SeenRecord

    def rate(self, now: float) -> float:
        """Return messages a second over the last seconds."""
        return self.per_second * exp(-max(0.0, now - self.at) / RATE_SECONDS)


class RecentTopics:
    """Bounded: the topics longest silent are forgotten; safe to use from any thread."""

    def __init__(self, max_topics: int = MAX_TOPICS) -> None:
        self._max_topics = max_topics
        self._lock = threading.Lock()
        self._topics: OrderedDict[Name, SeenTopic] = OrderedDict()
        self.since_ms = 0
        """Messages since then were seen."""
        self.forgotten = 0
        """Topics that were seen and are not remembered."""

    def begin(self, now_ms: int) -> None:
        """Forget all; messages from now on are seen."""
        with self._lock:
            self._topics.clear()
            self.since_ms = now_ms
            self.forgotten = 0

    def note(self, name: Name, record: Record) -> None:
        """Remember a message of a tenant and topic."""
        value = record.value() or b""
        at_ms = record.timestamp()[1]
        now = at_ms / 1000
        last = SeenRecord(
            record.partition() or 0,
            record.offset() or 0,
            record.key(),
            value if len(value) <= MAX_KEPT_BYTES else None,
            len(value),
            record.headers(),
            at_ms,
        )
        with self._lock:
            self.since_ms = min(self.since_ms, at_ms)
            seen = self._topics.get(name)
            if seen is None:
                self._topics[name] = SeenTopic(1, 1 / RATE_SECONDS, now, last)
                if len(self._topics) > self._max_topics:
                    self._topics.popitem(last=False)
                    self.forgotten += 1
                return
            seen.messages += 1
            seen.per_second = seen.rate(now) + 1 / RATE_SECONDS
            seen.at = max(seen.at, now)
            seen.last = last
            self._topics.move_to_end(name)

    def all(
        self, tenant: str, after: str, topic_filter: str | None = None
    ) -> list[tuple[str, SeenTopic]]:
        """Return a tenant's topics of a filter that stand behind the given one, by name."""
        with self._lock:
            found = [
                (topic_name, seen)
                for (owner, topic_name), seen in self._topics.items()
                if owner == tenant and topic_name > after
            ]
        if topic_filter is not None:
            found = [one for one in found if filter_matches(topic_filter, one[0])]
        return sorted(found, key=lambda pair: pair[0])
