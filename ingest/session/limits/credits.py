"""Credits of a gateway: publishers pay one for each message.

Pure, in seconds of the caller's clock. `CreditRate` says how many flow each second; a client that
has none left gets `GRANT` at once while there are some, else in turn: all have the same part,
whatever they send. A client that has had none for longer than such a turn takes publishes less than
its part: it does not wait, and is first of all when there are none left.

While all is well more flow than a gateway can use: then they only see to it that no turn of the
event loop has more than `BURST_SECONDS` of them, as they flow when `take` is called and at no other
time. The idea is that of Breakwater (Cho et al., OSDI 2020), with the level of overload as its
signal.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Client = TypeVar("Client")

GRANT: Final = 32
"""Credits of one turn."""
BURST_SECONDS: Final = 0.005
"""Credits that flow in so long are the most at once."""
MODEST_SECONDS: Final = 0.25
"""A client whose turn's credits last longer publishes little: fewer than 128 messages a second."""
MOST_PER_SECOND: Final = 200_000.0
"""While all is well; about twice as many as a gateway can use."""
LEAST_PER_SECOND: Final = 5_000.0
"""Below `NOTHING_AT`; too many other things to do are not helped by fewer messages."""

BEGINS_AT: Final = 3.0
"""Level from which less is given with each step."""
NOTHING_AT: Final = 8.0
"""Level from which nothing is given."""
LESS: Final = 0.06
MORE: Final = 1.1


class CreditRate:
    """How many messages a second all clients of a gateway together may publish.

    Attributes:
        per_second: Credits a second.
        is_stopped: None at all, for the time being.
    """

    def __init__(self) -> None:
        self.per_second = MOST_PER_SECOND
        self.is_stopped = False

    @property
    def is_limited(self) -> bool:
        """Tell whether there are fewer than while all is well."""
        return self.is_stopped or self.per_second < MOST_PER_SECOND

    def step(self, level: float, published: float) -> None:
        """Take the load since the last step, a tenth of a second ago or so.

        Args:
            level: Level of an overload that fewer messages would help.
            published: Messages a second that clients publish at the moment.
        """
        self.is_stopped = level >= NOTHING_AT
        if self.is_stopped:
            return  # the rate before is about right when it goes on
        rate = self.per_second
        if level < BEGINS_AT:
            self.per_second = min(rate * MORE, MOST_PER_SECOND)
            return
        if rate == MOST_PER_SECOND:  # with which rate it begins is found by trying
            rate = min(rate, 2 * published)
        self.per_second = max(rate * (1 - LESS * (level - BEGINS_AT + 1)), LEAST_PER_SECOND)


class Credits(Generic[Client]):
    """Gives credits to clients in turn.

    Args:
        rate: How many there are.

    Attributes:
        modest_at: When a client that publishes little last asked.
    """

    def __init__(self, rate: CreditRate) -> None:
        self.modest_at = -inf
        self._rate = rate
        self._flowed = rate.per_second * BURST_SECONDS
        self._at = 0.0
        self._turn_seconds = 0.0
        self._modest: OrderedDict[Client, float] = OrderedDict()
        self._waiting: OrderedDict[Client, float] = OrderedDict()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._modest) + len(self._waiting)

    @property
    def is_settled(self) -> bool:
        """Tell whether no client waits, and as many are there as can be."""
        return not len(self) and self._flowed >= self._room

    def ask(self, client: Client, last: float, now: float) -> int:
        """Return how many credits a client gets now; with 0 it waits until `take` names it.

        Args:
            client: Has none left.
            last: When it was given some before; 0: never.
            now: On the same clock.
        """
        if last and now - last > MODEST_SECONDS:
            self.modest_at = now
        is_modest = bool(self._waiting) and now - last > self._turn(now)
        if not self._rate.is_stopped and (
            is_modest or (not self._waiting and self._flowed >= GRANT)
        ):
            self._flowed -= GRANT
            return GRANT
        # Without a turn to compare with all would be.
        (self._modest if is_modest and self._turn_seconds else self._waiting)[client] = now
        return 0

    def leave(self, client: Client) -> None:
        """Let a client wait no more."""
        self._modest.pop(client, None)
        self._waiting.pop(client, None)

    def take(self, now: float) -> Iterator[Client]:
        """Yield clients that wait no more: each has `GRANT`, the longest wait comes first.

        Before these come clients that publish less than their part.
        """
        self._flow(now)
        for queue in (self._modest, self._waiting):
            for _ in range(len(queue)):  # one that waits again meanwhile has had its turn
                if self._rate.is_stopped or self._flowed < GRANT:
                    return
                client, asked_at = queue.popitem(last=False)
                if queue is self._waiting:
                    self._turn_seconds = now - asked_at
                self._flowed -= GRANT
                yield client

    def _turn(self, now: float) -> float:
        """Return how long a client waits for its turn."""
        asked_at = next(iter(self._waiting.values()))
        return max(self._turn_seconds, now - asked_at)

    @property
    def _room(self) -> float:
        return max(self._rate.per_second * BURST_SECONDS, GRANT)  # never less than one turn

    def _flow(self, now: float) -> None:
        flowed = max(now - self._at, 0.0) * self._rate.per_second
        self._flowed = min(self._flowed + flowed, self._room)
        self._at = max(now, self._at)
