"""Filters that local subscribers want, and the few that tell other sites of them.

A filter that another covers is left out; of more than `most` those of the same shape become one. A
filter that leaves this *summary* is wanted for a while longer when others overlap it, until the
meshes of these stand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingest.federation.envelope import SiteMessage
from ingest.federation.filters import covers, meet, summarise, uncovered
from mqlake.topics.matching import TopicFilterTrie

SLACK_SECONDS: Final = 0.05
"""Ages are in whole milliseconds: a message published about when interest began is wanted."""


@dataclass(slots=True)
class LocalInterest:
    """Local subscribers of a filter, in monotonic seconds."""

    until: float
    since: float


class Interests:
    """The filters of one site's subscribers.

    Args:
        allowed: Filters of messages that they may get from other sites.
        most: Filters of the summary.
        linger_seconds: How long a filter that left the summary is wanted.
        clock_skew: By what part of itself the age of a message may be given too high.
    """

    def __init__(
        self, allowed: Iterable[str], *, most: int, linger_seconds: float, clock_skew: float
    ) -> None:
        self.known: dict[str, LocalInterest] = {}
        """Filter -> its subscribers."""
        self.summary: frozenset[str] = frozenset()
        self._allowed = uncovered(allowed)
        self._most = most
        self._linger_seconds = linger_seconds
        self._clock_skew = clock_skew
        self._trie: TopicFilterTrie[str] = TopicFilterTrie()
        self._lingering: dict[str, float] = {}

    def hear(self, topic_filter: str, *, until: float, since: float, now: float) -> list[str]:
        """Hear of subscribers; return the filters that are new in the summary."""
        is_new = False
        for allowed in self._allowed:
            common = meet(allowed, topic_filter)
            if common is None or common.startswith("$"):
                continue
            if common not in self.known:
                self._trie.insert(common, common)
                is_new = is_new or not any(covers(one, common) for one in self.summary)
            known = self.known.setdefault(common, LocalInterest(until, since))
            known.until = max(until, known.until)
        return self._summarise(now) if is_new else []

    def expire(self, now: float) -> list[str]:
        """Forget those that were not heard of; return the filters that are new in the summary."""
        ended = [one for one, known in self.known.items() if known.until <= now]
        for one in ended:
            del self.known[one]
            self._trie.remove(one, one)
        return self._summarise(now) if ended and self._is_too_wide() else []

    def lingered(self, now: float) -> list[str]:
        """Return the filters that are wanted no longer."""
        over = [one for one, until in self._lingering.items() if until <= now]
        for one in over:
            del self._lingering[one]
        return over

    def since(self, topic_filter: str) -> float:
        """Return since when there are subscribers for filters that one of the summary covers."""
        return min(known.since for one, known in self.known.items() if covers(topic_filter, one))

    def have(self, topic: str) -> bool:
        """Tell whether there are subscribers of a topic."""
        return bool(self._trie.match(topic))

    def had(self, message: SiteMessage) -> bool:
        """Tell whether there were any when a message was published; a retained one never ages."""
        latest = message.since + SLACK_SECONDS + self._clock_skew * message.age_ms / 1000
        return message.retain or any(
            latest >= self.known[one].since for one in self._trie.match(message.topic)
        )

    def _summarise(self, now: float) -> list[str]:
        summary = summarise(self.known.keys(), self._most)
        for one in self.summary - summary:
            lingers = any(meet(one, other) is not None for other in summary)
            self._lingering[one] = now + (self._linger_seconds if lingers else 0)
        added = sorted(summary - self.summary)
        for one in added:
            self._lingering.pop(one, None)
        self.summary = frozenset(summary)
        return added

    def _is_too_wide(self) -> bool:
        """Tell whether the summary could be narrower; not each time that one filter less counts."""
        if len(self.known) <= self._most // 2:
            return True
        return not all(
            one in self.known or any(covers(one, other) for other in self.known)
            for one in self.summary
        )
