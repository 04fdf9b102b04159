"""Messages that a site has had of each chain: duplicates out, order kept, holes found.

A message names the one before it in its chain (`after`), so a site knows that something is missing
as soon as the next message is there; no origin has to number its messages per neighbour, and a
site that wants one topic of thousands has no holes from the others.

    mark 4          waiting 9 (after 7), 12 (after 9)
    ──┬──────┬──────┬──────┬──────┬───►  sequence of the origin
      4      7 ?    9      12
             └ hole: asked for at a neighbour; 9 and 12 are passed on, not delivered

`Chains` is exact: each chain has a high-water mark and the messages that wait above its hole.
`RecentIds` is the published protocol's: an LRU of identifiers, messages delivered as they come.
Both are `Marks`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ingest.federation.brokers.events import SiteLimits
from ingest.federation.envelope import ChainKey, SiteMessage

UNKNOWN: Final = -1
"""The mark of a chain of which it is not known yet where it begins for this site."""

NOT_SEEN: Final[list[SiteMessage]] = []


class Hole(NamedTuple):
    """Something of a chain that did not come."""

    key: ChainKey
    after: int
    """The last sequence that the site has had; 0: none."""
    upto: int
    """The last sequence that may be missing."""
    source: int
    """The neighbour from which the message above the hole came."""
    times_asked: int


@dataclass(slots=True)
class _Chain:
    mark: int = UNKNOWN
    waiting: dict[int, SiteMessage] = field(default_factory=dict)
    # Invariant: no key of `waiting` is at or below `mark`; empty unless there is a hole.
    source: int = 0
    hole_since: float = 0.0
    asked_at: float = 0.0
    times_asked: int = 0


class Marks(Protocol):
    """Marks of the messages that a site has had."""

    changed: dict[ChainKey, int]
    """Marks that have moved since this was emptied."""

    def load(self, marks: Iterable[tuple[ChainKey, int]]) -> None:
        """Take the marks of a run before."""
        ...

    def has_seen(self, message: SiteMessage) -> bool:
        """Tell whether it is a duplicate."""
        ...

    def admit(
        self, message: SiteMessage, sender: int, now: float, wanted_since: float
    ) -> list[SiteMessage]:
        """Take a message that is none, return those that may be delivered now, in order."""
        ...

    def holes(self, now: float) -> Iterator[Hole]:
        """Yield the holes to be asked for now."""
        ...

    def give_up(self, now: float) -> list[SiteMessage]:
        """Return messages that waited in vain for longer than they may, in order."""
        ...

    def hole(self, key: ChainKey) -> Hole | None:
        """Return the hole of a chain, if it has one."""
        ...

    def hurry(self, key: ChainKey) -> None:
        """Let the hole of a chain be asked for again at once."""
        ...

    def lack(self, key: ChainKey, upto: int) -> list[SiteMessage]:
        """Hear that no site can fill a hole; return messages that need not wait any longer."""
        ...

    def behind(self, key: ChainKey, sequence: int) -> int | None:
        """Return the mark if the chain is known to go on to `sequence` and does not; else None."""
        ...


class Chains:
    """Marks that keep each chain's order.

    Args:
        most: Chains remembered; when there are more, the one that was quiet longest is forgotten
            (`forgotten` counts them).
        ask_seconds: How long a hole is left alone: the missing message may be on another path.
        again_seconds: How long until it is asked for again, of another neighbour.
        patience_seconds: How long messages above a hole wait in the end.
        most_waiting: Messages that may wait over all chains.
    """

    def __init__(
        self,
        most: int,
        *,
        ask_seconds: float,
        again_seconds: float,
        patience_seconds: float,
        most_waiting: int,
    ) -> None:
        self._most = most
        self._ask = ask_seconds
        self._again = again_seconds
        self._patience = patience_seconds
        self._most_waiting = most_waiting
        self._chains: OrderedDict[ChainKey, _Chain] = OrderedDict()
        self._with_holes: dict[ChainKey, _Chain] = {}
        self._waiting = 0
        self.changed: dict[ChainKey, int] = {}
        self.forgotten = 0
        self.given_up = 0
        """Holes that were never filled."""

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def waiting(self) -> int:
        """Messages above holes."""
        return self._waiting

    def load(self, marks: Iterable[tuple[ChainKey, int]]) -> None:
        """Take the marks of a run before."""
        for key, mark in marks:
            self._chains[key] = _Chain(mark)

    def has_seen(self, message: SiteMessage) -> bool:
        chain = self._chains.get(message.key)
        if chain is None:
            return False
        return message.sequence <= chain.mark or message.sequence in chain.waiting

    def behind(self, key: ChainKey, sequence: int) -> int | None:
        chain = self._chains.get(key)
        if chain is None:
            return UNKNOWN
        if sequence <= chain.mark or chain.waiting:  # a hole is asked for anyway
            return None
        return max(chain.mark, 0)

    def admit(
        self, message: SiteMessage, sender: int, now: float, wanted_since: float
    ) -> list[SiteMessage]:
        """Take a message that is no duplicate, return those that may be delivered now, in order.

        Args:
            message: It.
            sender: The neighbour that sent it.
            now: Monotonic seconds.
            wanted_since: Messages published before are none of this site's business: a chain
                that is not known begins there.
        """
        key = message.key
        chain = self._chains.get(key)
        if chain is None:
            self._make_room()
            chain = self._chains[key] = _Chain()
        else:
            self._chains.move_to_end(key)
        if chain.mark == UNKNOWN:
            before = message.since - message.gap_ms / 1000
            if message.after == 0 or before < wanted_since:
                chain.mark = message.after
        if message.after <= chain.mark and not chain.waiting:
            chain.mark = self.changed[key] = message.sequence
            return [message]
        chain.waiting[message.sequence] = message
        self._waiting += 1
        if key not in self._with_holes:
            self._with_holes[key] = chain
            self._leave_alone(chain, now)
            chain.source = sender
        ready = self._close(key, chain, now)
        if self._waiting > self._most_waiting:
            ready += self._release(next(iter(self._with_holes)), given_up=True)
        return ready

    def holes(self, now: float) -> Iterator[Hole]:
        for key, chain in self._with_holes.items():
            if now - chain.asked_at >= self._again:
                chain.asked_at = now
                yield self._hole(key, chain)
                chain.times_asked += 1

    def hole(self, key: ChainKey) -> Hole | None:
        chain = self._with_holes.get(key)
        return None if chain is None else self._hole(key, chain)

    def hurry(self, key: ChainKey) -> None:
        self._with_holes[key].asked_at = float("-inf")

    def give_up(self, now: float) -> list[SiteMessage]:
        due = [
            key
            for key, chain in self._with_holes.items()
            if now - chain.hole_since >= self._patience
        ]
        return [one for key in due for one in self._release(key, given_up=True)]

    def lack(self, key: ChainKey, upto: int) -> list[SiteMessage]:
        """Hear that no site has anything for a hole.

        A chain whose beginning is not known begins above it; a hole in a known chain is waited for,
        as a site may come that has it.
        """
        chain = self._with_holes.get(key)
        if chain is None or chain.mark != UNKNOWN or self._hole(key, chain).upto != upto:
            return []
        return self._release(key, given_up=False)

    def _leave_alone(self, chain: _Chain, now: float) -> None:
        chain.hole_since = now
        chain.asked_at = now + self._ask - self._again
        chain.times_asked = 0

    def _hole(self, key: ChainKey, chain: _Chain) -> Hole:
        above = chain.waiting[min(chain.waiting)]
        return Hole(key, max(chain.mark, 0), above.after, chain.source, chain.times_asked)

    def _close(self, key: ChainKey, chain: _Chain, now: float) -> list[SiteMessage]:
        """Return the messages that stand on the mark without a hole."""
        ready: list[SiteMessage] = []
        for sequence in sorted(chain.waiting):
            message = chain.waiting[sequence]
            if message.after > chain.mark:
                break
            chain.mark = sequence
            ready.append(chain.waiting.pop(sequence))
        if ready:
            self._waiting -= len(ready)
            self.changed[key] = chain.mark
            self._leave_alone(chain, now)
            if not chain.waiting:
                del self._with_holes[key]
        return ready

    def _release(self, key: ChainKey, *, given_up: bool) -> list[SiteMessage]:
        """Deliver waiting messages and go on above them."""
        chain = self._with_holes.pop(key)
        ready = [chain.waiting[sequence] for sequence in sorted(chain.waiting)]
        chain.waiting.clear()
        self._waiting -= len(ready)
        self.given_up += given_up
        chain.mark = self.changed[key] = ready[-1].sequence
        return ready

    def _make_room(self) -> None:
        """Forget the chain that was quiet longest; those that wait for something are not quiet."""
        while len(self._chains) >= self._most and len(self._with_holes) < len(self._chains):
            key, chain = next(iter(self._chains.items()))
            if chain.waiting:
                self._chains.move_to_end(key)
            else:
                del self._chains[key]
                self.forgotten += 1


class RecentIds:
    """The published protocol's duplicate filter: the last identifiers, no order.

    Args:
        most: `cache_size`: at least the rate of messages times the longest time that a copy may be
            on its way. `overflowed` counts those forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[int, int, int], None] = OrderedDict()
        self.changed: dict[ChainKey, int] = {}
        self.overflowed = 0

    def __len__(self) -> int:
        return len(self._seen)

    def load(self, marks: Iterable[tuple[ChainKey, int]]) -> None:
        """Identifiers are not kept beyond a run."""

    def has_seen(self, message: SiteMessage) -> bool:
        return (message.key.origin, message.key.epoch, message.sequence) in self._seen

    def admit(
        self, message: SiteMessage, sender: int, now: float, wanted_since: float
    ) -> list[SiteMessage]:
        self._seen[message.key.origin, message.key.epoch, message.sequence] = None
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
            self.overflowed += 1
        return [message]

    def holes(self, now: float) -> Iterator[Hole]:
        return iter(())

    def give_up(self, now: float) -> list[SiteMessage]:
        return NOT_SEEN

    def hole(self, key: ChainKey) -> Hole | None:
        return None

    def hurry(self, key: ChainKey) -> None:
        """Nothing is asked for."""

    def lack(self, key: ChainKey, upto: int) -> list[SiteMessage]:
        return NOT_SEEN

    def behind(self, key: ChainKey, sequence: int) -> int | None:
        return None


def new_marks(limits: SiteLimits) -> Chains | RecentIds:
    """Return the marks that keep order and find duplicates, as the limits say."""
    if not limits.keep_order:
        return RecentIds(limits.cache_size)
    return Chains(
        limits.most_chains,
        ask_seconds=limits.ask_seconds,
        again_seconds=limits.again_seconds,
        patience_seconds=limits.patience_seconds,
        most_waiting=limits.most_waiting,
    )
