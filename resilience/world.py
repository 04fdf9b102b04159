"""State that the checkers share: connections, subscriptions, messages owed, from the history.

One pass over the operations keeps it up to date; a checker sees it as it is after the operation
that it is called for. Lines count from 1, the header, as editors do. Times are microseconds.

Two notions carry the checkers. A *session* is judged from the side of its client: it goes on until
the client lets it end (clean start, no expiry, expiry over), even if the broker denies or loses it.
A message is *resent* when its publisher had to connect again before it was acknowledged: the broker
may then have it twice, rightly.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from resilience.history import Operation
from resilience.topics import matches, split_share

SECOND: Final = 1_000_000
FOREVER: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire [MQTT5-3.1.2.11.2]."""

NOTICED: Final = 2 * SECOND
"""So long a broker may take to see that a connection is over, and so inexact its clock is."""

Key = tuple[str, str]
"""Tenant and client identifier."""


@dataclass(slots=True, eq=False)
class KnownMessage:
    """One message of a publisher, or a will."""

    number: int
    id: str
    process: str
    connection: "KnownConnection"
    topic: str
    qos: int
    retain: bool
    empty: bool
    expiry: int | None
    line: int
    time: int
    state: str = "invoke"
    done_line: int = 0
    done_time: int = 0
    resent: bool = False
    unsure: bool = False
    """The broker had forgotten the publisher's session before the exchange was over."""
    is_will: bool = False


@dataclass(slots=True, eq=False)
class KnownSubscription:
    """One topic filter of one session, from SUBSCRIBE on."""

    session: "Session"
    connection: "KnownConnection"
    full_filter: str
    share: str
    topic_filter: str
    qos: int
    no_local: bool
    retain_handling: int
    line: int
    time: int
    ok_line: int = 0
    ok_time: int = 0
    unsubscribe_line: int = 0
    unsubscribed_line: int = 0
    end_line: int = 0
    """Line at which its claim to messages ends; 0 while it has not."""

    def holds(self, line: int, drain_line: int) -> bool:
        """Tell whether it was in force before `line` and until the drain."""
        return 0 < self.ok_line < line and not 0 < self.end_line < drain_line


@dataclass(slots=True, eq=False)
class Session:
    """One session as its client sees it."""

    number: int
    key: Key
    persistent: bool
    expiry: int | None
    connection: "KnownConnection"
    line: int
    current: dict[str, KnownSubscription] = field(default_factory=dict)
    all: list[KnownSubscription] = field(default_factory=list)
    got: dict[int, int] = field(default_factory=dict)
    """How often each message came, by its number; retained deliveries do not count."""
    retained: set[int] = field(default_factory=set)
    """The messages that came as retained ones."""
    end_line: int = 0
    ready: bool = False
    """Connected, with the session, when the drain was over."""
    has_share: bool = False
    moved: bool = False
    """Another process took it over, which does not know how far the first one had come."""
    _matching: dict[str, list[KnownSubscription]] = field(default_factory=dict)

    def matching(self, topic: str) -> list[KnownSubscription]:
        """Return all subscriptions that it ever had for this topic, SUBACK or not."""
        found = self._matching.get(topic)
        if found is None:
            found = [sub for sub in self.all if matches(sub.topic_filter, topic)]
            self._matching[topic] = found
        return found

    def add(self, subscription: KnownSubscription) -> None:
        self.all.append(subscription)
        self.has_share = self.has_share or subscription.share != ""
        self._matching.clear()

    def remove(self, subscription: KnownSubscription) -> None:
        self.all.remove(subscription)
        self._matching.clear()

    def end(self, line: int) -> None:
        if not self.end_line:
            self.end_line = line
            for subscription in self.current.values():
                subscription.end_line = subscription.end_line or line


@dataclass(slots=True, eq=False)
class KnownConnection:
    """One network connection of a process, from CONNECT on."""

    process: str
    number: int
    key: Key
    node: str
    version: int
    clean: bool
    expiry: int
    receive_maximum: int
    line: int
    time: int
    will: KnownMessage | None = None
    will_delay: int = 0
    ok_line: int = 0
    ok_time: int = 0
    served_line: int = 0
    served_time: int = 0
    """The last sign that the broker served this connection."""
    end: str = ""
    end_line: int = 0
    end_time: int = 0
    confirmed: bool = False
    """The broker closed the connection after DISCONNECT, so it has read it."""
    session: Session | None = None
    outstanding: dict[int, tuple[KnownMessage, int]] = field(default_factory=dict)

    @property
    def persistent(self) -> bool:
        return self.expiry > 0


@dataclass(slots=True, eq=False)
class KnownClient:
    """State of one client identifier."""

    session: Session | None = None
    latest: KnownConnection | None = None
    stored: bool | None = False
    """The broker has a session of it; None is unknown."""
    is_sure: bool = True
    since: int = 0
    until: int | None = None


@dataclass(slots=True)
class FaultSpan:
    """One fault; `end_time` is None while it lasts."""

    name: str
    part: str
    line: int
    time: int
    end_line: int = 0
    end_time: int | None = None


class World:
    """The state after the operations so far; `apply` takes the next one."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.line = 1
        self.time = 0
        self.messages: dict[str, KnownMessage] = {}
        self.connections: dict[tuple[str, int], KnownConnection] = {}
        self.current: dict[str, KnownConnection] = {}
        self.clients: dict[Key, KnownClient] = {}
        self.sessions: list[Session] = []
        self.open: dict[str, dict[str, KnownMessage]] = {}
        self.pending: dict[tuple[str, str], tuple[Operation, KnownConnection, int]] = {}
        """Requests without an answer: SUBSCRIBE and UNSUBSCRIBE by process and id."""
        self.faults: list[FaultSpan] = []
        self.rights: list[tuple[str, str]] = []
        """Client and filter of each right that was ever changed."""
        self.drain_line = 0
        self.drain_time = 0
        self.counts: dict[str, int] = {}
        # Of the operation at hand, for the checkers.
        self.connection: KnownConnection
        self.message: KnownMessage | None = None
        self.session: Session | None = None
        self.arrivals = 0
        self.expected: bool | None = None
        self.subscription: KnownSubscription | None = None
        self.requested: dict[tuple[str, str], KnownSubscription] = {}

    def of(self, operation: Operation) -> KnownConnection:
        """Return the connection of an operation."""
        return self.connections[operation["process"], operation["connection"]]

    def served(self, connection: KnownConnection) -> None:
        connection.served_line = self.line
        connection.served_time = self.time

    # One method for each operation, named after its `f` and `type`.

    def connect_invoke(self, op: Operation) -> None:
        process = op["process"]
        before = self.current.get(process)
        if before is not None and not before.end:
            self._end(before, "closed")
        version = op.get("version", 4)
        clean = op.get("clean", True)
        default = 0 if version == 5 or clean else FOREVER
        connection = KnownConnection(
            process=process,
            number=op["connection"],
            key=(op.get("tenant", ""), op.get("client_id") or process),
            node=op.get("node", ""),
            version=version,
            clean=clean,
            expiry=op.get("expiry", default) if version == 5 else default,
            receive_maximum=op.get("receive_maximum", 65_535),
            line=self.line,
            time=self.time,
        )
        self.connection = self.current[process] = connection
        self.connections[process, connection.number] = connection
        client = self.clients.setdefault(connection.key, KnownClient())
        if clean and client.session is not None:
            client.session.end(self.line)
        will = op.get("will")
        if will is not None:
            connection.will_delay = will.get("delay", 0)
            connection.will = self._message(will, connection, is_will=True)

    def _message(
        self, op: Operation, connection: KnownConnection, *, is_will: bool
    ) -> KnownMessage:
        message = KnownMessage(
            number=len(self.messages),
            id=op["id"],
            process=connection.process,
            connection=connection,
            topic=op["topic"],
            qos=op.get("qos", 0),
            retain=op.get("retain", False),
            empty=op.get("empty", False),
            expiry=op.get("expiry"),
            line=self.line,
            time=self.time,
            is_will=is_will,
        )
        self.messages[message.id] = message
        return message

    def connect_ok(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        connection.ok_line, connection.ok_time = self.line, self.time
        self.served(connection)
        client = self.clients[connection.key]
        present = op["session_present"]
        self.expected = self._expected(client, connection)
        session = client.session
        goes_on = self.expected or (self.expected is None and present)
        if session is not None and not session.end_line and goes_on and not connection.clean:
            session.persistent, session.expiry = connection.persistent, connection.expiry
        else:
            if session is not None:
                session.end(self.line)
            session = Session(
                number=len(self.sessions),
                key=connection.key,
                persistent=connection.persistent,
                expiry=connection.expiry,
                connection=connection,
                line=self.line,
            )
            self.sessions.append(session)
        session.moved = session.moved or session.connection.process != connection.process
        session.connection = connection
        connection.session = client.session = session
        client.latest = connection
        client.stored, client.is_sure, client.until = True, True, None
        for message in self.open.get(connection.process, {}).values():
            if message.connection is not connection:
                message.resent = True
                message.unsure = message.unsure or not present

    def _expected(self, client: KnownClient, connection: KnownConnection) -> bool | None:
        """Tell which Session Present is right; None when either may be."""
        if connection.clean:
            return False
        latest = client.latest
        if latest is not None and not latest.persistent and not latest.end:
            return None
        if client.stored is None:
            return None
        if not client.stored:
            near = self.time - client.since < NOTICED or connection.time < client.since
            return None if near and not client.is_sure else False
        if client.until is not None and connection.time > client.until - NOTICED:
            return None
        return True

    def connect_fail(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        connection.end, connection.end_line, connection.end_time = "fail", self.line, self.time

    def connect_info(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        connection.end, connection.end_line, connection.end_time = "closed", self.line, self.time
        client = self.clients[connection.key]
        if connection.clean or not client.stored or not connection.persistent:
            client.stored = None
            if client.session is not None:
                client.session.end(self.line)

    def _end(self, connection: KnownConnection, how: str) -> None:
        if connection.end:
            return
        connection.end, connection.end_line, connection.end_time = how, self.line, self.time
        client = self.clients[connection.key]
        if client.latest is not connection:
            return
        client.since = self.time
        if connection.persistent:
            forever = connection.expiry == FOREVER
            client.until = None if forever else self.time + connection.expiry * SECOND
        else:
            client.stored, client.is_sure = False, False
            if connection.session is not None:
                connection.session.end(self.line)

    def closed_ok(self, op: Operation) -> None:
        self.connection = self.of(op)
        self._end(self.connection, "closed")

    def disconnect_invoke(self, op: Operation) -> None:
        self.connection = self.of(op)
        self._end(self.connection, "disconnect")

    def disconnect_ok(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        connection.confirmed = True
        client = self.clients[connection.key]
        if client.latest is connection:
            client.is_sure = True

    def publish_invoke(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        self.message = self._message(op, connection, is_will=False)
        if self.message.qos:
            self.open.setdefault(connection.process, {})[self.message.id] = self.message

    def publish_ok(self, op: Operation) -> None:
        self._done(op)
        if self.message is not None and self.message.qos:
            self.served(self.connection)

    def _done(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        message = self.message = self.messages.get(op["id"])
        if message is None:
            return
        message.state = op["type"]
        message.done_line, message.done_time = self.line, self.time
        if message.qos:
            self.open[message.process].pop(message.id, None)
            if connection is not message.connection:
                message.resent = True

    publish_fail = _done
    publish_info = _done

    def subscribe_invoke(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        session = self.session = connection.session
        self.pending[op["process"], op["id"]] = (op, connection, self.line)
        if session is None:
            return
        share, bare = split_share(op["filter"])
        subscription = self.subscription = KnownSubscription(
            session=session,
            connection=connection,
            full_filter=op["filter"],
            share=share,
            topic_filter=bare,
            qos=op.get("qos", 0),
            no_local=op.get("no_local", False),
            retain_handling=op.get("retain_handling", 0),
            line=self.line,
            time=self.time,
        )
        self.requested[op["process"], op["id"]] = subscription
        session.add(subscription)

    def subscribe_ok(self, op: Operation) -> None:
        self.connection = self.of(op)
        self.served(self.connection)
        self.pending.pop((op["process"], op["id"]), None)
        new = self.subscription = self.requested.pop((op["process"], op["id"]), None)
        if new is None:
            return
        new.qos = op.get("granted", new.qos)
        new.ok_line, new.ok_time = self.line, self.time
        session = new.session
        if session.end_line:
            new.end_line = session.end_line
            return
        old = session.current.get(new.full_filter)
        if old is not None and not old.end_line:
            if (old.qos, old.no_local) == (new.qos, new.no_local):
                # It replaces the old one without a gap, so the old claim goes on [MQTT5-3.8.4-3].
                session.remove(new)
                return
            old.end_line = new.line
        session.current[new.full_filter] = new

    def _forgo(self, op: Operation) -> None:
        self.connection = self.of(op)
        self.pending.pop((op["process"], op["id"]), None)
        self.requested.pop((op["process"], op["id"]), None)

    subscribe_fail = _forgo
    subscribe_info = _forgo

    def unsubscribe_invoke(self, op: Operation) -> None:
        connection = self.connection = self.of(op)
        self.pending[op["process"], op["id"]] = (op, connection, self.line)
        session = self.session = connection.session
        subscription = session.current.get(op["filter"]) if session is not None else None
        if subscription is not None:
            subscription.unsubscribe_line = self.line
            subscription.end_line = subscription.end_line or self.line
            self.requested[op["process"], op["id"]] = subscription

    def unsubscribe_ok(self, op: Operation) -> None:
        self.connection = self.of(op)
        self.served(self.connection)
        self.pending.pop((op["process"], op["id"]), None)
        subscription = self.requested.pop((op["process"], op["id"]), None)
        self.subscription = subscription
        if subscription is None:
            return
        subscription.unsubscribed_line = self.line
        current = subscription.session.current
        if current.get(subscription.full_filter) is subscription:
            del current[subscription.full_filter]

    unsubscribe_fail = _forgo
    unsubscribe_info = _forgo

    def receive_ok(self, op: Operation) -> None:
        connection = self.connections[op["process"], op["connection"]]
        self.connection = connection
        connection.served_line, connection.served_time = self.line, self.time
        session = self.session = connection.session
        message = self.message = self.messages.get(op["id"])
        if session is None or message is None or op.get("retain"):
            self.arrivals = 0
            if session is not None and message is not None:
                session.retained.add(message.number)
            return
        got = session.got
        self.arrivals = got[message.number] = got.get(message.number, 0) + 1

    def receive_info(self, op: Operation) -> None:
        self.connection = self.of(op)
        self.served(self.connection)
        self.message = self.messages.get(op["id"])

    def acknowledge_ok(self, op: Operation) -> None:
        self.connection = self.connections[op["process"], op["connection"]]

    def rights_invoke(self, op: Operation) -> None:
        self.rights.append((op["client_id"], op["filter"]))

    def right_changed(self, message: KnownMessage, subscription: KnownSubscription) -> bool:
        """Tell whether a right of one of the two may have stood between them."""
        parties = (message.connection.key[1], subscription.session.key[1])
        return any(
            client in parties and matches(topic_filter, message.topic)
            for client, topic_filter in self.rights
        )

    def fault_invoke(self, op: Operation) -> None:
        self.faults.append(FaultSpan(op["fault"], op.get("part", ""), self.line, self.time))

    def _fault_end(self, op: Operation) -> None:
        for span in reversed(self.faults):
            same = (span.name, span.part) == (op["fault"], op.get("part", ""))
            if same and span.end_time is None:
                span.end_line, span.end_time = self.line, self.time
                return

    fault_ok = _fault_end
    fault_info = _fault_end
    fault_fail = _fault_end

    def drain_ok(self, _op: Operation) -> None:
        self.drain_line, self.drain_time = self.line, self.time
        for session in self.sessions:
            connection = session.connection
            session.ready = not session.end_line and bool(connection.ok_line) and not connection.end

    def struck(self, start: int, end: int) -> bool:
        """Tell whether a fault was at work between two times, the seconds after it included."""
        return any(
            span.time <= end and (span.end_time is None or start <= span.end_time + 5 * SECOND)
            for span in self.faults
        )
