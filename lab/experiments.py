"""The published experiments of balancing MQTT clients over a cluster, repeated by a load model.

The nodes are made up (`load_model`), and the code that places real clients decides: `Fleet` makes
the snapshots, from CPU times of the last 5 s; HAProxy's part (the next by weight, the one with
the fewest connections, the slot of a bucket) is done here as HAProxy does it. Live connections
stay.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Final

from ingest.balancer.fleet import Fleet, Node, Policy
from ingest.balancer.loads import read_expected
from ingest.balancer.placement import bucket_of
from ingest.balancer.snapshot import Snapshot
from ingest.balancer.talks import key_of
from lab.load_model import LoadModel, PlacingOutcome
from lab.waves import (
    TENANT,
    expected_lines,
    waves_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest.balancer.placement import Strategy
    from lab.waves import ClientWave, WaveClient

ARRIVAL_SECONDS: Final = 300
"""In which the clients of one wave come."""
LOOK_SECONDS: Final = 5


def run(number: int, strategy: Strategy, *, scale: float = 1.0, seed: int = 1) -> PlacingOutcome:
    """Return how an experiment ends with a strategy; the same seed gives the same.

    Args:
        number: Number in `EXPERIMENTS`.
        strategy: How clients are placed.
        scale: Part of the published numbers of clients.
        seed: Seed of all random choices.
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
    return cluster.model.outcome()


class _Cluster:
    def __init__(self, policy: Policy, waves: Sequence[ClientWave], random: Random) -> None:
        self._policy = policy
        self._fleet = Fleet(policy, Snapshot())
        self._debts: defaultdict[str, float] = defaultdict(float)
        """Debt of each node, for the next by weight."""
        self._snapshot = Snapshot()
        self._own: dict[str, int] = {}
        self.model = LoadModel(waves)
        if policy.strategy == "predicted":
            everybody = chain.from_iterable(wave.clients for wave in waves)
            lines = expected_lines(everybody, random)
            buckets = policy.shards * policy.buckets_per_shard
            self._fleet.expect(read_expected(lambda: lines, buckets, len(lines)))

    def join(self, nodes: Mapping[str, float]) -> None:
        self.model.join(nodes)
        found = [
            Node(name, "127.0.0.1", (("mqtt", 1883),), capacity=one.cores)
            for name, one in self.model.nodes.items()
        ]
        self._fleet.discover(found, self.model.seconds)
        for name in self.model.nodes:
            self._fleet.note_probe(name, "")
        self._look()

    def admit(self, client: WaveClient) -> None:
        self.model.admit(client, self._choose(client))

    def pass_second(self) -> None:
        self.model.pass_second()
        if self.model.seconds % LOOK_SECONDS == 0:
            self._look()

    def _look(self) -> None:
        now = self.model.seconds
        for name, node in self.model.nodes.items():
            self._fleet.note_cpu(name, now, node.cpu_percent)
        self._snapshot = self._fleet.snapshot(now)
        if gathering := self._fleet.gathering():
            self._fleet.gathered(gathering.run())
            self._snapshot = self._fleet.snapshot(now)
        self._own = dict(self._snapshot.talkers)

    def _choose(self, client: WaveClient) -> str:
        placed = [one for one in self._snapshot.nodes if one.takes_clients]
        if slot := self._own.get(key_of(TENANT, client.name)):
            return self._snapshot.by_slot[slot].name
        if self._snapshot.buckets:
            bucket = bucket_of(TENANT, client.name, len(self._snapshot.buckets))
            return self._snapshot.by_slot[self._snapshot.buckets[bucket]].name
        if self._policy.strategy == "least_connections":
            nodes = self.model.nodes
            return min(placed, key=lambda one: (nodes[one.name].connections, one.slot)).name
        # Smooth round robin by weight, as HAProxy's.
        total = sum(one.weight for one in placed)
        for one in placed:
            self._debts[one.name] += one.weight
        chosen = max(placed, key=lambda one: (self._debts[one.name], -one.slot)).name
        self._debts[chosen] -= total
        return chosen
