"""Clients that have not logged in: what they may take of a process, each address its share.

A stranger pays nothing for a connection, for a handshake that does not end and for a packet that is
not whole. When all of them together take too much, the oldest of the address that has most gives
way to others, so that whoever comes is accepted, and whoever logs in quickly gets in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final, Protocol

from mqlake.security.networks import network_of

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bound for all of them: 8,192 silent connections, 1,024 TLS handshakes or 910 of the largest
packets."""

PLACE_BYTES: Final = 8 * 1024
"""Bytes of a connection that has sent nothing: 3 KiB when measured, without the kernel's."""

HANDSHAKE_BYTES: Final = 64 * 1024
"""The same in a TLS handshake: 46 KiB when measured."""

MOST_USELESS: Final = 1_024
"""Rows of an order beyond two for each network; then it is made again."""

REASON: Final = "too many clients wait to log in, most of them of its address"


class Arriving(Protocol):
    """A connection on its way, compared by identity."""

    def give_way(self, reason: str) -> None:
        """Close at once, and forget what was received."""


class Arrivals:
    """All connections of a process whose clients have not logged in.

    Args:
        most_bytes: They may take.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._places: dict[Arriving, _Place] = {}
        self._listeners: dict[str, _Queues] = {}
        self._bytes = 0
        self._entered = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def bytes(self) -> int:
        """How many they take, about."""
        return self._bytes

    def enter(
        self, one: Arriving, address: str, listener: str, place_bytes: int = PLACE_BYTES
    ) -> None:
        """Take a connection in; others may have to give way, or this one at once.

        Args:
            one: That connection.
            address: The peer's, without its port; empty where there is none.
            listener: By which it came; an address has a share of its own at each.
            place_bytes: What it takes before it has sent anything.
        """
        queues = self._listeners.get(listener)
        if queues is None:
            queues = self._listeners[listener] = _Queues()
        self._entered += 1
        self._places[one] = _Place(queues, network_of(address), self._entered, place_bytes)
        self._grow(one, place_bytes)

    def hold(self, one: Arriving, count: int) -> None:
        """Note how many bytes of its packets are kept; they stay noted when a packet was read.

        A packet that was read waits for its answer. One that is not here any more does not count.
        """
        place = self._places.get(one)
        if place is not None and count > place.held:
            more, place.held = count - place.held, count
            self._grow(one, more)

    def leave(self, one: Arriving) -> None:
        """Forget a connection that is gone, or whose client has logged in."""
        place = self._places.pop(one, None)
        if place is not None:
            self._bytes -= place.bytes
            place.queues.remove(one, place)

    def end_one(self, newcomer: Arriving | None = None, listener: str | None = None) -> bool:
        """Let one give way, as there are too many connections; tell whether there was one.

        Args:
            newcomer: None gives way when it would be its turn.
            listener: Listener that it has to belong to; None: any.
        """
        among = [queues for name, queues in self._listeners.items() if listener in (None, name)]
        one = min(filter(None, (queues.first() for queues in among)), default=None)
        if one is None or one[2] is newcomer:
            return False
        self.leave(one[2])
        one[2].give_way(REASON)
        return True

    def _grow(self, one: Arriving, more: int) -> None:
        place = self._places[one]
        place.queues.add(one, place, more)
        self._bytes += more
        while self._bytes > self._most_bytes:
            self.end_one()


class _Queues:
    """The connections of one listener, by network.

    Its order is a heap of `(-bytes, number of its oldest, network)`. One row of each network
    counts: it is true, or comes too early and is put right when it is first, where others are
    dropped.
    """

    __slots__ = ("_networks", "_order")

    def __init__(self) -> None:
        self._networks: dict[str, _Network] = {}
        self._order: list[tuple[int, int, str]] = []

    def add(self, one: Arriving, place: _Place, more: int) -> None:
        """Note a connection, or that it takes more."""
        network = self._networks.get(place.network)
        if network is None:
            network = self._networks[place.network] = _Network()
        network.ones[one] = place.number
        network.bytes += more
        heapq.heappush(self._order, network.rank(place.network))
        if len(self._order) > 2 * len(self._networks) + MOST_USELESS:
            self._order = [network.rank(name) for name, network in self._networks.items()]
            heapq.heapify(self._order)

    def remove(self, one: Arriving, place: _Place) -> None:
        network = self._networks[place.network]
        del network.ones[one]
        network.bytes -= place.bytes
        if not network.ones:
            del self._networks[place.network]

    def first(self) -> tuple[int, int, Arriving] | None:
        """Return the oldest of the network that takes most, behind its rank; None: there is none.

        Of networks that take the same it is the one whose oldest is the oldest of all.
        """
        order = self._order
        while order:
            row = order[0]
            network = self._networks.get(row[2])
            if network is None or network.row != row:
                heapq.heappop(order)
            elif network.rank(row[2]) == row:
                return row[0], row[1], next(iter(network.ones))
            else:
                heapq.heapreplace(order, network.row)
        return None


class _Network:
    __slots__ = ("bytes", "ones", "row")

    def __init__(self) -> None:
        # Oldest first, with its number. The first key of a dict is looked for from where it was.
        self.ones: OrderedDict[Arriving, int] = OrderedDict()
        self.bytes = 0
        self.row = (0, 0, "")

    def rank(self, name: str) -> tuple[int, int, str]:
        """Return the row that counts from now on."""
        self.row = (-self.bytes, next(iter(self.ones.values())), name)
        return self.row


class _Place:
    __slots__ = ("held", "network", "number", "place_bytes", "queues")

    def __init__(self, queues: _Queues, network: str, number: int, place_bytes: int) -> None:
        self.queues = queues
        self.network = network
        self.number = number
        self.place_bytes = place_bytes
        self.held = 0

    @property
    def bytes(self) -> int:
        return self.place_bytes + self.held
