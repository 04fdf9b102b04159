"""Messages that the router has given a gateway for a share group, computed as it chooses.

The choice depends on the log alone: on the message, and on the group's routes in force at its place
(design: share-groups, 50). So when the deliveries of a gateway are gone, the messages that it was
given can be computed (`share_routes.py` reads how the group was).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingest.session.groups.open_work import OpenWork, decode_work
from mqlake.errors import InvalidRecord
from mqlake.records.offsets import at
from mqlake.topics.sharing import ShareWeight, choose_gateway, decode_weight, encode_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

Weights = dict[str, ShareWeight]
"""By gateway."""

NOBODY: Final = 0
UNKNOWN: Final = -1


@dataclass(slots=True)
class Chosen:
    """The messages of a range that the router has given a gateway for a group.

    Attributes:
        gateway: Which.
        states: How the group was, one after the other; none of them is empty.
        begins: Per partition ascending offsets of `mqlake.inbound`; from each on the group was as a
            state says, counted from 1: 0 is without that gateway, -1 not known.
        in_flight: Messages in the range that sessions have; they are theirs.
    """

    gateway: str
    states: list[Weights]
    begins: list[list[tuple[int, int]]]
    in_flight: OpenWork = field(default_factory=OpenWork)

    def weights(self, partition: int, offset: int) -> Weights | None:
        """Return how the group was for a message: empty without the gateway, None if unknown."""
        begins = self.begins[partition] if partition < len(self.begins) else []
        found = bisect_right(begins, offset, key=lambda one: one[0]) - 1
        state = begins[found][1] if found >= 0 else UNKNOWN
        if state == UNKNOWN:
            return None
        return self.states[state - 1] if state != NOBODY else {}

    def narrowed(self, end: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the least range in which the gateway may have been given messages.

        Args:
            end: End of the range that was looked at, per partition.

        Returns:
            Start and end per partition, both 0 where there is none.
        """
        starts, ends = [], []
        for partition, begins in enumerate(self.begins):
            places = [*begins, (at(end, partition), NOBODY)]
            own = [number for number, (_, state) in enumerate(begins) if state != NOBODY]
            starts.append(places[own[0]][0] if own else 0)
            ends.append(places[own[-1] + 1][0] if own else 0)
        return starts, ends

    def has(
        self, shared_filter: str, topic_name: str, publisher: str, partition: int, offset: int
    ) -> bool | None:
        """Tell whether a message was given to the gateway; None: it may have been.

        Args:
            shared_filter: Shared filter of the group.
            topic_name: Topic of the message, which the filter matches.
            publisher: Client identifier.
            partition: Partition of the message in `mqlake.inbound`.
            offset: Offset of the message there.
        """
        if (partition, offset) in self.in_flight:
            return False
        weights = self.weights(partition, offset)
        if not weights:
            return None if weights is None else False
        chosen = choose_gateway(shared_filter, weights, topic_name, publisher, partition, offset)
        return chosen == self.gateway

    def encode(self) -> dict[str, Any]:
        return {
            "gateway": self.gateway,
            "states": [
                {gateway: encode_weight(one).decode() for gateway, one in state.items()}
                for state in self.states
            ],
            "begins": self.begins,
            "in_flight": self.in_flight.encode(),
        }


def decode_chosen(found: dict[str, Any]) -> Chosen:
    """Undo `Chosen.encode`.

    Raises:
        InvalidRecord: A member is missing or malformed.
    """
    try:
        states = [
            {str(gateway): decode_weight(one.encode()) for gateway, one in state.items()}
            for state in found["states"]
        ]
        begins = [[(int(offset), int(state)) for offset, state in one] for one in found["begins"]]
        in_flight = decode_work(found["in_flight"])
        gateway = str(found["gateway"])
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InvalidRecord(f"messages chosen for a gateway are malformed: {exc}") from exc
    if any(not UNKNOWN <= state <= len(states) for one in begins for _, state in one):
        raise InvalidRecord(f"messages chosen by another state than the {len(states)} there are")
    return Chosen(gateway, states, begins, in_flight)
