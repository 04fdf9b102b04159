"""Chooses which neighbour sends the messages of an origin whole, and which only offers them.

On redundant paths each message would come once for each path. A neighbour whose copy comes late
hears that it is *spare* for that origin: from then on it offers messages, by their positions alone,
and gets its acknowledgement when the message has come whole from another. When that does not come
in time, or cannot because a neighbour is away, the spare one is asked to send whole again,
beginning with unacknowledged messages that it has offered: so each path keeps its order. One whose
offers are there before the messages, time after time, is the faster path: it is asked to send
whole, too. This is the eager and lazy push of Plumtree (Leitão, Pereira and Rodrigues, 2007) and
its optimization of the tree, with an offset behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ingest.federation.sites.streams.streams import StreamKey

PATIENCE_SECONDS: Final = 0.5
"""How long an offered message may take by the other path before it is asked for."""
STEADY_SECONDS: Final = 60.0
"""How long a neighbour that had to be asked stays no spare: other paths may lack filters."""
EARLIER: Final = 20
"""Offers in a row that were there before the message: the path of the offers is the faster one."""

Number = tuple[StreamKey, int]


@dataclass(slots=True)
class _Offer:
    neighbour: int
    acknowledge: Callable[[], None]
    until: float


class Bodies:
    """Origins that each neighbour of a site sends whole, and the messages that they offer.

    Times are monotonic seconds. Nothing outlives a connection: a new one sends all messages whole.
    """

    def __init__(self) -> None:
        self.asked = 0
        """Times that a spare neighbour had to be asked to send whole again."""
        self._spare: set[tuple[int, int]] = set()
        """(neighbour, origin)"""
        self._first: dict[int, int] = {}
        """Origin -> the neighbour that has brought its last message first."""
        self._steady: dict[tuple[int, int], float] = {}
        self._offers: dict[Number, list[_Offer]] = {}
        self._earlier: dict[tuple[int, int], int] = {}
        """Offers in a row that came before the message."""
        self._chosen_at: dict[int, float] = {}
        """When a faster path was chosen for an origin."""

    @property
    def waiting(self) -> int:
        """Messages that are offered and have not come."""
        return len(self._offers)

    def close(self, neighbour: int) -> set[int]:
        """Hear that one is away; return the neighbours that are to send all messages whole."""
        self._first = {origin: one for origin, one in self._first.items() if one != neighbour}
        told = {one for one, _ in self._spare if one != neighbour}
        self._spare.clear()
        self._earlier.clear()
        self._drop(lambda offer, _: offer.neighbour == neighbour or offer.neighbour in told)
        return told

    def brought(self, neighbour: int, origin: int) -> None:
        """Hear that a new message of an origin came whole."""
        self._first[origin] = neighbour

    def repeated(self, neighbour: int, origin: int, now: float) -> bool:
        """Hear that a message came that was had; return whether to tell its sender to be spare.

        It has to be another neighbour that brings this origin's: a message comes again after a
        connection has ended, too.
        """
        way = (neighbour, origin)
        first = self._first.get(origin, neighbour)
        if first == neighbour or way in self._spare or self._steady.get(way, 0.0) > now:
            return False
        if (first, origin) in self._spare:
            return False
        self._spare.add(way)
        return True

    def offer(
        self, neighbour: int, number: Number, acknowledge: Callable[[], None], now: float
    ) -> None:
        """Hear of a message that a neighbour has and this site has not."""
        offer = _Offer(neighbour, acknowledge, now + PATIENCE_SECONDS)
        self._offers.setdefault(number, []).append(offer)
        way = (neighbour, number[0].origin)
        self._earlier[way] = self._earlier.get(way, 0) + 1

    def offered_late(self, neighbour: int, origin: int) -> None:
        """Hear of the offer of a message that this site has, or is about to have."""
        self._earlier[neighbour, origin] = 0

    def is_faster(self, neighbour: int, origin: int, now: float) -> bool:
        """Tell, once, that a spare neighbour is to send whole, as it is faster than the other.

        The other one's copies come late then, so it becomes spare. Paths that take the same time
        are not changed again and again: once in a while for each origin.
        """
        way = (neighbour, origin)
        chosen_at = self._chosen_at.get(origin, -STEADY_SECONDS)
        if self._earlier.get(way, 0) < EARLIER or now < chosen_at + STEADY_SECONDS:
            return False
        self._chosen_at[origin] = now
        self._earlier[way] = 0
        self._spare.discard(way)
        self._drop(lambda offer, number: (offer.neighbour, number[0].origin) == way)
        return True

    def had(self, number: Number) -> None:
        """Acknowledge an offered message: the log has it."""
        for one in self._offers.pop(number, ()):
            one.acknowledge()

    def overdue(self, now: float) -> set[tuple[int, int]]:
        """Return (neighbour, origin) of those that are to send whole again: others are late."""
        late = {
            (offers[0].neighbour, number[0].origin)
            for number, offers in self._offers.items()
            if offers[0].until <= now
        }
        self._spare -= late
        self._steady.update(dict.fromkeys(late, now + STEADY_SECONDS))
        if late:
            self._drop(lambda offer, number: (offer.neighbour, number[0].origin) in late)
        self.asked += len(late)
        return late

    def _drop(self, is_over: Callable[[_Offer, Number], bool]) -> None:
        """Forget offers: these messages come whole, or again on the next connection."""
        for number, offers in list(self._offers.items()):
            left = [one for one in offers if not is_over(one, number)]
            if left:
                self._offers[number] = left
            else:
                del self._offers[number]
