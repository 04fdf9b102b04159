"""Retained messages: each topic is a register that SUBSCRIBE reads.

A write counts from its PUBLISH to its acknowledgement, or until a client has read it; one without
an acknowledgement may take effect at any time after. QoS 0 has none.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from resilience.checkers.base import Checker
from resilience.checkers.delivery import is_for
from resilience.history import Operation
from resilience.topics import matches, split_share
from resilience.world import KnownMessage, KnownSubscription, Session, World

NEVER: Final = 1 << 62


@dataclass(slots=True)
class _Read:
    """One SUBSCRIBE, and the newest that came of each topic on its connection since."""

    subscription: KnownSubscription
    session: Session
    line: int
    ok_line: int
    came: dict[str, KnownMessage]


class RetainedKept(Checker):
    name: ClassVar[str] = "retained"
    clause: ClassVar[str] = (
        "a new subscription gets the last retained message of each topic "
        "[MQTT5-3.3.1-5] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9]"
    )
    promise: ClassVar[str] = "retained"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._writes: dict[str, list[KnownMessage]] = {}
        self._reads: list[_Read] = []
        self._asked: dict[tuple[str, str], _Read] = {}
        self._here: dict[tuple[str, int], list[_Read]] = {}
        self._values: list[tuple[KnownMessage, int, int]] = []
        """Retained deliveries: the message, the line of the latest SUBSCRIBE for it, their line."""
        self._read_at: dict[int, int] = {}
        """The first line in which a write was read, by its number."""

    def on_connect_invoke(self, _op: Operation) -> None:
        will = self.world.connection.will
        if will is not None and will.retain:
            self._writes.setdefault(will.topic, []).append(will)

    def on_publish_invoke(self, _op: Operation) -> None:
        message = self.world.message
        if message is not None and message.retain:
            self._writes.setdefault(message.topic, []).append(message)

    def on_subscribe_invoke(self, op: Operation) -> None:
        world = self.world
        sub = world.subscription
        if world.session is None or sub is None or split_share(op["filter"])[0]:
            return
        read = _Read(sub, world.session, world.line, 0, {})
        self._asked[op["process"], op["id"]] = read
        self._here.setdefault((op["process"], op["connection"]), []).append(read)

    def on_subscribe_ok(self, op: Operation) -> None:
        read = self._asked.pop((op["process"], op["id"]), None)
        if read is not None and op.get("retain_handling", 0) == 0:
            read.ok_line = self.world.line
            self._reads.append(read)

    def on_receive_ok(self, op: Operation) -> None:
        reads = self._here.get((op["process"], op["connection"]))
        message = self.world.message
        if not reads or message is None or op["topic"] not in self._writes:
            return
        asked, newest = 0, message
        for read in reads:
            if matches(read.subscription.topic_filter, op["topic"]):
                asked = asked or read.line
                before = read.came.get(op["topic"], message)
                newest = max(newest, before, key=lambda each: each.number)
                read.came[op["topic"]] = newest
        if op.get("retain") and asked:
            line = self.world.line
            self._read_at.setdefault(message.number, line)
            if _end(message) < newest.line:
                self.checked += 1
                self.blame("back in time", message.line, newest.line, asked, line)
                return
            # Which of several SUBSCRIBEs it answers is not known: the first is the safe guess.
            self._values.append((message, asked, line))

    def finish(self) -> None:
        for message, asked, line in self._values:
            self._check_value(message, asked, line)
        for read in self._reads:
            for topic, writes in self._writes.items():
                if matches(read.subscription.topic_filter, topic):
                    self._check_read(read, topic, writes)

    def _check_value(self, message: KnownMessage, asked: int, line: int) -> None:
        self.checked += 1
        for other in self._writes.get(message.topic, ()):
            after = _end(message) < other.line
            known = min(_end(other), self._read_at.get(other.number, NEVER))
            if other is not message and after and known < asked:
                kind = "resurrected" if other.empty else "back in time"
                self.blame(kind, message.line, other.line, known, asked, line)
                return

    def _check_read(self, read: _Read, topic: str, writes: list[KnownMessage]) -> None:
        drain = self.world.drain_line
        past = [write for write in writes if _end(write) < read.line]
        if not past:
            return
        last = max(past, key=lambda write: write.line)
        if last.empty or last.expiry is not None or not is_for(read.subscription, last):
            return
        connection = read.session.connection
        stays = read.session.ready and connection is read.subscription.connection
        others = [
            write
            for write in writes
            if write is not last and _end(write) > last.line and write.line < drain
        ]
        # Another write that overlaps may stand before or after it.
        decided = not any(write.empty or write.line < read.line for write in others)
        if not stays or not decided or not drain or 0 < read.subscription.end_line < drain:
            self.unknown += 1
            return
        self.checked += 1
        came = read.came.get(topic)
        if came is None or came.number < last.number:
            self.blame("lost", last.line, last.done_line, read.line, read.ok_line)


def _end(write: KnownMessage) -> int:
    """Return the line by which a write has taken effect."""
    return write.done_line if write.qos and write.state == "ok" else NEVER
