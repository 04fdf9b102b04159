"""Clients that hear the same topics, and so are worth a place of their own.

The router copies a message once for each node with a subscriber, wherever its publisher is. So
subscribers count, not publishers: a *circle* is a set of clients that hear the same topics, with
the messages a second that come to these, and a message costs as many copies as its circle has
nodes. `Talks` is the hypergraph of the circles; `ingest.balancer.talkers` places it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from typing import TYPE_CHECKING, Final

from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Client = tuple[str, str]
"""Tenant and client identifier."""

KEY_BYTES: Final = 8
"""Two of 100,000 clients have the same key with a chance of 3e-10; they would share a place."""


def key_of(tenant: str, client_id: str) -> str:
    """Return the name of a client in HAProxy's map, for any characters in its identifier.

    HAProxy computes the same: `sha1,bytes(0,8),hex`.
    """
    digest = sha1(f"{tenant}/{client_id}".encode(), usedforsecurity=False).digest()
    return digest[:KEY_BYTES].hex().upper()


@dataclass(frozen=True, slots=True)
class Circle:
    """Clients that hear the same topics."""

    rate: float
    """Messages a second that come to these."""
    members: tuple[int, ...]
    """At least two, as indices of clients."""


@dataclass(frozen=True)
class Talks:
    """The clients of the circles that count most."""

    keys: tuple[str, ...] = ()
    """Keys of the clients; those of circles with much to save first."""
    loads: tuple[float, ...] = ()
    """That are expected of each, in the unit of the buckets' loads."""
    buckets: tuple[int, ...] = ()
    """Bucket of each without a place of its own."""
    circles: tuple[Circle, ...] = ()

    @cached_property
    def of_client(self) -> tuple[tuple[int, ...], ...]:
        """The circles of each client."""
        found: list[list[int]] = [[] for _ in self.keys]
        for number, circle in enumerate(self.circles):
            for member in circle.members:
                found[member].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The messages a second that each client hears with others."""
        return tuple(sum(self.circles[one].rate for one in several) for several in self.of_client)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The clients, breadth first: those who share circles are beside each other."""
        order: list[int] = []
        seen = [False] * len(self.keys)
        for begin in range(len(self.keys)):
            waiting = deque([] if seen[begin] else [begin])
            seen[begin] = True
            while waiting:
                client = waiting.popleft()
                order.append(client)
                for number in self.of_client[client]:
                    for member in self.circles[number].members:
                        if not seen[member]:
                            seen[member] = True
                            waiting.append(member)
        return tuple(order)


def circles_of(
    topics: Mapping[tuple[str, str], float], subscriptions: Iterable[tuple[Client, str]]
) -> dict[tuple[Client, ...], float]:
    """Return the circles of clients that hear the same topics, with their messages a second.

    Args:
        topics: Messages a second that come to each topic of a tenant.
        subscriptions: Topic filters, with wildcards or without. Shared ones are no circle: of a
            group one is chosen for each message.
    """
    tries: defaultdict[str, TopicFilterTrie[Client]] = defaultdict(TopicFilterTrie)
    for client, topic_filter in subscriptions:
        if not topic_filter.startswith(SHARE_PREFIX):
            tries[client[0]].insert(topic_filter, client)
    found: defaultdict[tuple[Client, ...], float] = defaultdict(float)
    for (tenant, topic), rate in topics.items():
        if tenant in tries and (hearers := set(tries[tenant].match(topic))):
            found[tuple(sorted(hearers))] += rate
    return dict(found)


def choose(circles: Mapping[tuple[Client, ...], float], most: int) -> list[Client]:
    """Return the clients that may have a place of their own, in whole circles.

    Args:
        circles: Messages a second of each.
        most: Clients at most; circles with the most messages for each member come first.
    """
    chosen: dict[Client, None] = {}
    several = (circle for circle, rate in circles.items() if len(circle) > 1 and rate > 0)
    for circle in sorted(several, key=lambda one: (-circles[one] / len(one), one)):
        new = [client for client in circle if client not in chosen]
        if len(chosen) + len(new) <= most:
            chosen.update(dict.fromkeys(new))
    return list(chosen)
