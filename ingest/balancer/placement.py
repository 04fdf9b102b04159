"""The node that a client is placed on.

Of the four strategies only `predicted` is decided here; HAProxy carries out the others by weights.

`predicted` puts clients into *buckets*, by the CRC-32 that also chooses the shard of their session
(`mqlake.records.shards.shard_of`); HAProxy computes the same. The number of buckets is a multiple
of that of the shards, so bucket modulo shards is the shard, and a bucket's first choice is the
gateway that is to own its shard (`ingest.session.placement`): there a CONNECT waits for no other
gateway. The bound: no node is given more than its even part by weight and a slack, as in consistent
hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018). A bucket that does not fit goes
to the next of an order that is the bucket's own. A bucket stays where it is as long as that node is
there and within its bound: when a node goes, only its clients move, though owners of other shards
may change. When it comes, or is back, it gets the buckets whose first choice it is.
"""

from __future__ import annotations

from hashlib import blake2b
from math import frexp
from typing import TYPE_CHECKING, Final, Literal, get_args

from ingest.session.placement import place
from mqlake.records.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Strategy = Literal["round_robin", "least_connections", "weighted_cpu", "predicted"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)

_ROUNDING: Final = 1e-9


def bucket_of(tenant: str, client_id: str, buckets: int) -> int:
    """Return the bucket of a client; one without a client identifier has none."""
    return shard_of(tenant, client_id, buckets)


def place_buckets(
    shards: int,
    loads: Sequence[float],
    weights: Mapping[str, float],
    *,
    slack: float,
    before: Sequence[str] = (),
    given: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the node of each bucket, the same wherever it is computed.

    Args:
        shards: Shards of `mqlake.sessions`.
        loads: Load of each bucket, in any unit; their number is a multiple of `shards`.
        weights: The part of the load that each node is to have, above 0; at least one node.
        slack: A node has at most (1 + slack) times its even part. A bucket that fits nowhere goes
            where the bound is exceeded least.
        before: Node of each bucket until now; empty: none.
        given: Load that nodes have beside the buckets, of clients with a place of their own.

    Raises:
        ValueError: The number of buckets is no multiple of that of shards.
    """
    if len(loads) % shards:
        raise ValueError(f"{len(loads)} buckets are no multiple of {shards} shards")
    taken = dict.fromkeys(weights, 0.0) | dict(given or {})
    bounds = bounds_of(sum(loads) + sum(taken.values()), weights, slack)
    places = place(shards, weights)
    nodes = sorted(weights)
    chosen = [""] * len(loads)
    # Large ones first, as they fit least; classes of powers of two, so that small changes of loads
    # change no order.
    order = sorted(range(len(loads)), key=lambda one: (-frexp(loads[one])[1], one))
    joined = weights.keys() - set(before)
    # Small ones stay first: those that move for a bound are few, with much load.
    for bucket in reversed(order) if before else ():
        node, owner = before[bucket], places[bucket % shards].owner
        stays = node in weights and (owner == node or owner not in joined)
        if stays and taken[node] + loads[bucket] <= bounds[node] + _ROUNDING:
            taken[node] += loads[bucket]
            chosen[bucket] = node
    for bucket in order:
        if chosen[bucket]:
            continue
        load = loads[bucket]
        home = places[bucket % shards]
        for node in _preferences(bucket, home.owner, home.standby, nodes):
            if taken[node] + load <= bounds[node] + _ROUNDING:
                break
        else:
            node = min(nodes, key=lambda one: ((taken[one] + load) / weights[one], one))
        taken[node] += load
        chosen[bucket] = node
    return chosen


def bounds_of(load: float, weights: Mapping[str, float], slack: float) -> dict[str, float]:
    """Return how much each node may have of a load."""
    total = sum(weights.values())
    return {node: (1 + slack) * load * weight / total for node, weight in weights.items()}


def _preferences(
    bucket: int, owner: str, standby: str | None, nodes: Sequence[str]
) -> Iterator[str]:
    """Yield the nodes in the order of a bucket; most are placed with the first."""
    yield owner
    if standby is not None:
        yield standby
    for node in sorted(nodes, key=lambda name: _rank(bucket, name), reverse=True):
        if node not in (owner, standby):
            yield node


def _rank(bucket: int, node: str) -> bytes:
    return blake2b(f"bucket/{bucket}/{node}".encode(), digest_size=8).digest()
