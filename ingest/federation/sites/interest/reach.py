"""How far a site's interest is known: a subscription may be acknowledged when all others know.

Each number of a site's interest (`interest.Entry.version`) is answered by each site that hears of
it. The neighbour from whom it was heard first is *owed* the answer until all have answered who
heard of it from here; any other that tells of it is answered at once, so none waits in circles.
That is the diffusing computation of Dijkstra and Scholten (1980). A neighbour whose link ends is
not waited for: it cannot be reached, and hears of it when it is back.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ingest.federation.sites.interest.interest import News

OURSELVES: Final = -1
"""In place of a neighbour: the subscribers of this site wait for it."""


class Debt(NamedTuple):
    """An answer that a neighbour gets when all behind this site know."""

    asker: int
    """A neighbour, or `OURSELVES`."""
    site: int
    """That wants."""
    version: int
    """Version of its filters."""


class SiteReach:
    """Answers that one site waits for. Nothing outlives a connection."""

    def __init__(self) -> None:
        self._told: dict[int, dict[int, int]] = {}
        """By neighbour and site, the number that was sent to it last."""
        self._known: dict[int, dict[int, int]] = {}
        """By neighbour and site, the number up to which all behind it know."""
        self._heard: list[Debt] = []
        """Numbers that neighbours have not got yet."""
        self._debts: list[Debt] = []

    def open(self, neighbour: int) -> None:
        """Hear that there is a new connection."""
        self.close(neighbour)
        self._told[neighbour], self._known[neighbour] = {}, {}

    def close(self, neighbour: int) -> None:
        """Hear that a neighbour is away."""
        self._told.pop(neighbour, None)
        self._known.pop(neighbour, None)
        self._heard = [one for one in self._heard if one.asker != neighbour]
        self._debts = [one for one in self._debts if one.asker != neighbour]

    def take(self, neighbour: int, news: News, version_of: Callable[[int], int]) -> dict[int, int]:
        """Hear a neighbour's news; return the numbers to answer at once, by site.

        Args:
            neighbour: It is owed an answer for the rest.
            news: Not taken up yet.
            version_of: Returns the number that is known of a site's interest.
        """
        known = {}
        for site, entry in news.items():
            if entry is None:
                continue
            if entry.version > version_of(site):
                self.owe(neighbour, site, entry.version)
            else:
                known[site] = entry.version
        return known

    @property
    def is_owing(self) -> bool:
        """Tell whether something has come that neighbours have not got."""
        return bool(self._heard)

    def owe(self, asker: int, site: int, version: int) -> None:
        """Hear of a number that is new here; it counts when all have got it."""
        self._heard.append(Debt(asker, site, version))

    def tell(self, neighbour: int, news: News) -> None:
        """Hear the news that a neighbour gets."""
        told = self._told.setdefault(neighbour, {})
        told.update({site: entry.version for site, entry in news.items() if entry is not None})

    def all_are_told(self) -> None:
        """Hear that all neighbours have got all news."""
        self._debts += self._heard
        self._heard.clear()

    def hear(self, neighbour: int, known: Mapping[int, int]) -> None:
        """Hear up to which number of which site all behind a neighbour know."""
        before = self._known.setdefault(neighbour, {})
        before.update({site: max(one, before.get(site, 0)) for site, one in known.items()})

    def settled(self) -> list[Debt]:
        """Return, once, the debts that are to be paid now."""
        paid = [one for one in self._debts if not self._is_awaited(one)]
        if paid:
            self._debts = [one for one in self._debts if one not in paid]
        return paid

    def _is_awaited(self, debt: Debt) -> bool:
        return any(
            told.get(debt.site, 0) >= debt.version > self._known[neighbour].get(debt.site, 0)
            for neighbour, told in self._told.items()
            if neighbour != debt.asker
        )
