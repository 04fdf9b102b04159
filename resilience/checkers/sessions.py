"""Sessions and connections: Session Present, one holder, flow control, packet identifiers."""

from typing import ClassVar

from resilience.checkers.base import Checker
from resilience.history import Operation
from resilience.world import Key, KnownConnection, KnownMessage, World


class SessionPresent(Checker):
    name: ClassVar[str] = "session-present"
    clause: ClassVar[str] = (
        "CONNACK says truly whether there is a session, and a session is kept "
        "[MQTT5-3.2.2-2] [MQTT5-3.2.2-3] [MQTT5-3.1.2-5] [MQTT311-3.2.2-2]"
    )
    promise: ClassVar[str] = "sessions_kept"

    def on_connect_ok(self, op: Operation) -> None:
        world = self.world
        if world.expected is None:
            self.unknown += 1
            return
        self.checked += 1
        if op["session_present"] != world.expected:
            kind = "session gone" if world.expected else "session out of nothing"
            before = world.connection.session
            start = before.line if before is not None and world.expected else 0
            self.blame(kind, start, world.connection.line, world.line)


class TwoHolders(Checker):
    name: ClassVar[str] = "two-holders"
    clause: ClassVar[str] = (
        "a second connection of a client identifier ends the first "
        "[MQTT5-3.1.4-3] [MQTT311-3.1.4-2]"
    )
    promise: ClassVar[str] = "one_holder"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._latest: dict[Key, KnownConnection] = {}
        self._taken: dict[tuple[str, int], KnownConnection] = {}
        self._invoked: dict[tuple[str, str], int] = {}
        self._blamed: set[tuple[str, int]] = set()

    def on_connect_ok(self, _op: Operation) -> None:
        connection = self.world.connection
        before = self._latest.get(connection.key)
        self._latest[connection.key] = connection
        if before is None or before.ok_line > connection.line:
            return
        if not before.end or before.end_line > connection.line:
            self.checked += 1
            self._taken[before.process, before.number] = connection

    def on_publish_invoke(self, op: Operation) -> None:
        if (op["process"], op["connection"]) in self._taken:
            self._invoked[op["process"], op["id"]] = self.world.line

    on_subscribe_invoke = on_publish_invoke
    on_unsubscribe_invoke = on_publish_invoke

    def on_publish_ok(self, op: Operation) -> None:
        message = self.world.message
        if self._taken and (message is None or message.qos):
            self._check(op)

    def on_subscribe_ok(self, op: Operation) -> None:
        if self._taken:
            self._check(op)

    on_unsubscribe_ok = on_subscribe_ok

    def _check(self, op: Operation) -> None:
        """An answer on a taken connection to a request from after the takeover."""
        taken = self._taken.get((op["process"], op["connection"]))
        invoked = self._invoked.pop((op["process"], op["id"]), 0)
        if taken is not None and invoked > taken.ok_line:
            self._blame_once(op, taken, invoked)

    def on_receive_ok(self, op: Operation) -> None:
        if not self._taken:
            return
        taken = self._taken.get((op["process"], op["connection"]))
        message = self.world.message
        if taken is not None and message is not None and message.line > taken.ok_line:
            self._blame_once(op, taken, message.line)

    def _blame_once(self, op: Operation, taken: KnownConnection, line: int) -> None:
        key = (op["process"], op["connection"])
        if key not in self._blamed:
            self._blamed.add(key)
            self.blame("both served", taken.line, taken.ok_line, line, self.world.line)


class ReceiveMaximum(Checker):
    name: ClassVar[str] = "receive-maximum"
    clause: ClassVar[str] = (
        "no more messages unacknowledged than the client's Receive Maximum [MQTT5-3.3.4-9]"
    )
    promise: ClassVar[str] = "receive_maximum"

    def on_receive_ok(self, op: Operation) -> None:
        """Keep outstanding exchanges, for the checker of packet identifiers too."""
        connection = self.world.connection
        message = self.world.message
        packet_id = op.get("packet_id")
        if not packet_id or message is None:
            return
        outstanding = connection.outstanding
        outstanding[packet_id] = (message, self.world.line)
        if connection.version != 5:
            return
        self.checked += 1
        if len(outstanding) > connection.receive_maximum:
            self.blame("too many", connection.line, *(line for _, line in outstanding.values()))

    def on_acknowledge_ok(self, op: Operation) -> None:
        self.world.connection.outstanding.pop(op["packet_id"], None)


class PacketId(Checker):
    """Runs before `ReceiveMaximum`, which notes the new holder of the identifier."""

    name: ClassVar[str] = "packet-id"
    clause: ClassVar[str] = (
        "a packet identifier in use is not given to another message "
        "[MQTT5-2.2.1-4] [MQTT311-2.3.1-4]"
    )
    promise: ClassVar[str] = "packet_ids"

    def on_receive_ok(self, op: Operation) -> None:
        packet_id = op.get("packet_id")
        message: KnownMessage | None = self.world.message
        if not packet_id or message is None:
            return
        self.checked += 1
        held = self.world.connection.outstanding.get(packet_id)
        if held is not None and held[0] is not message:
            self.blame("reused", held[1], self.world.line)
