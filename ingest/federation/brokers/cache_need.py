"""How many identifiers of messages are to be remembered, as measured: rate times longest outage.

Without order, a copy that comes when its identifier is forgotten is delivered again. The copies
that come latest are those that waited for a neighbour to be back: so the longest time that one was
away, three beacons at least, is how long identifiers have to last, at the highest rate there was.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final

RATE_SECONDS: Final = 10.0
"""Over which messages are counted."""


class CacheNeed:
    """The value that `cache_size` should have.

    Args:
        least_seconds: The shortest outage that is allowed for.
    """

    def __init__(self, least_seconds: float) -> None:
        self.rate = 0.0
        """The highest one, in messages a second."""
        self.outage_seconds = least_seconds
        """The longest one."""
        self._counted: tuple[float, int] | None = None
        self._away_since: dict[int, float] = {}

    @property
    def identifiers(self) -> int:
        """How many are to be remembered."""
        return ceil(self.rate * self.outage_seconds)

    def look(self, messages: int, there: Mapping[int, bool], now: float) -> None:
        """Look at the site as it is; each second or so.

        Args:
            messages: That it has had so far, copies not counted.
            there: Its neighbours, and which of them are there.
            now: The time.
        """
        if self._counted is None:
            self._counted = now, messages
        since, counted = self._counted
        if now - since >= RATE_SECONDS:
            self.rate = max(self.rate, (messages - counted) / (now - since))
            self._counted = now, messages
        away = {site for site, is_there in there.items() if not is_there}
        self._away_since = {site: self._away_since.get(site, now) for site in away}
        for at in self._away_since.values():
            self.outage_seconds = max(self.outage_seconds, now - at)
