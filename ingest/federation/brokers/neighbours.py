"""The neighbours that are there, and the words for them in the next packet.

A neighbour is there when its link is up and it was heard within three beacon intervals; each says
something every beacon interval. One that is not there hears nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from ingest.federation.packets import ControlPacket, Word, to_packets

BEACONS_MISSED: Final = 3


class NeighbourHost(Protocol):
    """Host of the neighbours; hears of those that come and go."""

    def neighbour_came(self, site: int, now: float) -> None:
        """Hear that one is there."""
        ...

    def neighbour_went(self, site: int, now: float) -> None:
        """Hear that one is not there any more."""
        ...


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


class Neighbourhood:
    """A site's neighbours.

    Args:
        sites: Their identifiers.
        beacon_interval: In seconds.
        host: The site.
    """

    def __init__(self, sites: Iterable[int], beacon_interval: float, host: NeighbourHost) -> None:
        self._interval = beacon_interval
        self._host = host
        self._known: dict[int, _Neighbour] = {one: _Neighbour() for one in sites}

    def __contains__(self, site: int) -> bool:
        return site in self._known

    def there(self) -> dict[int, bool]:
        """Return the neighbours, and which of them are there."""
        return {site: one.is_there for site, one in self._known.items()}

    def present(self) -> list[int]:
        """Return the neighbours that are there."""
        return [site for site, one in self._known.items() if one.is_there]

    def has_run(self, site: int, epoch: int) -> bool:
        """Tell whether that is the present run of a neighbour."""
        there = self._known.get(site)
        return there is not None and there.epoch == epoch

    # Their events.

    def hear(self, sender: int, now: float, epoch: int | None = None) -> bool:
        """Note that a neighbour has said something.

        Returns:
            False for a stranger, and for a word of a neighbour from before its restart.
        """
        neighbour = self._known.get(sender)
        if neighbour is None:
            return False
        neighbour.heard_at = now
        if epoch is not None and epoch != neighbour.epoch:
            if epoch < neighbour.epoch:
                return False
            neighbour.epoch = epoch
            self._lose(sender, now)
        if neighbour.link_is_up and not neighbour.is_there and neighbour.epoch >= 0:
            neighbour.is_there = True
            self._host.neighbour_came(sender, now)
            neighbour.owes_hello = True
        return True

    def link_is_up(self, site: int, now: float) -> None:
        neighbour = self._known.get(site)
        if neighbour is not None:
            neighbour.link_is_up = neighbour.owes_hello = True
            if now - neighbour.heard_at < BEACONS_MISSED * self._interval:
                self.hear(site, neighbour.heard_at)

    def link_is_down(self, site: int, now: float) -> None:
        neighbour = self._known.get(site)
        if neighbour is not None:
            neighbour.link_is_up = False
            self.is_gone(site, now)

    def is_gone(self, site: int, now: float) -> None:
        """Hear that a neighbour's federator is not there; its link may be."""
        neighbour = self._known.get(site)
        if neighbour is not None:
            neighbour.heard_at = float("-inf")
            self._lose(site, now)

    def become(self, sites: Iterable[int], now: float) -> None:
        """Have these neighbours from now on."""
        wanted = set(sites)
        for site in self._known.keys() - wanted:
            self._lose(site, now)
            del self._known[site]
        for site in sorted(wanted):
            self._known.setdefault(site, _Neighbour())

    def sweep(self, now: float) -> None:
        """Lose those that are silent, greet those that have heard nothing for long."""
        silent = now - BEACONS_MISSED * self._interval
        for site, neighbour in self._known.items():
            if neighbour.is_there and neighbour.heard_at < silent:
                self._lose(site, now)
            if neighbour.link_is_up and now - neighbour.said_at >= self._interval:
                neighbour.owes_hello = True

    def _lose(self, site: int, now: float) -> None:
        neighbour = self._known[site]
        neighbour.words.clear()
        if neighbour.is_there:
            neighbour.is_there = False
            self._host.neighbour_went(site, now)

    # Packets to them.

    def say(self, site: int, word: Word) -> None:
        """Tell a neighbour, if it is there."""
        there = self._known.get(site)
        if there is not None and there.is_there:
            there.words.append(word)

    def flood(self, word: Word, *, but: int | None = None) -> None:
        """Tell all neighbours that are there, but one."""
        for site, neighbour in self._known.items():
            if neighbour.is_there and site != but:
                neighbour.words.append(word)

    def packets(self, sender: int, epoch: int, now: float) -> Iterator[tuple[int, ControlPacket]]:
        """Yield packets to be sent, each with its receiver, and forget them."""
        for site, neighbour in self._known.items():
            if neighbour.link_is_up and (neighbour.words or neighbour.owes_hello):
                words, neighbour.words = neighbour.words, []
                neighbour.owes_hello = False
                neighbour.said_at = now
                for packet in to_packets(sender, epoch, words):
                    yield site, packet
