"""Places of the clients that have one of their own.

*Gathered* they are by streaming, as Linear Deterministic Greedy does it (Stanton, Kliot, 2012),
several times over (Nishimura, Ugander, 2013): one client after the other goes to the node that
draws it most, times the rest of that node's bound. A circle draws a client by its rate and
the part of the others that is there; so it gathers, though no single move may save a copy. A client
placed already moves only for copies that this saves, and few at a time. *Settled* they are when
nodes or bounds have changed: only those move that have to.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingest.balancer.talks import Talks

PASSES: Final = 4
LEAN: Final = 0.1
"""Part of all that draws a client with which each node draws everybody: without it a node without
clients stays empty. 0.02 to 0.4 were tried on groups and on chance."""
LEAST_SAVED: Final = 0.1
"""Part of the copies that chance would cost, which a place of its own must save a client; and of
the messages that it hears, which a move must."""
MOST_MOVED: Final = 0.1
"""Part of the clients with a place that moves at most when they are gathered again."""
_ROUNDING: Final = 1e-9


def gather(talks: Talks, bounds: Mapping[str, float], before: Mapping[str, str]) -> dict[str, str]:
    """Return the node of each client that is worth a place of its own, by key.

    Args:
        talks: Groups of clients that share topics.
        bounds: The load that each node may have of them; at least one node.
        before: Node of those who have a place already.
    """
    placement = _Placement(talks, bounds)
    new = placement.keep(before)
    for _ in range(PASSES):
        placement.stream(new)
    placement.save(new)
    placement.leave_out(client for client in new if talks.keys[client] not in before)
    return placement.by_key()


def settle(talks: Talks, bounds: Mapping[str, float], before: Mapping[str, str]) -> dict[str, str]:
    """Return the node of each client that has a place, by key.

    Only those move whose node is gone, or above its bound.

    Args:
        talks: Groups of clients; a client not among them has no place any longer.
        bounds: The load that each node may have of them; at least one node.
        before: Node of each until now.
    """
    placement = _Placement(talks, bounds)
    without = placement.keep(before)
    placement.stream(client for client in without if talks.keys[client] in before)
    return placement.by_key()


class _Placement:
    """The clients that are placed so far, by index, and the loads of nodes and circles by them."""

    def __init__(self, talks: Talks, bounds: Mapping[str, float]) -> None:
        self._talks = talks
        self._bounds = dict(sorted(bounds.items()))
        self._given = dict.fromkeys(self._bounds, 0.0)
        total = sum(self._bounds.values())
        self._parts = {node: bound / total for node, bound in self._bounds.items()}
        self._members = [Counter[str]() for _ in talks.circles]
        """Number of members of each circle, by node."""
        self.nodes: dict[int, str] = {}

    def keep(self, before: Mapping[str, str]) -> list[int]:
        """Place those whose node is there and not full; return the others.

        Whole circles stay, as far as may be: a full node loses those at the end of the order.
        """
        others = []
        full = set()
        for client in self._talks.order:
            node = before.get(self._talks.keys[client], "")
            if node in self._bounds and node not in full and self._left(client, node) >= 0:
                self._put(client, node)
            else:
                full.add(node)
                others.append(client)
        return others

    def stream(self, clients: Iterable[int]) -> None:
        """Place one after the other, as it is best when all others stay."""
        for client in clients:
            self._take(client)
            self._put(client, self._best(client))

    def save(self, new: Iterable[int]) -> None:
        """Move clients as long as that saves copies; of those who were placed before, a few."""
        free = set(new)
        moves = int(MOST_MOVED * (len(self.nodes) - len(free)))
        for _ in range(PASSES):
            wanted = []
            for client in self.nodes:
                saved, node = self._saving(client)
                if saved >= LEAST_SAVED * self._talks.rates[client]:
                    wanted.append((-saved, client, node))
            moved = False
            for _, client, _ in sorted(wanted):
                # Others have moved meanwhile.
                saved, node = self._saving(client)
                if saved < LEAST_SAVED * self._talks.rates[client] or not (client in free or moves):
                    continue
                if client not in free:
                    moves -= 1
                    free.add(client)
                self._take(client)
                self._put(client, node)
                moved = True
            if not moved:
                return

    def leave_out(self, clients: Iterable[int]) -> None:
        """Leave those to chance for whom a place of their own saves too little."""
        asked = set(clients)
        while out := [client for client in asked if not self._saves_enough(client)]:
            asked.difference_update(out)
            for client in out:
                self._take(client)

    def by_key(self) -> dict[str, str]:
        return {self._talks.keys[client]: node for client, node in self.nodes.items()}

    def _saves_enough(self, client: int) -> bool:
        copies = chance = 0.0
        for number in self._talks.of_client[client]:
            circle = self._talks.circles[number]
            members = self._members[number]
            size = len(circle.members)
            elsewhere = size - members.total()
            for node, part in self._parts.items():
                chance += circle.rate * (1 - (1 - part) ** size)
                copies += circle.rate * (1 if node in members else 1 - (1 - part) ** elsewhere)
        return copies < (1 - LEAST_SAVED) * chance

    def _put(self, client: int, node: str) -> None:
        self.nodes[client] = node
        self._given[node] += self._talks.loads[client]
        for number in self._talks.of_client[client]:
            self._members[number][node] += 1

    def _take(self, client: int) -> None:
        node = self.nodes.pop(client, None)
        if node is None:
            return
        self._given[node] -= self._talks.loads[client]
        for number in self._talks.of_client[client]:
            members = self._members[number]
            members[node] -= 1
            if not members[node]:
                del members[node]

    def _left(self, client: int, node: str) -> float:
        """Return the part of a node's bound that is left when a client has come; below 0: none."""
        left = 1 - (self._given[node] + self._talks.loads[client]) / self._bounds[node]
        return 0.0 if -_ROUNDING < left < 0 else left

    def _best(self, client: int) -> str:
        draws = dict.fromkeys(self._bounds, LEAN * self._talks.rates[client])
        for number in self._talks.of_client[client]:
            circle = self._talks.circles[number]
            share = circle.rate / (len(circle.members) - 1)
            for node, count in self._members[number].items():
                draws[node] += share * count
        left = {node: self._left(client, node) for node in self._bounds}
        fitting = [node for node in left if left[node] >= 0]
        if not fitting:
            return max(left, key=lambda node: (left[node], node))
        return max(fitting, key=lambda node: (draws[node] * left[node], left[node], node))

    def _saving(self, client: int) -> tuple[float, str]:
        """Return the most copies a second that a move saves, and where to."""
        here = self.nodes[client]
        kept = 0.0
        there = dict.fromkeys(self._bounds, 0.0)
        for number in self._talks.of_client[client]:
            rate = self._talks.circles[number].rate
            members = self._members[number]
            kept += rate if members[here] > 1 else 0.0
            for node in members:
                there[node] += rate
        del there[here]
        fitting = [node for node in there if self._left(client, node) >= 0]
        if not fitting:
            return 0.0, here
        best = max(fitting, key=lambda node: (there[node], node))
        return there[best] - kept, best
