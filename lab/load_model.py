"""Load that clients put on nodes: a model, for experiments with nodes that are made up.

A node has a number of cores, which do the work of `waves`. Work beyond them waits; more than
`QUEUE_SECONDS` of it is lost. A message waits for that and takes, as in a queue with one server,
`SERVICE_SECONDS` / (1 - utilisation).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import pstdev
from typing import TYPE_CHECKING, Final

from lab.waves import COPY, DELIVERY, IDLE, PUBLISH, core_speed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lab.waves import ClientWave, WaveClient

QUEUE_SECONDS: Final = 10.0
SERVICE_SECONDS: Final = 0.001
SETTLED_SECONDS: Final = 60
"""That are looked at when all have come."""


@dataclass(frozen=True, slots=True)
class PlacingOutcome:
    """How it stands when all have come; means of a minute."""

    deviation: float
    """Standard deviation of CPU over the nodes, in percent points."""
    lost_percent: float
    """Part of all messages of the run."""
    p99_ms: float
    """99th percentile of deliveries, by the model."""
    copies: float
    """For each message that anybody subscribes to."""
    forwarding_percent: float
    """Part of the work of all nodes: copies that are not a message's first, which one node would
    not need."""


@dataclass(slots=True)
class ModelNode:
    """One node and the clients that it has."""

    cores: float
    connections: int = 0
    published: float = 0.0
    """Messages a second that its clients publish."""
    subscribers: Counter[int] = field(default_factory=Counter)
    """Subscribers by topic."""
    waiting: float = 0.0
    """Seconds of work of all its cores."""
    utilisation: float = 0.0
    """Part of its cores that its clients need; above 1 work waits."""

    @property
    def cpu_percent(self) -> float:
        """Use of its processor that it would report, 0 to 100."""
        return min(100.0, self.utilisation * 100)


class LoadModel:
    """All nodes.

    Args:
        waves: Whose clients are to be `FULL` of all nodes together.

    Attributes:
        nodes: By name.
        seconds: That have passed.
    """

    def __init__(self, waves: Sequence[ClientWave]) -> None:
        self.nodes: dict[str, ModelNode] = {}
        self.seconds = 0.0
        self._rates: defaultdict[int, float] = defaultdict(float)
        self._speed = core_speed(waves)
        self._sent = self._lost = 0.0

    def join(self, nodes: Mapping[str, float]) -> None:
        """Add nodes with their cores."""
        self.nodes |= {name: ModelNode(cores) for name, cores in nodes.items()}

    def admit(self, client: WaveClient, name: str) -> None:
        """Add a client to a node."""
        node = self.nodes[name]
        node.connections += 1
        node.published += client.rate
        node.subscribers.update(client.subscribed)
        if client.topic >= 0:
            self._rates[client.topic] += client.rate

    def pass_second(self) -> None:
        """Let all nodes work for a second."""
        self.seconds += 1
        for node in self.nodes.values():
            node.utilisation = self._work(node)
            self._sent += node.published
            node.waiting += node.utilisation - 1
            if node.waiting > QUEUE_SECONDS:
                excess = node.waiting - QUEUE_SECONDS
                self._lost += node.published * excess / node.utilisation
            node.waiting = min(QUEUE_SECONDS, max(0.0, node.waiting))

    def outcome(self) -> PlacingOutcome:
        """Return how it stands when all have come; a minute passes."""
        delays: list[tuple[float, float]] = []
        cpus: list[float] = []
        for _ in range(SETTLED_SECONDS):
            self.pass_second()
            cpus.append(pstdev(node.cpu_percent for node in self.nodes.values()))
            for node in self.nodes.values():
                busy = min(0.99, node.utilisation)
                delay = node.waiting + SERVICE_SECONDS / (1 - busy)
                delays.append((delay, self._deliveries(node)))
        lost, p99_ms = 100 * self._lost / self._sent, _p99(delays) * 1000
        matched, copied = self._copied()
        work = self._speed * sum(one.utilisation * one.cores for one in self.nodes.values())
        forwarding = 100 * COPY * (copied - matched) / work
        return PlacingOutcome(sum(cpus) / len(cpus), lost, p99_ms, copied / matched, forwarding)

    def _work(self, node: ModelNode) -> float:
        """Return which part of its cores a node needs."""
        copies = sum(rate for topic, rate in self._rates.items() if node.subscribers[topic])
        work = (
            PUBLISH * node.published
            + COPY * copies
            + DELIVERY * self._deliveries(node)
            + IDLE * node.connections
        )
        return work / self._speed / node.cores

    def _deliveries(self, node: ModelNode) -> float:
        return sum(rate * node.subscribers[topic] for topic, rate in self._rates.items())

    def _copied(self) -> tuple[float, float]:
        """Return the messages a second that anybody subscribes to, and their copies."""
        matched = copied = 0.0
        for topic, rate in self._rates.items():
            nodes = sum(node.subscribers[topic] > 0 for node in self.nodes.values())
            matched += rate if nodes else 0.0
            copied += rate * nodes
        return matched, copied


def _p99(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the value that a hundredth of the weight is at or above."""
    rest = 0.01 * sum(weight for _, weight in weighted)
    for value, weight in sorted(weighted, reverse=True):
        rest -= weight
        if rest <= 0:
            return value
    return 0.0
