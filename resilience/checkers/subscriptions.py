"""Messages that a client must not get: expired, unsubscribed, of another tenant, not its right."""

from typing import ClassVar

from resilience.checkers.base import Checker
from resilience.history import Operation
from resilience.topics import matches
from resilience.world import SECOND, World


class Expired(Checker):
    name: ClassVar[str] = "expired"
    clause: ClassVar[str] = (
        "a message is not delivered after its Message Expiry Interval [MQTT5-3.3.2-5]"
    )
    promise: ClassVar[str] = "expiry"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tolerance = int(world.header.get("expiry_tolerance_seconds", 2) * SECOND)

    def on_receive_ok(self, op: Operation) -> None:
        message = self.world.message
        if message is None or message.expiry is None:
            return
        # With DUP the delivery had begun before; without PUBACK its start is not known.
        if op.get("dup") or message.state != "ok" or message.resent:
            self.unknown += 1
            return
        self.checked += 1
        if self.world.time > message.done_time + message.expiry * SECOND + self.tolerance:
            self.blame("expired", message.line, message.done_line, self.world.line)


class AfterUnsuback(Checker):
    name: ClassVar[str] = "after-unsuback"
    clause: ClassVar[str] = (
        "a message published after UNSUBACK is not delivered any more [MQTT5-3.10.4-2]"
    )
    promise: ClassVar[str] = "unsubscribe"

    def on_receive_ok(self, op: Operation) -> None:
        message, session = self.world.message, self.world.session
        if message is None or session is None or op.get("retain") or message.is_will:
            return
        subscriptions = session.matching(message.topic)
        if not any(sub.unsubscribed_line for sub in subscriptions):
            return
        self.checked += 1
        ended = 0
        for sub in subscriptions:
            if not 0 < sub.unsubscribed_line < message.line:
                return
            ended = max(ended, sub.unsubscribed_line)
        self.blame("delivered", ended, message.line, self.world.line)


class Crossing(Checker):
    name: ClassVar[str] = "crossing"
    clause: ClassVar[str] = "no message crosses a tenant, or a right that was taken away before it"
    promise: ClassVar[str] = "isolation"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rights: dict[tuple[str, str, str], tuple[bool, int]] = {}
        """By client, action and filter: allowed, and since which line that is confirmed."""
        self._shut: dict[str, int] = {}
        """By tenant: since which line it is confirmed that it is shut."""

    def on_rights_invoke(self, op: Operation) -> None:
        # While the change is on its way either may hold.
        self._rights.pop((op["client_id"], op["action"], op["filter"]), None)

    def on_rights_ok(self, op: Operation) -> None:
        key = (op["client_id"], op["action"], op["filter"])
        self._rights[key] = (op["allowed"], self.world.line)

    def on_tenant_invoke(self, op: Operation) -> None:
        self._shut.pop(op["tenant"], None)

    def on_tenant_ok(self, op: Operation) -> None:
        if not op.get("is_open"):
            self._shut[op["tenant"]] = self.world.line

    def on_connect_ok(self, _op: Operation) -> None:
        connection = self.world.connection
        shut = self._shut.get(connection.key[0])
        if shut is not None:
            self.checked += 1
            if shut < connection.line:
                self.blame("tenant shut", shut, connection.line, self.world.line)

    def on_receive_ok(self, op: Operation) -> None:
        message = self.world.message
        if message is None:
            return
        connection = self.world.connection
        if self._shut.get(connection.key[0], message.line) < message.line:
            self.checked += 1
            shut = self._shut[connection.key[0]]
            self.blame("tenant shut", shut, message.line, self.world.line)
            return
        if not self._rights and not connection.key[0]:
            return
        self.checked += 1
        if message.connection.key[0] != connection.key[0]:
            self.blame("tenant", message.line, connection.line, self.world.line)
            return
        for (client, action, topic_filter), (allowed, line) in self._rights.items():
            holder = connection if action == "subscribe" else message.connection
            taken = not allowed and client == holder.key[1] and line < message.line
            if taken and not message.is_will and matches(topic_filter, op["topic"]):
                self.blame(f"right to {action}", line, message.line, self.world.line)
                return
