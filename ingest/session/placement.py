"""The owner of each shard among gateways: the same answer wherever it is computed.

Rendezvous hashing (Thaler and Ravishankar, 1998): each gateway has a rank for each shard by a hash
of both, so a gateway that comes or goes moves few shards. No gateway is given more than its even
part, rounded up: with 16 shards plain ranks would give one gateway twice as many as another.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection


class ShardPlacement(NamedTuple):
    """The owner that a shard is to have, and its standby, which reads it to take over at once."""

    owner: str
    standby: str | None
    """None when there is only one gateway."""


def place(shards: int, gateways: Collection[str]) -> list[ShardPlacement]:
    """Return the placement of each shard.

    Args:
        shards: How many there are.
        gateways: Names of those that can own one; at least one.

    Cost: O(shards x gateways), computed when a gateway comes or goes.
    """
    most = -(-shards // len(gateways))
    owned = dict.fromkeys(gateways, 0)
    stood_by = dict.fromkeys(gateways, 0)
    places = []
    for shard in range(shards):
        ranked = sorted(gateways, key=lambda name: _rank(shard, name), reverse=True)
        owner = next(name for name in ranked if owned[name] < most)
        owned[owner] += 1
        others = [name for name in ranked if name != owner]
        standby = next((name for name in others if stood_by[name] < most), None)
        if standby is None and others:
            standby = others[0]
        if standby is not None:
            stood_by[standby] += 1
        places.append(ShardPlacement(owner, standby))
    return places


def _rank(shard: int, gateway: str) -> bytes:
    return blake2b(f"{shard}/{gateway}".encode(), digest_size=8).digest()
