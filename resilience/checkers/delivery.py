"""Messages on their way: lost, never acknowledged, phantom, doubled, out of order."""

from typing import ClassVar

from resilience.checkers.base import Checker
from resilience.history import Operation
from resilience.topics import matches
from resilience.world import SECOND, KnownMessage, KnownSubscription, Session, World


class HistorySubscriptions:
    """All subscriptions of a history by topic; made once, at its end."""

    def __init__(self, world: World) -> None:
        self._exact: dict[str, list[KnownSubscription]] = {}
        self._wild: list[KnownSubscription] = []
        self._topics: dict[str, list[KnownSubscription]] = {}
        for session in world.sessions:
            for subscription in session.all:
                if "+" in subscription.topic_filter or "#" in subscription.topic_filter:
                    self._wild.append(subscription)
                else:
                    self._exact.setdefault(subscription.topic_filter, []).append(subscription)

    def of(self, topic: str) -> list[KnownSubscription]:
        found = self._topics.get(topic)
        if found is None:
            found = self._exact.get(topic, []) + [
                sub for sub in self._wild if matches(sub.topic_filter, topic)
            ]
            self._topics[topic] = found
        return found


def is_shared(session: Session, topic: str) -> bool:
    """Tell whether a share group may have sent this topic to the session."""
    return session.has_share and any(sub.share for sub in session.matching(topic))


def is_for(subscription: KnownSubscription, message: KnownMessage) -> bool:
    """Tell whether tenant and No Local let the message through."""
    publisher = message.connection.key
    key = subscription.session.key
    return publisher[0] == key[0] and not (subscription.no_local and publisher == key)


class Lost(Checker):
    name: ClassVar[str] = "lost"
    clause: ClassVar[str] = (
        "an acknowledged message reaches each subscription that was acknowledged before it "
        "[MQTT5-4.3.2] [MQTT5-4.3.3] [MQTT5-4.5.0-1]"
    )
    promise: ClassVar[str] = "no_loss"

    def finish(self) -> None:
        world = self.world
        subscriptions = HistorySubscriptions(world)
        drain = world.drain_line
        for message in world.messages.values():
            if not message.qos or message.state != "ok" or message.is_will or message.empty:
                continue
            number = message.number
            for sub in subscriptions.of(message.topic):
                if sub.share or not sub.qos or not 0 < sub.ok_line < message.line:
                    continue
                session = sub.session
                if number in session.got or number in session.retained:
                    self.checked += 1
                elif not is_for(sub, message):
                    continue
                elif self._is_open(message, sub, drain):
                    self.unknown += 1
                else:
                    self.checked += 1
                    self.blame("lost", sub.ok_line, message.line, message.done_line)

    def _is_open(self, message: KnownMessage, sub: KnownSubscription, drain: int) -> bool:
        if not drain or message.line > drain or not sub.session.ready:
            return True
        if 0 < sub.end_line < drain:
            return True
        if message.expiry is not None:
            passed = self.world.drain_time - message.time
            if passed > (message.expiry - 1) * SECOND:
                return True
        return self.world.right_changed(message, sub)


class NeverAcknowledged(Checker):
    name: ClassVar[str] = "never-acknowledged"
    clause: ClassVar[str] = (
        "PUBLISH, SUBSCRIBE and UNSUBSCRIBE are answered "
        "[MQTT5-4.3.2-4] [MQTT5-4.3.3-8] [MQTT5-3.8.4-1] [MQTT5-3.10.4-4]"
    )
    promise: ClassVar[str] = "answers"

    def on_publish_ok(self, _op: Operation) -> None:
        if self.world.message is not None and self.world.message.qos:
            self.checked += 1

    on_publish_fail = on_publish_ok

    def on_subscribe_ok(self, _op: Operation) -> None:
        self.checked += 1

    on_subscribe_fail = on_subscribe_ok
    on_unsubscribe_ok = on_subscribe_ok
    on_unsubscribe_fail = on_subscribe_ok

    def on_publish_info(self, _op: Operation) -> None:
        self.unknown += 1

    on_subscribe_info = on_publish_info
    on_unsubscribe_info = on_publish_info

    def on_drain_ok(self, _op: Operation) -> None:
        world = self.world
        for process, messages in world.open.items():
            connection = world.current[process]
            for message in messages.values():
                if connection.end or not connection.ok_line:
                    self.unknown += 1
                else:
                    self.checked += 1
                    self.blame("publish", message.line, connection.ok_line)
        for op, connection, line in world.pending.values():
            if connection.end or not connection.ok_line:
                self.unknown += 1
            else:
                self.checked += 1
                self.blame(op["f"], line)


class Phantom(Checker):
    name: ClassVar[str] = "phantom"
    clause: ClassVar[str] = (
        "a delivered message was published, on this topic, with this payload, and asked for "
        "[MQTT5-3.3.2-3] [MQTT5-4.5.0-1]"
    )
    promise: ClassVar[str] = "no_phantoms"

    def on_receive_ok(self, op: Operation) -> None:
        world = self.world
        message = world.message
        if op["id"] == "":
            return  # An empty payload, which clears a retained message, has no room for a name.
        self.checked += 1
        if op.get("damaged"):
            self.blame("damaged", world.line)
        elif message is None:
            self.blame("never sent", world.line)
        elif message.topic != op["topic"]:
            self.blame("another topic", message.line, world.line)
        elif world.session is not None and not world.session.matching(op["topic"]):
            self.blame("not subscribed", message.line, world.line)


class DuplicateQos2(Checker):
    name: ClassVar[str] = "duplicate-qos2"
    clause: ClassVar[str] = "QoS 2 is delivered exactly once [MQTT5-4.3.3] [MQTT311-4.3.3]"
    promise: ClassVar[str] = "exactly_once"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._first: dict[tuple[int, int], int] = {}

    def on_receive_ok(self, op: Operation) -> None:
        world = self.world
        message, session, count = world.message, world.session, world.arrivals
        if op["qos"] != 2 or not count or message is None or session is None:
            return
        if count == 1:
            self.checked += 1
            self._first[session.number, message.number] = world.line
            return
        if message.unsure or session.moved:
            self.unknown += 1
        elif count > len(session.matching(message.topic)) and not is_shared(session, message.topic):
            first = self._first.get((session.number, message.number), 0)
            self.blame("doubled", message.line, first, world.line)


class DuplicateWithoutDup(Checker):
    name: ClassVar[str] = "duplicate-without-dup"
    clause: ClassVar[str] = (
        "a repeated PUBLISH has DUP set, one of QoS 0 is not repeated "
        "[MQTT5-3.3.1-1] [MQTT5-3.3.1-2] [MQTT5-4.3.1]"
    )
    promise: ClassVar[str] = "dup_flag"

    def on_receive_ok(self, op: Operation) -> None:
        world = self.world
        message, session, count = world.message, world.session, world.arrivals
        if not count or message is None or session is None:
            return
        self.checked += 1
        if not op["qos"] and op.get("dup"):
            self.blame("DUP of QoS 0", world.line)
        if count == 1 or op.get("dup") or message.is_will:
            return
        if count <= len(session.matching(message.topic)) or is_shared(session, message.topic):
            return
        # A late message on a connection that was taken over was not sent again there.
        if message.resent or world.connection is not session.connection:
            self.unknown += 1
        else:
            self.blame("repeated" if op["qos"] else "QoS 0 repeated", message.line, world.line)


class OrderKept(Checker):
    """First arrivals come in the order of publishing, and so do those on each connection.

    Counted for each publisher, topic and QoS. A message that its publisher had to send again may be
    late; across connections of the publisher QoS 0 has no order.
    """

    name: ClassVar[str] = "order"
    clause: ClassVar[str] = (
        "messages of one publisher, topic and QoS come in their order [MQTT5-4.6.0-5] [MQTT5-4.6.0]"
    )
    promise: ClassVar[str] = "order"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._latest: dict[tuple[object, ...], tuple[int, int, int]] = {}
        self._here: dict[tuple[object, ...], tuple[int, int, int]] = {}

    def on_receive_ok(self, op: Operation) -> None:
        world = self.world
        message, session, count = world.message, world.session, world.arrivals
        if not count or message is None or session is None or message.is_will:
            return
        topic = message.topic
        if is_shared(session, topic) or world.connection is not session.connection:
            return
        from_connection = 0 if message.qos else message.connection.number
        stream = (
            session.number,
            message.process,
            from_connection,
            topic,
            message.qos,
            op["qos"],
        )
        if count == 1:
            self.checked += 1
            if self._is_late(self._latest, stream, message):
                self.blame("first arrival", *self._witness(self._latest[stream], message))
                return
        # Copies through several filters have no order among each other.
        if len(session.matching(topic)) == 1:
            here = (*stream, world.connection.process, world.connection.number)
            if self._is_late(self._here, here, message) and count > 1:
                self.blame("repeated in another order", *self._witness(self._here[here], message))

    def _is_late(
        self,
        latest: dict[tuple[object, ...], tuple[int, int, int]],
        stream: tuple[object, ...],
        message: KnownMessage,
    ) -> bool:
        """Note the message; tell whether a later one has come before it."""
        last = latest.get(stream)
        if last is None or message.number >= last[0]:
            latest[stream] = (message.number, message.line, self.world.line)
            return False
        return not message.resent

    def _witness(
        self, last: tuple[int, int, int], message: KnownMessage
    ) -> tuple[int, int, int, int]:
        return message.line, last[1], last[2], self.world.line


class SubackNotRouted(Checker):
    """Messages that another node took after SUBACK, and that the subscription did not get.

    Looked at is the gap between SUBACK and the first message of that node: what is missing later is
    the matter of `lost`. QoS 0 counts while nothing has been disturbed.
    """

    name: ClassVar[str] = "suback-not-routed"
    clause: ClassVar[str] = (
        "after SUBACK the messages of every node reach the subscription [MQTT5-3.8.4] [MQTT5-4.5.0]"
    )
    promise: ClassVar[str] = "suback_means_routed"

    def finish(self) -> None:
        world = self.world
        subscriptions = HistorySubscriptions(world)
        first: dict[tuple[int, int, str], int] = {}
        rows: list[tuple[KnownSubscription, KnownMessage, bool]] = []
        for message in world.messages.values():
            node = message.connection.node
            if message.is_will or message.empty or message.expiry is not None:
                continue
            for sub in subscriptions.of(message.topic):
                if sub.share or sub.connection.node == node or not is_for(sub, message):
                    continue
                if not sub.holds(message.line, world.drain_line) or not sub.session.ready:
                    continue
                came = message.number in sub.session.got
                if came:
                    first.setdefault((sub.session.number, sub.line, node), message.number)
                rows.append((sub, message, came))
        for sub, message, came in rows:
            gap = first.get((sub.session.number, sub.line, message.connection.node))
            if came and gap == message.number:
                self.checked += 1
            elif not came and (gap is None or message.number < gap):
                if message.line > world.drain_line or not self._is_due(message, sub):
                    self.unknown += 1
                else:
                    self.checked += 1
                    self.blame("not routed", sub.ok_line, message.line, message.done_line)

    def _is_due(self, message: KnownMessage, sub: KnownSubscription) -> bool:
        if message.state != "ok" or self.world.right_changed(message, sub):
            return False
        if message.qos and sub.qos:
            return True
        calm = not self.world.faults and sub.session.connection is sub.connection
        publisher = message.connection
        return calm and (not publisher.end or publisher.end_line > self.world.drain_line)
