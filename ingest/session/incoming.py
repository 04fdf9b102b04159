"""QoS 2 messages that one client sends: each is taken over once however often it is repeated.

    PUBLISH ──► storing ──stored──► stored (PUBREC sent) ──PUBREL──► gone (PUBCOMP sent)

The message is handed on when it arrives ("Method A" of the specification's figure 4.3): the
identifier is kept until PUBREL, and a repeated PUBLISH under it is not handed on again.
[MQTT5-4.3.3-10] [MQTT311-4.3.3-2] Whether the message expires meanwhile changes nothing.
[MQTT5-4.3.3-13]
"""

from enum import Enum, auto


class Arrival(Enum):
    """What a QoS 2 PUBLISH is to the server."""

    NEW = auto()
    """Hand it on; PUBREC when it is stored."""
    BEING_STORED = auto()
    """A repetition of one that is not stored yet: its PUBREC is still to come."""
    STORED = auto()
    """A repetition of a stored one: answer PUBREC again."""


class IncomingMessages:
    """The QoS 2 packet identifiers of one client that are between PUBLISH and PUBREL."""

    __slots__ = ("_stored",)

    def __init__(self) -> None:
        self._stored: dict[int, bool] = {}

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
        """Whether the log has not answered for some of them."""
        return not all(self._stored.values())

    def storing(self) -> list[int]:
        """Return those of which nobody knows yet whether the log has them."""
        return [packet_id for packet_id, stored in self._stored.items() if not stored]

    def held(self) -> list[int]:
        """Return those that are stored and wait for PUBREL."""
        return [packet_id for packet_id, stored in self._stored.items() if stored]

    def stored(self, packet_id: int) -> None:
        """Note that the message is durable; PUBREC is due."""
        self._stored[packet_id] = True

    def refused(self, packet_id: int) -> None:
        """Note that the message could not be stored; the identifier is free [MQTT5-4.3.3-9]."""
        self._stored.pop(packet_id, None)

    def receive_pubrel(self, packet_id: int) -> bool:
        """End the exchange; False when no PUBREC was sent under it (5.0: reason code 0x92).

        The identifier is free again. [MQTT5-4.3.3-12]
        """
        if not self._stored.get(packet_id):
            return False
        del self._stored[packet_id]
        return True
