"""Published experiments of balancing MQTT clients: the clients that come, and their times.

Beside it the work that clients make: the time of a core for each of their actions. How fast a core
is, is chosen so that all clients together are `FULL` of all nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

PUBLISH: Final = 11.0
COPY: Final = 10.0
DELIVERY: Final = 5.0
IDLE: Final = 2.0
"""Microseconds, as gateways were measured: 92,100 messages of QoS 1 a second is 11."""
FULL: Final = 0.5
PREDICTION_ERROR: Final = 0.3
"""Standard deviation of the logarithm of predicted rates: last week was not quite like this one."""

TENANT: Final = "default"
_TOPICS: Final = 1_000
_SUBSCRIBED: Final = 10
_GROUPS: Final = 50
_MEMBERS: Final = 100
_HEARD: Final = 2
_INSIDE: Final = 0.9
"""Part of the messages of a group's members that is of their own group."""


@dataclass(frozen=True, slots=True)
class WaveClient:
    name: str
    rate: float = 0.0
    """Messages a second that it publishes."""
    topic: int = -1
    """That it publishes to; -1: one without a subscriber."""
    subscribed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientWave:
    """Clients that come one after the other.

    Attributes:
        joins: Nodes that are there from its beginning, with their cores.
        clients: In the order of their arrival.
    """

    joins: Mapping[str, float]
    clients: Sequence[WaveClient]


EXPERIMENTS: Final = (
    "1 unequal nodes",
    "2 light, then heavy",
    "3 heavy, then light",
    "4 groups that talk",
)
"""The first three are published; of the fourth only the cost of copies."""
PUBLISHED: Final = ((9, 8, 8), (3, 10, 4), (8, 6, 6))
"""Standard deviations of the three published strategies, by experiment."""


def waves_of(number: int, scale: float, random: Random) -> list[ClientWave]:
    """Return the waves of an experiment, 0 to 3.

    Args:
        number: Which.
        scale: Part of the published numbers of clients, and of topics.
        random: Says which topics and rates.
    """
    topics = max(_SUBSCRIBED, round(_TOPICS * scale))
    if number == 0:
        many = [_like(one, topics, random) for one in range(int(5_000 * scale))]
        return [ClientWave({"node-1": 8.0, "node-2": 8.0, "node-3": 4.0}, many)]
    if number == len(EXPERIMENTS) - 1:
        nodes = {"node-1": 4.0, "node-2": 4.0, "node-3": 4.0}
        return [ClientWave(nodes, _talking(int(_MEMBERS * scale), topics, random))]
    subscribers = [
        WaveClient(f"s-{one}-{random.random()}", subscribed=_some(topics, random))
        for one in range(int(3_000 * scale))
    ]
    slow = [
        WaveClient(
            f"p-{one}-{random.random()}", 1 / random.uniform(0.5, 2.0), random.randrange(topics)
        )
        for one in range(int(2_000 * scale))
    ]
    light = [*subscribers, *slow]
    random.shuffle(light)
    heavy = [
        WaveClient(f"h-{one}-{random.random()}", 1 / random.uniform(0.015, 0.025))
        for one in range(int(600 * scale))
    ]
    first, second = (light, heavy) if number == 1 else (heavy, light)
    return [ClientWave({"node-1": 4.0, "node-2": 4.0}, first), ClientWave({"node-3": 4.0}, second)]


def _like(number: int, topics: int, random: Random) -> WaveClient:
    topic = random.randrange(topics)
    return WaveClient(f"c-{number}-{random.random()}", 1.0, topic, (random.randrange(topics),))


def _some(topics: int, random: Random) -> tuple[int, ...]:
    return tuple(random.sample(range(topics), _SUBSCRIBED))


def _talking(members: int, topics: int, random: Random) -> list[WaveClient]:
    """Return groups whose clients publish, and hear, mostly topics of their own group."""
    own = max(1, topics // _GROUPS)

    def topic_of(group: int) -> int:
        if random.random() >= _INSIDE:
            group = random.randrange(_GROUPS)
        return group * own + random.randrange(own)

    everybody = [
        WaveClient(
            f"g-{group}-{member}-{random.random()}",
            1.0,
            topic_of(group),
            tuple({topic_of(group) for _ in range(_HEARD)}),
        )
        for group in range(_GROUPS)
        for member in range(members)
    ]
    random.shuffle(everybody)
    return everybody


def core_speed(waves: Sequence[ClientWave]) -> float:
    """Return the microseconds of work that a core does in a second."""
    cores = sum(sum(wave.joins.values()) for wave in waves)
    nodes = sum(len(wave.joins) for wave in waves)
    everybody = [client for wave in waves for client in wave.clients]
    rates: defaultdict[int, float] = defaultdict(float)
    subscribers = Counter[int]()
    for client in everybody:
        subscribers.update(client.subscribed)
        if client.topic >= 0:
            rates[client.topic] += client.rate
    work = IDLE * len(everybody) + PUBLISH * sum(client.rate for client in everybody)
    work += sum(rate * DELIVERY * subscribers[topic] for topic, rate in rates.items())
    work += sum(rate * COPY * nodes for topic, rate in rates.items() if subscribers[topic])
    return work / cores / FULL


def expected_lines(everybody: Iterable[WaveClient], random: Random) -> list[str]:
    """Return the file of expected loads, as of last week; its rates are not quite right."""
    rates: defaultdict[int, float] = defaultdict(float)
    lines = []
    for client in everybody:
        rate = client.rate * random.lognormvariate(0.0, PREDICTION_ERROR)
        lines.append(f"{TENANT},{client.name},{rate},")
        lines += [f"{TENANT},{client.name},,{topic}" for topic in client.subscribed]
        if client.topic >= 0:
            rates[client.topic] += rate
    return lines + [f"{TENANT},,{rate},{topic}" for topic, rate in rates.items()]
