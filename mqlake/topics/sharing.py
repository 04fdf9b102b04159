"""The choice of a member of a share group for a message (5.0: 4.8.2 leaves it to the server).

In two steps: the router chooses a gateway, as `choose_gateway` says, and the gateway one of its
members. The twin of the router's choice is in `ShareGroup.java`; both pass the same
generated cases. It depends on the message and on the routes alone: the router repeats itself after
a crash, and must then say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from zlib import crc32

from mqlake.errors import InvalidRecord

_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiples of it spread evenly, at any distance."""


class ShareStrategy(StrEnum):
    """How messages are spread over the members."""

    ROUND_ROBIN = "round_robin"
    """To each in turn."""
    RANDOM = "random"
    STICKY = "sticky"
    """Always the same, as long as it is there."""
    HASH_TOPIC = "hash_topic"
    """The same for a topic, while the members stay the same."""
    HASH_CLIENT_ID = "hash_client_id"
    """The same for a publisher, while the members stay the same."""
    LAST_RESORT = "last_resort"
    """No setting: of the way to other sites, that counts while no gateway here has a member."""


@dataclass(slots=True, frozen=True)
class ShareWeight:
    """Weight of a gateway in the route of a share group.

    As text: the three fields with spaces between; a number alone is a count of members.
    """

    members: int
    strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN
    since_ms: int = 0
    """When the gateway joined the group: the strategy of the first one counts for all."""


def encode_weight(weight: ShareWeight) -> bytes:
    return f"{weight.members} {weight.strategy.value} {weight.since_ms}".encode("ascii")


def decode_weight(value: bytes) -> ShareWeight:
    """Read the value of a share group's route.

    Raises:
        InvalidRecord: Not of the form above.
    """
    try:
        members, *others = value.decode("ascii").split(" ")
        if not others:
            return ShareWeight(int(members))
        strategy, since_ms = others
        return ShareWeight(int(members), ShareStrategy(strategy), int(since_ms))
    except ValueError as exc:
        raise InvalidRecord(f"value of a shared route is {value!r}") from exc


def choose_gateway(
    shared_filter: str,
    weights: Mapping[str, ShareWeight],
    topic_name: str,
    publisher: str,
    partition: int,
    offset: int,
) -> str:
    """Return the gateway that gets a message, in proportion to its members.

    Args:
        shared_filter: With its `$share/<name>/`.
        weights: By gateway; none is without members.
        topic_name: Topic of the message.
        publisher: Client identifier.
        partition: Partition of the message in `mqlake.inbound`.
        offset: Offset of the message there.
    """
    own = {
        gateway: weight
        for gateway, weight in weights.items()
        if weight.strategy is not ShareStrategy.LAST_RESORT
    }
    weights = own or weights
    first = min(weights, key=lambda gateway: (weights[gateway].since_ms, gateway))
    strategy = weights[first].strategy
    total = sum(weight.members for weight in weights.values())
    salt = crc32(shared_filter.encode()) << 32
    if strategy is ShareStrategy.STICKY:
        return first
    if strategy in (ShareStrategy.ROUND_ROBIN, ShareStrategy.LAST_RESORT):
        turn = (offset * _GOLDEN + mix((partition + 1) ^ salt)) & _MASK
        pick = ((turn >> 33) * total) >> 31
    elif strategy is ShareStrategy.RANDOM:
        pick = mix(mix(partition + 1) ^ offset ^ salt) % total
    else:
        value = topic_name if strategy is ShareStrategy.HASH_TOPIC else publisher
        pick = mix(crc32(value.encode()) ^ salt) % total
    for gateway in sorted(weights):
        pick -= weights[gateway].members
        if pick < 0:
            return gateway
    raise ValueError("share group without members")


def choose_member(strategy: ShareStrategy, topic_name: str, publisher: str, members: int) -> int:
    """Return which of a gateway's members a hash chooses.

    Its bits have nothing to do with those that have chosen the gateway.
    """
    value = topic_name if strategy is ShareStrategy.HASH_TOPIC else publisher
    return mix(crc32(value.encode()) + _GOLDEN) % members


def mix(value: int) -> int:
    """Return the finalizer of SplitMix64: neighbouring values give unrelated results."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
