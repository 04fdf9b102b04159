"""A snapshot: everything that proxies need, and its version.

The same configuration is the same version (SHA-256 of its canonical JSON), wherever and whenever it
was made. A node has a *slot*, a server of HAProxy that was declared beforehand: it keeps it while
it is there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, slots=True, order=True)
class PlacedNode:
    """A node as proxies know it."""

    name: str
    address: str
    """IPv4 or IPv6."""
    ports: tuple[tuple[str, int], ...]
    """Pairs of kind (`mqtt`, `mqtts`, `ws`, `wss`; `mqtt+proxy`, … with the PROXY protocol) and
    port, sorted."""
    weight: int
    takes_clients: bool
    slot: int
    """From 1."""


@dataclass(frozen=True)
class Snapshot:
    """State that all proxies are to have."""

    nodes: tuple[PlacedNode, ...] = ()
    """By name."""
    buckets: tuple[int, ...] = ()
    """Slot of each bucket (`predicted`); empty with other strategies."""
    talkers: tuple[tuple[str, int], ...] = ()
    """Slot of each client that has a place of its own, by `talks.key_of`, sorted."""

    @cached_property
    def version(self) -> str:
        return sha256(self.encode()).hexdigest()

    @property
    def by_slot(self) -> dict[int, PlacedNode]:
        return {node.slot: node for node in self.nodes}

    def encode(self) -> bytes:
        """Return canonical JSON."""
        nodes = [asdict(node) for node in sorted(self.nodes)]
        members = {"nodes": nodes, "buckets": self.buckets, "talkers": dict(self.talkers)}
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Undo `encode`.

        Raises:
            InvalidRecord: It is no snapshot.
        """
        try:
            found = json.loads(data)
            nodes = sorted(_decode_node(node) for node in found["nodes"])
            buckets = tuple(int(slot) for slot in found["buckets"])
            # One of before clients had places of their own has none of them.
            own = dict(found.get("talkers", {}))
            talkers = tuple(sorted((str(key), int(slot)) for key, slot in own.items()))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise InvalidRecord(f"snapshot is malformed: {exc!r}") from exc
        return cls(tuple(nodes), buckets, talkers)


def _decode_node(node: Any) -> PlacedNode:
    ports = tuple((str(kind), int(port)) for kind, port in node["ports"])
    return PlacedNode(
        str(node["name"]),
        str(node["address"]),
        ports,
        int(node["weight"]),
        bool(node["takes_clients"]),
        int(node["slot"]),
    )


def assign_slots(
    names: Collection[str], before: Mapping[str, int], slots: int
) -> tuple[dict[str, int], list[str]]:
    """Return the slot of each node, and the nodes for which there is none.

    A node keeps its slot. A new one gets the lowest that is free.

    Args:
        names: Names of the nodes that are there.
        before: Slots until now, also of nodes that are gone.
        slots: How many there are, numbered from 1.
    """
    kept = {name: slot for name, slot in before.items() if name in names and slot <= slots}
    new = sorted(name for name in names if name not in kept)
    taken = set(kept.values())
    free = [slot for slot in range(1, slots + 1) if slot not in taken]
    kept.update(zip(new, free, strict=False))
    return kept, new[len(free) :]
