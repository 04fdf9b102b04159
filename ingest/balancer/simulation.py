"""Made-up clients and nodes, placed by the code that places real ones (`predicted`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ingest.balancer.placement import bounds_of, bucket_of, place_buckets
from ingest.session.placement import place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TENANTS = 10
_PARETO = 1.2
"""Shape of the clients' rates: few send most."""
_MOST_RATE = 1_000.0
_HOT = 0.001
"""Part of the clients that become hot, and how much they send then."""
_HOT_RATE = 100.0


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    clients: int
    shards: int
    buckets_per_shard: int


@dataclass(slots=True)
class _World:
    size: Size
    slack: float
    buckets: list[int]
    """Bucket of each client."""
    rates: list[float]
    weights: dict[str, float]
    placed: list[str]
    """Node of each bucket."""

    def loads(self) -> list[float]:
        loads = [0.0] * (self.size.shards * self.size.buckets_per_shard)
        for bucket, rate in zip(self.buckets, self.rates, strict=True):
            loads[bucket] += rate
        return loads


def simulate(size: Size, *, slack: float, seed: int) -> dict[str, Any]:
    """Return the cost of placing, and the clients that each change moves.

    Args:
        size: How much of everything.
        slack: As of `predicted`.
        seed: The same gives the same, but for times.
    """
    random = Random(seed)  # noqa: S311 - not for secrets
    count = size.shards * size.buckets_per_shard
    names = [(f"tenant-{number % _TENANTS}", f"client-{number}") for number in range(size.clients)]
    began_at = perf_counter()
    buckets = [bucket_of(tenant, client_id, count) for tenant, client_id in names]
    seconds = perf_counter() - began_at
    rates = [min(_MOST_RATE, random.paretovariate(_PARETO)) for _ in names]
    weights = {f"node-{number:03}": 100.0 for number in range(size.nodes)}
    world = _World(size, slack, buckets, rates, weights, [])
    steps = [_step(world, "start")]
    world.weights["node-new"] = 100.0
    steps.append(_step(world, "a node joins"))
    gone = random.choice(sorted(world.weights))
    del world.weights[gone]
    steps.append(_step(world, "a node leaves"))
    for client in random.sample(range(size.clients), max(1, int(size.clients * _HOT))):
        rates[client] += _HOT_RATE
    steps.append(_step(world, "clients become hot"))
    for node in random.sample(sorted(world.weights), max(1, size.nodes // 10)):
        world.weights[node] = 50.0
    steps.append(_step(world, "a tenth of the nodes has half"))
    return {
        "nodes": size.nodes,
        "clients": size.clients,
        "buckets": count,
        "microseconds_per_client": seconds / size.clients * 1e6,
        "steps": steps,
    }


def _step(world: _World, name: str) -> dict[str, Any]:
    loads = world.loads()
    before = world.placed
    began_at = perf_counter()
    world.placed = place_buckets(
        world.size.shards, loads, world.weights, slack=world.slack, before=before
    )
    seconds = perf_counter() - began_at
    clients = Counter(world.buckets)
    total = world.size.clients
    moved = sum(clients[bucket] for bucket, old in enumerate(before) if old != world.placed[bucket])
    given = _given(loads, world.placed)
    bounds = bounds_of(sum(loads), world.weights, world.slack)
    places = place(world.size.shards, world.weights)
    home = sum(
        clients[bucket]
        for bucket, node in enumerate(world.placed)
        if places[bucket % world.size.shards].owner == node
    )
    return {
        "step": name,
        "moved_percent": moved / total * 100,
        "must_move_percent": _least(loads, before, bounds),
        "most_of_bound_percent": max(given.get(node, 0.0) / bounds[node] for node in bounds) * 100,
        "largest_bucket_of_bound_percent": max(loads) / min(bounds.values()) * 100,
        "home_percent": home / total * 100,
        "milliseconds": seconds * 1000,
    }


def _given(loads: Sequence[float], placed: Sequence[str]) -> dict[str, float]:
    given: dict[str, float] = {}
    for load, node in zip(loads, placed, strict=True):
        given[node] = given.get(node, 0.0) + load
    return given


def _least(loads: Sequence[float], before: Sequence[str], bounds: Mapping[str, float]) -> float:
    """Return how much of the load has to move: that of nodes that are gone or above their bound."""
    if not before:
        return 0.0
    given = _given(loads, before)
    surplus = sum(max(0.0, load - bounds.get(node, 0.0)) for node, load in given.items())
    return surplus / sum(loads) * 100
