"""The nodes as the control plane knows them; from that, the snapshot that proxies are to have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingest.balancer.health import Factor, Health
from ingest.balancer.loads import Expected, without
from ingest.balancer.overload import MOST as MOST_LEVEL
from ingest.balancer.overload import Overload
from ingest.balancer.placement import Strategy, bounds_of, place_buckets
from ingest.balancer.snapshot import PlacedNode, Snapshot, assign_slots
from ingest.balancer.talkers import gather, settle
from ingest.balancer.weights import LEAST, MOST, CpuWindow, damped, weight_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingest.balancer.talks import Talks

ANNOUNCED: Final = "announced"
"""Factor of health: the node says of itself that it takes clients."""
SHARPNESS: Final = 4
"""Power of a node's free processor that decides its part with `predicted`. Clients that are there
stay, so new ones have to make up for them; in proportion they never do."""
MQTT: Final = "mqtt"
"""Factor of health: a client connects, subscribes, publishes and receives."""

_Places = tuple[tuple[int, ...], tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was discovered."""

    name: str
    address: str
    ports: tuple[tuple[str, int], ...]
    metrics_url: str = ""
    serves: bool = True
    """False: it says that it takes no clients."""
    overload_level: int | None = None
    """That it has published with this, if any."""
    is_gateway: bool = False
    """It reads control records: it lets its clients go by itself when it is drained."""
    capacity: float = 1.0
    """How much it can do, of others' measure: twice as much with 2."""

    @property
    def mqtt_port(self) -> int | None:
        return dict(self.ports).get("mqtt")


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decide."""

    strategy: Strategy = "weighted_cpu"
    slots: int = 32
    window_seconds: float = 60.0
    cpu_is_counter: bool = True
    cores: float = 1.0
    overload_threshold: int = 4
    overload_release: int = 2
    overload_memory_seconds: float = 60.0
    fall: int = 2
    rise: int = 1
    shards: int = 16
    buckets_per_shard: int = 64
    slack: float = 0.25
    tolerance: int = 15


@dataclass(frozen=True, slots=True)
class Gathering:
    """That clients are to be gathered: a copy of all that it needs, for another thread."""

    talks: Talks
    bounds: Mapping[str, float]
    before: Mapping[str, str]

    def run(self) -> dict[str, str]:
        """Return the node of each client with a place of its own; it may take seconds."""
        return gather(self.talks, self.bounds, self.before)


@dataclass(slots=True)
class _Known:
    node: Node
    health: Health
    cpu: CpuWindow
    overload: Overload
    discovered_at: float
    damped_weight: int | None = None


@dataclass(slots=True)
class _Memory:
    """State of the last snapshot that still counts."""

    slots: dict[str, int] = field(default_factory=dict)
    taking: set[str] = field(default_factory=set)
    weights: dict[str, int] = field(default_factory=dict)
    buckets: list[str] = field(default_factory=list)
    talkers: dict[str, str] = field(default_factory=dict)
    """Node of each client that has a place of its own."""


class Fleet:
    """Takes findings on nodes, gives the snapshot.

    Args:
        policy: How to decide.
        last: The last good snapshot, from before a restart: it counts for a node of which nothing
            else is known yet.

    Attributes:
        left_out: Nodes for which there is no slot.
        expected: The expected load of clients; None: not known yet.
    """

    def __init__(
        self, policy: Policy, last: Snapshot, draining: Collection[str] = frozenset()
    ) -> None:
        self._policy = policy
        self._nodes: dict[str, _Known] = {}
        self._memory = _Memory(
            {node.name: node.slot for node in last.nodes},
            {node.name for node in last.nodes if node.takes_clients},
            {node.name: node.weight for node in last.nodes},
            self._remembered_buckets(last),
            {key: last.by_slot[slot].name for key, slot in last.talkers if slot in last.by_slot},
        )
        self.expected: Expected | None = None
        self._gathered_for: set[str] | None = None
        """The nodes that took clients when clients were gathered."""
        self._is_settling = False
        """Something is not known yet that decides where clients are gathered."""
        self._parts: dict[str, float] = {}
        """Part of the load that each node is to have, of those that take clients."""
        self._placed_for: tuple[Any, ...] | None = None
        self._places: _Places = ((), ())
        self._draining = set(draining)
        self.left_out: list[str] = []

    @property
    def draining(self) -> frozenset[str]:
        """The nodes that are to have no new clients in any case."""
        return frozenset(self._draining)

    @property
    def nodes(self) -> list[Node]:
        return [known.node for _, known in sorted(self._nodes.items())]

    def discover(self, nodes: Collection[Node], now: float) -> None:
        """Take the nodes that there are; others are gone."""
        present = {node.name for node in nodes}
        for name in [name for name in self._nodes if name not in present]:
            del self._nodes[name]
        for node in nodes:
            known = self._nodes.get(node.name)
            if known is None or _is_elsewhere(known.node, node):
                known = self._nodes[node.name] = self._new(node, now)
            known.node = node
            known.health.factors[ANNOUNCED].note(
                passed=node.serves, reason="" if node.serves else "it takes no clients"
            )
            if node.overload_level is not None:
                known.overload.note(now, node.overload_level)

    def note_probe(self, name: str, reason: str, *, definite: bool = False) -> bool:
        """Take the result of a probe; an empty reason: it went well.

        Returns:
            Whether the snapshot may be another one.
        """
        known = self._nodes.get(name)
        if known is None:
            return False
        factor = known.health.factors[MQTT]
        before = factor.is_healthy
        factor.note(passed=not reason, reason=reason, definite=definite)
        return factor.is_healthy != before

    def note_cpu(self, name: str, at: float, value: float) -> None:
        if known := self._nodes.get(name):
            known.cpu.add(at, value)

    def note_overload(self, name: str, at: float, level: float) -> bool:
        """Take a level that a node has published.

        Returns:
            Whether the snapshot may be another one.
        """
        known = self._nodes.get(name)
        if known is None:
            return False
        before = known.overload.is_over(at)
        known.overload.note(at, level)
        return known.overload.is_over(at) != before

    def drain(self, name: str, *, is_draining: bool) -> bool:
        """Give a node no new clients, or some again; tell whether there is such a node."""
        if is_draining and name in self._nodes:
            self._draining.add(name)
        elif not is_draining:
            self._draining.discard(name)
        return name in self._nodes

    def expect(self, expected: Expected) -> None:
        """Take the load that is expected of clients, and the circles that they are in."""
        self.expected = expected
        self._gathered_for = self._placed_for = None

    def gathering(self) -> Gathering | None:
        """Return the gathering of clients to be run; None: there is no reason to.

        There is when other loads are expected, and when a node takes clients that did not, once
        all nodes are known: the first of several would get everybody. It is about the last
        snapshot.
        """
        expected, weights = self.expected, self._parts
        if expected is None or not weights or self._policy.strategy != "predicted":
            return None
        if self._is_settling:
            return None
        if self._gathered_for is not None and self._gathered_for >= weights.keys():
            return None
        self._gathered_for = set(weights)
        talks = expected.talks
        bounds = self._bounds(weights, sum(talks.loads))
        return Gathering(talks, bounds, dict(self._memory.talkers))

    def gathered(self, talkers: dict[str, str]) -> None:
        """Take the result of `Gathering.run`."""
        self._memory.talkers = talkers
        self._placed_for = None

    def snapshot(self, now: float) -> Snapshot:
        """Return the snapshot that proxies are to have."""
        memory = self._memory
        memory.slots, self.left_out = assign_slots(
            set(self._nodes), memory.slots, self._policy.slots
        )
        taking = self._taking(now)
        self._is_settling = any(self._is_unknown(known, now) for known in self._nodes.values())
        placed = [
            PlacedNode(
                name,
                known.node.address,
                tuple(sorted(known.node.ports)),
                self._weight(name, known, now),
                name in taking,
                memory.slots[name],
            )
            for name, known in sorted(self._nodes.items())
            if name in memory.slots
        ]
        memory.taking = taking
        memory.weights = {node.name: node.weight for node in placed}
        return Snapshot(tuple(placed), *self._places_of(placed))

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Return all that is known of each node, for people."""
        return [
            {
                "name": name,
                "address": known.node.address,
                "ports": dict(known.node.ports),
                "slot": self._memory.slots.get(name),
                "weight": self._memory.weights.get(name),
                "takes_clients": name in self._memory.taking,
                "draining": name in self._draining,
                "overloaded": known.overload.is_over(now),
                "overload_level": known.overload.level,
                "cpu_percent": known.cpu.mean(now),
                "factors": {
                    factor: {"healthy": one.is_healthy, "reason": one.reason}
                    for factor, one in sorted(known.health.factors.items())
                },
            }
            for name, known in sorted(self._nodes.items())
        ]

    def _new(self, node: Node, now: float) -> _Known:
        policy = self._policy
        factors = {
            ANNOUNCED: Factor(fall=1, rise=1),
            MQTT: Factor(fall=policy.fall, rise=policy.rise),
        }
        return _Known(
            node,
            Health(factors),
            CpuWindow(policy.window_seconds, is_counter=policy.cpu_is_counter, cores=policy.cores),
            Overload(
                policy.overload_threshold, policy.overload_release, policy.overload_memory_seconds
            ),
            now,
        )

    def _taking(self, now: float) -> set[str]:
        """Return which nodes take new clients.

        When all fail their probes it is more likely that this process cannot reach them: those
        that say that they serve go on then. When all are overloaded there is no better place than
        any of them: they go on too, and refuse by themselves clients that are too many.
        """
        wanted = {
            name: known
            for name, known in self._nodes.items()
            if name not in self._draining and known.health.factors[ANNOUNCED].is_healthy
        }
        healthy = {name for name, known in wanted.items() if self._is_healthy(name, known)}
        if not healthy and all(known.health.is_known for known in wanted.values()):
            healthy = set(wanted)
        free = {name for name in healthy if not wanted[name].overload.is_over(now)}
        return free or healthy

    def _is_healthy(self, name: str, known: _Known) -> bool:
        if not known.health.is_known:
            return name in self._memory.taking
        return known.health.is_healthy

    def _is_unknown(self, known: _Known, now: float) -> bool:
        """Tell whether a node was not probed yet, or is new and its metrics were not read yet."""
        if not known.health.is_known:
            return True
        is_young = now - known.discovered_at < self._policy.window_seconds
        return bool(known.node.metrics_url) and is_young and known.cpu.mean(now) is None

    def _weight(self, name: str, known: _Known, now: float) -> int:
        if self._policy.strategy in ("round_robin", "least_connections"):
            return MOST
        mean = known.cpu.mean(now)
        is_young = now - known.discovered_at < self._policy.window_seconds
        if mean is None and is_young and name in self._memory.weights:
            return self._memory.weights[name]
        weight = weight_of(mean)
        if self._policy.strategy == "predicted":
            # Work that waits (a late loop, a long queue) is not in the free part of the processor.
            weight = max(LEAST, round(weight * (1 - known.overload.at(now) / MOST_LEVEL)))
            # A scrape that fails must not move clients.
            if mean is not None or known.damped_weight is None:
                known.damped_weight = damped(known.damped_weight, weight, self._policy.tolerance)
            return known.damped_weight
        return weight

    def _places_of(self, placed: Sequence[PlacedNode]) -> _Places:
        """Return the slot of each bucket, and of each client with a place of its own."""
        policy, memory = self._policy, self._memory
        weights = self._parts = {
            node.name: self._nodes[node.name].node.capacity * (node.weight / MOST) ** SHARPNESS
            for node in placed
            if node.takes_clients
        }
        if policy.strategy != "predicted" or not weights:
            return (), ()
        wanted_for = (tuple(weights.items()), tuple(memory.slots.items()))
        if wanted_for != self._placed_for:
            self._placed_for = wanted_for
            loads: Sequence[float] = [1.0] * (policy.shards * policy.buckets_per_shard)
            given: dict[str, float] = {}
            if self.expected is None:
                # Loads are not read yet: those whose node is gone go by bucket.
                memory.talkers = {
                    key: node for key, node in memory.talkers.items() if node in weights
                }
            else:
                talks = self.expected.talks
                load_of = dict(zip(talks.keys, talks.loads, strict=True))
                own = sum(load_of.get(key, 0.0) for key in memory.talkers)
                memory.talkers = settle(talks, self._bounds(weights, own), memory.talkers)
                loads = without(self.expected, memory.talkers)
                for key, node in memory.talkers.items():
                    given[node] = given.get(node, 0.0) + load_of[key]
            memory.buckets = place_buckets(
                policy.shards,
                loads,
                weights,
                slack=policy.slack,
                before=memory.buckets,
                given=given,
            )
            slots = memory.slots
            self._places = (
                tuple(slots[name] for name in memory.buckets),
                tuple(sorted((key, slots[name]) for key, name in memory.talkers.items())),
            )
        return self._places

    def _bounds(self, weights: Mapping[str, float], own: float) -> dict[str, float]:
        """Return the load that each node may have of clients with a place of their own.

        They are spread among themselves as evenly as all load, lest those who come later meet full
        nodes; but a few, less than the slack of all load, may all be at one.
        """
        assert self.expected is not None
        slack = self._policy.slack
        load = max((1 + slack) * own, slack * sum(self.expected.loads))
        return bounds_of(load, weights, 0.0)

    def _remembered_buckets(self, last: Snapshot) -> list[str]:
        """Return the node of each bucket; nothing when settings have changed since."""
        by_slot = last.by_slot
        count = self._policy.shards * self._policy.buckets_per_shard
        if len(last.buckets) != count or not by_slot.keys() >= set(last.buckets):
            return []
        return [by_slot[slot].name for slot in last.buckets]


def _is_elsewhere(known: Node, found: Node) -> bool:
    return (known.address, known.ports) != (found.address, found.ports)
