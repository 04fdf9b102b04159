"""The published experiments of balancing MQTT clients over a cluster, repeated by a load model.

The nodes are made up, and what decides is the code that places real clients: `Fleet` makes the
snapshots, from CPU that it is told every 5 s; HAProxy's part (who is next by weight, who has the
fewest connections, which slot a bucket has) is done here as HAProxy does it. Live connections stay.

The model. A node has so many cores. Of a core, a message that a client publishes takes `PUBLISH`,
a copy that comes from the router `COPY`, a delivery to a subscriber `DELIVERY`, a second of a
connection `IDLE`. How fast a core is, is chosen so that all clients together are `FULL` of all
nodes. Work beyond a node's cores waits; more than `QUEUE_SECONDS` of it is lost. A message waits
for that and takes, as in a queue with one server, `SERVICE_SECONDS` / (1 - utilisation).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from statistics import pstdev
from typing import TYPE_CHECKING, Final

from ingest.balancer.fleet import Fleet, Node, Policy
from ingest.balancer.loads import read_expected
from ingest.balancer.placement import bucket_of
from ingest.balancer.snapshot import Snapshot
from ingest.balancer.talks import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingest.balancer.loads import Expected
    from ingest.balancer.placement import Strategy

PUBLISH: Final = 11.0
COPY: Final = 10.0
DELIVERY: Final = 5.0
IDLE: Final = 2.0
"""Microseconds, as gateways were measured: 92,100 messages of QoS 1 a second is 11."""
FULL: Final = 0.5
QUEUE_SECONDS: Final = 10.0
SERVICE_SECONDS: Final = 0.001

ARRIVAL_SECONDS: Final = 300
"""In which the clients of one wave come."""
LOOK_SECONDS: Final = 5
SETTLED_SECONDS: Final = 60
"""That are looked at when all have come."""
PREDICTION_ERROR: Final = 0.3
"""Standard deviation of the logarithm of predicted rates: last week was not quite like this one."""

_TENANT: Final = "default"
_TOPICS: Final = 1_000
_SUBSCRIBED: Final = 10
_GROUPS: Final = 50
_MEMBERS: Final = 100
_HEARD: Final = 2
_INSIDE: Final = 0.9
"""Part of what members of a group publish and hear that is of their own group."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    rate: float = 0.0
    """Messages a second that it publishes."""
    topic: int = -1
    """That it publishes to; -1: one without a subscriber."""
    subscribed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wave:
    """Clients that come one after the other.

    Attributes:
        joins: Nodes that are there from its beginning, with their cores.
        clients: In the order of their arrival.
    """

    joins: Mapping[str, float]
    clients: Sequence[Client]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it stands when all have come; means of a minute."""

    deviation: float
    """Standard deviation of CPU over the nodes, in percent points."""
    lost_percent: float
    """Of the messages of the whole run."""
    p99_ms: float
    """Of deliveries, by the model."""
    copies: float
    """For each message that anybody subscribes to."""
    forwarding_percent: float
    """Of the work of all nodes: copies that are not a message's first, which one node would not
    need."""


EXPERIMENTS: Final = (
    "1 unequal nodes",
    "2 light, then heavy",
    "3 heavy, then light",
    "4 groups that talk",
)
"""The first three are published; of the fourth only what copies cost."""
PUBLISHED: Final = ((9, 8, 8), (3, 10, 4), (8, 6, 6))
"""Standard deviations of the three published strategies, by experiment."""


def waves_of(number: int, scale: float, random: Random) -> list[Wave]:
    """Return what happens in an experiment, 0 to 3.

    Args:
        number: Which.
        scale: Part of the published numbers of clients.
        random: Says which topics and rates.
    """
    if number == 0:
        many = [_like(one, random) for one in range(int(5_000 * scale))]
        return [Wave({"node-1": 8.0, "node-2": 8.0, "node-3": 4.0}, many)]
    if number == len(EXPERIMENTS) - 1:
        nodes = {"node-1": 4.0, "node-2": 4.0, "node-3": 4.0}
        return [Wave(nodes, _talking(int(_MEMBERS * scale), random))]
    subscribers = [
        Client(f"s-{one}-{random.random()}", subscribed=_some_topics(random))
        for one in range(int(3_000 * scale))
    ]
    slow = [
        Client(
            f"p-{one}-{random.random()}", 1 / random.uniform(0.5, 2.0), random.randrange(_TOPICS)
        )
        for one in range(int(2_000 * scale))
    ]
    light = [*subscribers, *slow]
    random.shuffle(light)
    heavy = [
        Client(f"h-{one}-{random.random()}", 1 / random.uniform(0.015, 0.025))
        for one in range(int(600 * scale))
    ]
    first, second = (light, heavy) if number == 1 else (heavy, light)
    return [Wave({"node-1": 4.0, "node-2": 4.0}, first), Wave({"node-3": 4.0}, second)]


def run(number: int, strategy: Strategy, *, scale: float = 1.0, seed: int = 1) -> Outcome:
    """Return how an experiment ends with a strategy; the same seed gives the same.

    Args:
        number: Of `EXPERIMENTS`.
        strategy: How clients are placed.
        scale: Part of the published numbers of clients.
        seed: Of everything that is chance.
    """
    random = Random(seed)  # noqa: S311 - not for secrets
    waves = waves_of(number, scale, random)
    policy = Policy(strategy=strategy, cpu_is_counter=False, window_seconds=60.0)
    cluster = _Cluster(policy, waves, random)
    for wave in waves:
        cluster.join(wave.joins)
        for second in range(ARRIVAL_SECONDS):
            begin, end = (
                len(wave.clients) * one // ARRIVAL_SECONDS for one in (second, second + 1)
            )
            for client in wave.clients[begin:end]:
                cluster.admit(client)
            cluster.pass_second()
    return cluster.outcome()


def _like(number: int, random: Random) -> Client:
    topic = random.randrange(_TOPICS)
    return Client(f"c-{number}-{random.random()}", 1.0, topic, (random.randrange(_TOPICS),))


def _talking(members: int, random: Random) -> list[Client]:
    """Return groups whose clients publish, and hear, mostly topics of their own group."""
    topics = _TOPICS // _GROUPS

    def topic_of(group: int) -> int:
        if random.random() >= _INSIDE:
            group = random.randrange(_GROUPS)
        return group * topics + random.randrange(topics)

    everybody = [
        Client(
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


def _some_topics(random: Random) -> tuple[int, ...]:
    return tuple(random.sample(range(_TOPICS), _SUBSCRIBED))


@dataclass(slots=True)
class _Node:
    cores: float
    connections: int = 0
    published: float = 0.0
    """Messages a second that its clients publish."""
    subscribers: Counter[int] = field(default_factory=Counter)
    """Of each topic."""
    waiting: float = 0.0
    """Seconds of work of all its cores."""
    debt: float = 0.0
    """For the next by weight."""
    utilisation: float = 0.0


class _Cluster:
    def __init__(self, policy: Policy, waves: Sequence[Wave], random: Random) -> None:
        self._policy = policy
        self._fleet = Fleet(policy, Snapshot())
        self._nodes: dict[str, _Node] = {}
        self._rates: defaultdict[int, float] = defaultdict(float)
        self._now = 0.0
        self._snapshot = Snapshot()
        self._own: dict[str, int] = {}
        self._speed = _speed(waves)
        self._sent = self._lost = 0.0
        self._settled: list[tuple[float, float]] = []
        if policy.strategy == "predicted":
            everybody = chain.from_iterable(wave.clients for wave in waves)
            self._fleet.expect(_expected(policy, everybody, random))

    def join(self, nodes: Mapping[str, float]) -> None:
        self._nodes |= {name: _Node(cores) for name, cores in nodes.items()}
        found = [
            Node(name, "127.0.0.1", (("mqtt", 1883),), capacity=one.cores)
            for name, one in self._nodes.items()
        ]
        self._fleet.discover(found, self._now)
        for name in self._nodes:
            self._fleet.note_probe(name, "")
        self._look()

    def admit(self, client: Client) -> None:
        node = self._nodes[self._choose(client)]
        node.connections += 1
        node.published += client.rate
        node.subscribers.update(client.subscribed)
        if client.topic >= 0:
            self._rates[client.topic] += client.rate

    def pass_second(self) -> None:
        self._now += 1
        for node in self._nodes.values():
            node.utilisation = self._work(node)
            self._sent += node.published
            node.waiting += node.utilisation - 1
            if node.waiting > QUEUE_SECONDS:
                excess = node.waiting - QUEUE_SECONDS
                self._lost += node.published * excess / node.utilisation
            node.waiting = min(QUEUE_SECONDS, max(0.0, node.waiting))
        if self._now % LOOK_SECONDS == 0:
            self._look()

    def outcome(self) -> Outcome:
        delays: list[tuple[float, float]] = []
        cpus: list[float] = []
        for _ in range(SETTLED_SECONDS):
            self.pass_second()
            cpus.append(pstdev(min(100.0, one.utilisation * 100) for one in self._nodes.values()))
            for node in self._nodes.values():
                busy = min(0.99, node.utilisation)
                delay = node.waiting + SERVICE_SECONDS / (1 - busy)
                delays.append((delay, self._deliveries(node)))
        lost, p99_ms = 100 * self._lost / self._sent, _p99(delays) * 1000
        matched, copied = self._copied()
        work = self._speed * sum(one.utilisation * one.cores for one in self._nodes.values())
        forwarding = 100 * COPY * (copied - matched) / work
        return Outcome(sum(cpus) / len(cpus), lost, p99_ms, copied / matched, forwarding)

    def _work(self, node: _Node) -> float:
        """Return which part of its cores a node needs."""
        copies = sum(rate for topic, rate in self._rates.items() if node.subscribers[topic])
        work = (
            PUBLISH * node.published
            + COPY * copies
            + DELIVERY * self._deliveries(node)
            + IDLE * node.connections
        )
        return work / self._speed / node.cores

    def _deliveries(self, node: _Node) -> float:
        return sum(rate * node.subscribers[topic] for topic, rate in self._rates.items())

    def _copied(self) -> tuple[float, float]:
        """Return the messages a second that anybody subscribes to, and their copies."""
        matched = copied = 0.0
        for topic, rate in self._rates.items():
            nodes = sum(node.subscribers[topic] > 0 for node in self._nodes.values())
            matched += rate if nodes else 0.0
            copied += rate * nodes
        return matched, copied

    def _look(self) -> None:
        for name, node in self._nodes.items():
            self._fleet.note_cpu(name, self._now, min(100.0, node.utilisation * 100))
        self._snapshot = self._fleet.snapshot(self._now)
        if gathering := self._fleet.gathering():
            self._fleet.gathered(gathering.run())
            self._snapshot = self._fleet.snapshot(self._now)
        self._own = dict(self._snapshot.talkers)

    def _choose(self, client: Client) -> str:
        placed = [one for one in self._snapshot.nodes if one.takes_clients]
        if slot := self._own.get(key_of(_TENANT, client.name)):
            return self._snapshot.by_slot[slot].name
        if self._snapshot.buckets:
            bucket = bucket_of(_TENANT, client.name, len(self._snapshot.buckets))
            return self._snapshot.by_slot[self._snapshot.buckets[bucket]].name
        if self._policy.strategy == "least_connections":
            return min(placed, key=lambda one: (self._nodes[one.name].connections, one.slot)).name
        # Smooth round robin by weight, as HAProxy's.
        total = sum(one.weight for one in placed)
        for one in placed:
            self._nodes[one.name].debt += one.weight
        chosen = max(placed, key=lambda one: (self._nodes[one.name].debt, -one.slot)).name
        self._nodes[chosen].debt -= total
        return chosen


def _p99(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the value that a hundredth of the weight is at or above."""
    rest = 0.01 * sum(weight for _, weight in weighted)
    for value, weight in sorted(weighted, reverse=True):
        rest -= weight
        if rest <= 0:
            return value
    return 0.0


def _speed(waves: Sequence[Wave]) -> float:
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


def _expected(policy: Policy, everybody: Iterable[Client], random: Random) -> Expected:
    """Return what a file of last week says; its rates are not quite right."""
    rates: defaultdict[int, float] = defaultdict(float)
    lines = []
    for client in everybody:
        rate = client.rate * random.lognormvariate(0.0, PREDICTION_ERROR)
        lines.append(f"{_TENANT},{client.name},{rate}")
        lines += [f"{_TENANT},{client.name},,{topic}" for topic in client.subscribed]
        if client.topic >= 0:
            rates[client.topic] += rate
    lines += [f"{_TENANT},,{rate},{topic}" for topic, rate in rates.items()]
    buckets = policy.shards * policy.buckets_per_shard
    return read_expected(lambda: lines, buckets, len(lines))
