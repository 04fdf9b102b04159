"""QoS 2 messages that one client sends: each is taken over once however often it is repeated.

    PUBLISH ──► storing ──stored──► stored (PUBREC sent) ──PUBREL──► gone (PUBCOMP sent)

The message is handed on when it arrives ("Method A" of the specification's figure 4.3): the
identifier is kept until PUBREL, and a repeated PUBLISH under it is not handed on again.
[MQTT5-4.3.3-10] [MQTT311-4.3.3-2] Whether the message expires meanwhile changes nothing.
[MQTT5-4.3.3-13]
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from mqlake.records.offsets import earliest

if TYPE_CHECKING:
    from collections.abc import Sequence


class Arrival(Enum):
    """State of a QoS 2 PUBLISH at the server."""

    NEW = auto()
    """Hand it on; PUBREC when it is stored."""
    BEING_STORED = auto()
    """A repetition of one that is not stored yet: its PUBREC is still to come."""
    STORED = auto()
    """A repetition of a stored one: answer PUBREC again."""


class IncomingMessages:
    """The QoS 2 packet identifiers of one client that are between PUBLISH and PUBREL."""

    __slots__ = ("_looked_for", "_stored")

    def __init__(self) -> None:
        self._stored: dict[int, bool] = {}
        # Those that the log has not answered for: where they may begin, by partition. Made when
        # there is one.
        self._looked_for: dict[int, Sequence[int]] | None = None

    def __len__(self) -> int:
        return len(self._stored)

    def restore(self, packet_id: int) -> None:
        """Take back a message that was stored on an earlier connection."""
        self._stored[packet_id] = True

    def receive_publish(self, packet_id: int) -> Arrival:
        stored = self._stored.get(packet_id)
        if stored is None:
            self._stored[packet_id] = False
            return Arrival.NEW
        return Arrival.STORED if stored else Arrival.BEING_STORED

    @property
    def is_storing(self) -> bool:
        """Tell whether the log has not answered for some of them."""
        return not all(self._stored.values())

    def storing(self) -> list[int]:
        """Return those of which it is unknown yet whether the log has them."""
        return [packet_id for packet_id, stored in self._stored.items() if not stored]

    def held(self) -> list[int]:
        """Return those that are stored and wait for PUBREL."""
        return [packet_id for packet_id, stored in self._stored.items() if stored]

    def look_for(self, packet_id: int, starts: Sequence[int]) -> None:
        """Note that the log did not answer: the message may be there, from these offsets on."""
        if self._looked_for is None:
            self._looked_for = {}
        self._looked_for[packet_id] = starts

    def storing_from(self, next_offsets: Sequence[int]) -> list[int]:
        """Return per partition an offset below which none of `storing` is; empty without any.

        The log answers in the order of each partition, so those that wait for their answer are not
        below the offsets that it has answered for; those that are looked for may be.

        Args:
            next_offsets: The first that the log has not answered for.
        """
        if not self.is_storing:
            return []
        starts = (self._looked_for or {}).values()
        return earliest(next_offsets, *starts)

    def stored(self, packet_id: int) -> None:
        """Note that the message is durable; PUBREC is due."""
        self._stored[packet_id] = True
        self._found(packet_id)

    def refused(self, packet_id: int) -> None:
        """Note that the message could not be stored; the identifier is free [MQTT5-4.3.3-9]."""
        self._stored.pop(packet_id, None)
        self._found(packet_id)

    def _found(self, packet_id: int) -> None:
        if self._looked_for is not None:
            self._looked_for.pop(packet_id, None)
            self._looked_for = self._looked_for or None

    def receive_pubrel(self, packet_id: int) -> bool:
        """End the exchange; False when no PUBREC was sent under it (5.0: reason code 0x92).

        The identifier is free again. [MQTT5-4.3.3-12]
        """
        if not self._stored.get(packet_id):
            return False
        del self._stored[packet_id]
        return True
