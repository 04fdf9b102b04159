"""Wills: once, when a connection ends without DISCONNECT, not before, and never otherwise."""

from typing import ClassVar

from resilience.checkers.base import Checker
from resilience.checkers.delivery import HistorySubscriptions, is_for
from resilience.history import Operation
from resilience.world import NOTICED, SECOND, KnownConnection, KnownMessage, World


class WillKept(Checker):
    name: ClassVar[str] = "will"
    clause: ClassVar[str] = (
        "a will is published once, after its delay, if and only if its connection broke "
        "[MQTT5-3.1.2-8] [MQTT5-3.1.2-10] [MQTT5-3.1.3-9] [MQTT311-3.1.2-8]"
    )
    promise: ClassVar[str] = "wills"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._wills: list[KnownConnection] = []
        self._seen: dict[int, int] = {}
        """The first delivery of each will, by the number of its message."""
        self._received: dict[tuple[int, int], int] = {}
        self._again: dict[tuple[str, str], list[KnownConnection]] = {}
        self._served: set[int] = set()
        self._invoked: dict[tuple[str, str], int] = {}
        self.grace = int(world.header.get("will_grace_seconds", 5) * SECOND)

    def on_connect_invoke(self, _op: Operation) -> None:
        connection = self.world.connection
        self._again.setdefault(connection.key, []).append(connection)

    def on_connect_ok(self, _op: Operation) -> None:
        if self.world.connection.will is not None:
            self._wills.append(self.world.connection)

    def on_receive_ok(self, op: Operation) -> None:
        message = self.world.message
        if message is None or not message.is_will:
            return
        connection = message.connection
        line = self.world.line
        first = message.number not in self._seen
        self._seen.setdefault(message.number, line)
        session = self.world.session
        if session is None or op.get("retain"):
            return
        key = (session.number, message.number)
        before = self._received.setdefault(key, line)
        repeats = before != line and not op.get("dup")
        if repeats and self.world.arrivals > len(session.matching(message.topic)):
            self.blame("doubled", connection.line, before, line)
        if not first:
            return
        self.checked += 1
        if connection.end == "disconnect" and connection.confirmed:
            if not self.world.struck(connection.end_time, self.world.time):
                self.blame("after DISCONNECT", connection.line, connection.end_line, line)
            return
        self._check_delay(connection, message, line)

    def _check_delay(self, connection: KnownConnection, message: KnownMessage, line: int) -> None:
        delay = min(connection.will_delay, connection.expiry) * SECOND
        if not delay or not connection.ok_line:
            return
        later = self._again[connection.key]
        if any(other.clean and other.line > connection.line for other in later):
            return  # A clean start ends the session, and with it the delay [MQTT5-3.1.3-9].
        if self.world.time < connection.served_time + delay - NOTICED // 2:
            self.blame("too early", connection.line, connection.served_line, line)

    def on_publish_invoke(self, op: Operation) -> None:
        self._note(op)

    def on_publish_ok(self, op: Operation) -> None:
        message = self.world.message
        if message is not None and message.qos and message.connection is self.world.connection:
            self._check_served(op)

    on_subscribe_invoke = on_publish_invoke
    on_unsubscribe_invoke = on_publish_invoke

    def on_subscribe_ok(self, op: Operation) -> None:
        self._check_served(op)

    on_unsubscribe_ok = on_subscribe_ok

    def _note(self, op: Operation) -> None:
        if self.world.connection.will is not None:
            self._invoked[op["process"], op["id"]] = self.world.line

    def _check_served(self, op: Operation) -> None:
        """The broker answers on a connection whose will has been delivered before the request."""
        connection = self.world.connection
        will = connection.will
        if will is None:
            return
        invoked = self._invoked.pop((op["process"], op["id"]), 0)
        seen = self._seen.get(will.number)
        if seen is not None and seen < invoked and will.number not in self._served:
            self._served.add(will.number)
            self.blame("of a served client", connection.line, seen, invoked, self.world.line)

    def finish(self) -> None:
        subscriptions = HistorySubscriptions(self.world)
        for connection in self._wills:
            will = connection.will
            if will is None or connection.end != "closed":
                continue
            for sub in subscriptions.of(will.topic):
                if sub.share or not sub.qos or not will.qos or not is_for(sub, will):
                    continue
                if not sub.holds(connection.line, self.world.drain_line) or not sub.session.ready:
                    continue
                self._check_due(connection, will, sub.session.got, sub.ok_line)

    def _check_due(
        self, connection: KnownConnection, will: KnownMessage, got: dict[int, int], sub_line: int
    ) -> None:
        if will.number in got:
            return
        delay = min(connection.will_delay, connection.expiry) * SECOND
        due = connection.end_time + delay + self.grace
        back = [
            other
            for other in self._again[connection.key]
            if other.line > connection.line and other.time < due and delay
        ]
        survives = self.world.header.get("promises", {}).get("wills_survive_faults", False)
        struck = not survives and self.world.struck(
            connection.served_time, connection.end_time + self.grace
        )
        if back or struck or due > self.world.drain_time:
            self.unknown += 1
        else:
            self.checked += 1
            self.blame("missing", connection.line, connection.end_line, sub_line)
