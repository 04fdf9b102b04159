"""The double: a correct MQTT broker of several nodes in memory, and all that can be wrong with it.

It has the clauses that the checkers test, and nothing else; a crash leaves all that it had, as if
each step were on disk. Every defect is one condition, named as in `defects`.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from resilience.double.defects import DEFECTS
from resilience.double.link import DoubleLink
from resilience.drivers.frames import ConnectOptions, Frame
from resilience.history import encode_payload
from resilience.topics import matches, split_share

Key = tuple[str, str]
FOREVER: Final = 0xFFFF_FFFF
WINDOW: Final = 20


QUOTA_EXCEEDED: Final = 0x97
"""The reason code of a message for which there is no room."""

UNAWARE_SECONDS: Final = 0.5
"""So long a node that was frozen takes its clients for its own, if it has a defect of that kind."""

BANNED: Final = 0x8A
"""The reason code of a client that is not let in."""


@dataclass(slots=True)
class _Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    tenant: str
    publisher: Key
    node: str
    expires_at: float | None = None


@dataclass(slots=True)
class _Delivery:
    message: _Message
    qos: int
    retain: bool = False
    group: str = ""
    released: bool = False


@dataclass(slots=True)
class _Subscription:
    topic_filter: str
    share: str
    qos: int
    no_local: bool
    node: str
    since: float
    """When other nodes know of it."""


@dataclass(slots=True, eq=False)
class _Session:
    key: Key
    expiry: int
    window: int
    link: DoubleLink | None = None
    subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    queue: list[_Delivery] = field(default_factory=list)
    inflight: dict[int, _Delivery] = field(default_factory=dict)
    incoming: set[int] = field(default_factory=set)
    packet_id: int = 0
    will: Callable[[], None] | None = None
    """Publishes the will that waits for its delay."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True)
class _Connection:
    session: _Session
    options: ConnectOptions
    will_payload: bytes
    has_will: bool


class Double:
    """The broker; each of its `nodes` can crash, stand still and come back.

    Args:
        rng: All that happens by chance comes from it.
        defects: Names in `DEFECTS`.
    """

    def __init__(
        self, rng: random.Random, nodes: Iterable[str], defects: Iterable[str] = ()
    ) -> None:
        self._rng = rng
        self.nodes = tuple(nodes)
        self.defects = frozenset(defects)
        self.is_full = False
        """There is no room for messages."""
        self._down: set[str] = set()
        self._frozen: set[str] = set()
        self._held: dict[str, list[_Session]] = {}
        """The sessions of the clients that a node had when it went down."""
        self._woken: dict[str, float] = {}
        """When a node went on whose machine had been frozen."""
        self._links: dict[DoubleLink, None] = {}
        self._sessions: dict[Key, _Session] = {}
        self._retained: dict[tuple[str, str], _Message] = {}
        self._replaced: dict[tuple[str, str], _Message] = {}
        self._ghosts: dict[tuple[str, str, str], int] = {}
        self._denied: set[tuple[str, str, str]] = set()
        self._shut: set[str] = set()
        """Tenants whose clients are not let in."""
        self._swapped: dict[Key, _Delivery] = {}

    def _bad(self, defect: str) -> bool:
        return defect in self.defects and self._rng.random() < DEFECTS[defect].chance

    # Nodes and connections.

    async def __call__(
        self,
        options: ConnectOptions,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
    ) -> DoubleLink:
        await asyncio.sleep(self._rng.uniform(0.0002, 0.002))
        if options.node in self._down:
            raise ConnectionRefusedError("the node is down")
        link = DoubleLink(options.node, self._rng, self._receive, on_frame, on_end)
        if options.node in self._frozen:
            link.freeze()
        self._links[link] = None
        return link

    def crash(self, node: str) -> None:
        self._down.add(node)
        self._frozen.discard(node)
        self._held[node] = [
            link.state.session
            for link in self._links
            if link.node == node and link.state is not None
        ]
        for link in [link for link in self._links if link.node == node]:
            link.crash()
            self._lost(link)
        if self._bad("forget-on-crash"):
            for session in self._sessions.values():
                session.queue.clear()
                session.inflight.clear()

    def recover(self, node: str) -> None:
        self._down.discard(node)

    def expire(self, node: str) -> None:
        """Delete what waits for a node that is down: sessions have it, unless that is a defect."""
        if "share-gone" not in self.defects:
            return
        for session in self._held.get(node, []):
            session.queue = [one for one in session.queue if not one.group]
            session.inflight = {key: one for key, one in session.inflight.items() if not one.group}

    def freeze(self, node: str) -> None:
        self._frozen.add(node)
        for link in self._links:
            if link.node == node:
                link.freeze()

    def thaw(self, node: str) -> None:
        self._frozen.discard(node)
        for link in list(self._links):
            if link.node == node:
                link.thaw()

    def wake(self, node: str) -> None:
        """Let a node go on whose clock has stood still: others may have taken its clients for lost.

        A correct one finds that out before it answers anybody.
        """
        self._woken[node] = asyncio.get_running_loop().time()
        if "frozen-will" in self.defects:
            for link in self._links:
                if link.node == node and link.state is not None and link.state.has_will:
                    self._publish_will(link)
        self.thaw(node)

    def _is_unaware(self, link: DoubleLink, defect: str) -> bool:
        """Tell whether a node with this defect has not noticed yet that it was frozen."""
        since = self._woken.get(link.node)
        now = asyncio.get_running_loop().time()
        return defect in self.defects and since is not None and now < since + UNAWARE_SECONDS

    def cut(self, node: str) -> None:
        """Break every connection of a node; the node itself stays."""
        for link in [link for link in self._links if link.node == node]:
            link.crash()
            self._lost(link)

    def set_right(self, client_id: str, action: str, topic_filter: str, *, allowed: bool) -> None:
        if f"ignored-rights-{action}" in self.defects:
            return
        right = (client_id, action, topic_filter)
        if allowed:
            self._denied.discard(right)
        else:
            self._denied.add(right)

    def set_tenant(self, tenant: str, *, is_open: bool) -> None:
        if "ignored-tenant" in self.defects:
            return
        if is_open:
            self._shut.discard(tenant)
            return
        self._shut.add(tenant)
        for link in list(self._links):
            if link.state is not None and link.state.options.tenant == tenant:
                self._lost(link, close=True)

    def _is_denied(self, client_id: str, action: str, topic: str) -> bool:
        return any(
            client == client_id and what == action and matches(topic_filter, topic)
            for client, what, topic_filter in self._denied
        )

    def _receive(self, link: DoubleLink, frame: Frame | None) -> None:
        if link not in self._links:
            return
        if frame is None:
            self._lost(link)
        elif frame.kind == "connect":
            self._connect(link, frame)
        elif link.state is not None:
            getattr(self, f"_{frame.kind}")(link, link.state, frame)

    def _connect(self, link: DoubleLink, frame: Frame) -> None:
        options: ConnectOptions = frame.fields["options"]
        key = (options.tenant, options.client_id)
        if options.tenant in self._shut:
            link.answer(Frame("connack", code=BANNED, fields={"session_present": False}))
            self._lost(link, close=True)
            return
        session = self._sessions.get(key)
        if session is not None and session.link is not None:
            if "no-takeover" in self.defects:
                session.link = None
            else:
                keeps = not options.clean and session.expiry > 0
                self._lost(session.link, close=True, ends_session=not keeps)
                session = self._sessions.get(key)
        if session is not None and (options.clean or self._bad("session-forgotten")):
            self._end_session(session)
            session = None
        present = session is not None
        is_5 = options.version == 5
        expiry = options.expiry if is_5 else (0 if options.clean else FOREVER)
        window = min(WINDOW, options.receive_maximum if is_5 else WINDOW)
        if session is None:
            session = self._sessions[key] = _Session(key, expiry, window)
        session.expiry, session.window, session.link = expiry, window, link
        for timer in session.timers:
            timer.cancel()
        session.timers.clear()
        session.will = None
        will_payload = frame.fields.get("will_payload", b"")
        link.state = _Connection(session, options, will_payload, options.will is not None)
        shown = present or (not present and self._bad("session-lie"))
        link.answer(Frame("connack", fields={"session_present": shown}))
        again = list(session.inflight.items())
        if "resume-backwards" in self.defects:
            again.reverse()
        for packet_id, delivery in again:
            if delivery.released:
                link.answer(Frame("pubrel", packet_id))
            else:
                self._send(session, packet_id, delivery, dup="no-dup" not in self.defects)
        self._pump(session)
        if options.will is not None and self._bad("will-of-served"):
            self._later(0.05, lambda: self._publish_will(link))

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call)

    def _lost(self, link: DoubleLink, *, close: bool = False, ends_session: bool = False) -> None:
        """A connection is over without DISCONNECT."""
        connection: _Connection | None = link.state
        self._links.pop(link, None)
        if close:
            link.close()
        if connection is None:
            return
        if connection.has_will:
            self._will_due(link, connection, at_once=ends_session)
        self._offline(link, connection.session)

    def _will_due(self, link: DoubleLink, connection: _Connection, *, at_once: bool) -> None:
        will = connection.options.will
        assert will is not None
        if self._bad("will-missing"):
            return
        session = connection.session
        is_5 = connection.options.version == 5
        delay = min(will.delay, session.expiry) if is_5 else 0
        if not delay or at_once or "will-early" in self.defects:
            self._publish_will(link)
            return
        session.will = lambda: self._publish_will(link)
        session.timers.append(self._later(delay, lambda: self._waited(session)))

    def _waited(self, session: _Session) -> None:
        will, session.will = session.will, None
        if will is not None:
            will()

    def _publish_will(self, link: DoubleLink) -> None:
        connection: _Connection = link.state
        will = connection.options.will
        assert will is not None
        key = connection.session.key
        message = _Message(
            will.topic, connection.will_payload, will.qos, will.retain, key[0], key, link.node
        )
        self._route(message)
        if self._bad("will-doubled"):
            self._route(message)

    def _offline(self, link: DoubleLink, session: _Session) -> None:
        if session.link is not link:
            return
        session.link = None
        if not session.expiry:
            self._end_session(session)
        elif session.expiry != FOREVER:
            session.timers.append(self._later(session.expiry, lambda: self._end_session(session)))

    def _end_session(self, session: _Session) -> None:
        if self._sessions.get(session.key) is not session:
            return
        del self._sessions[session.key]
        for timer in session.timers:
            timer.cancel()
        self._waited(session)
        for subscription in session.subscriptions.values():
            self._leave_group(session, subscription)

    def _leave_group(self, session: _Session, subscription: _Subscription) -> None:
        """Give a member's unacknowledged messages to the others."""
        if not subscription.share:
            return
        group = (session.key[0], subscription.share, subscription.topic_filter)
        if "share-dead" in self.defects:
            self._ghosts[group] = self._ghosts.get(group, 0) + 1
        name = f"{subscription.share}/{subscription.topic_filter}"
        left = [
            delivery
            for delivery in (*session.inflight.values(), *session.queue)
            if delivery.group == name and delivery.qos < 2
        ]
        session.queue = [delivery for delivery in session.queue if delivery not in left]
        for packet_id, delivery in list(session.inflight.items()):
            if delivery in left:
                del session.inflight[packet_id]
        for delivery in left:
            self._share(group, self._members(group, without=session), delivery.message)

    # Requests of clients.

    def _pingreq(self, link: DoubleLink, _connection: _Connection, _frame: Frame) -> None:
        link.answer(Frame("pingresp"))

    def _disconnect(self, link: DoubleLink, connection: _Connection, _frame: Frame) -> None:
        if connection.has_will and "will-after-disconnect" in self.defects:
            self._publish_will(link)
        self._links.pop(link, None)
        link.close()
        self._offline(link, connection.session)

    def _publish(self, link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        session = connection.session
        options = connection.options
        code = 0
        again = frame.qos == 2 and frame.packet_id in session.incoming
        twice = frame.qos == 2 and self._is_unaware(link, "frozen-qos2")
        if self._is_denied(options.client_id, "publish", frame.topic):
            code = 0x87 if options.version == 5 else 0
        elif self.is_full and not again and options.version < 5:
            self._lost(link, close=True)
            return
        elif self.is_full and not again:
            code = 0 if "full-acknowledged" in self.defects else QUOTA_EXCEEDED
        elif not again or "forget-pubrec" in self.defects:
            expiry = frame.fields.get("expiry")
            now = asyncio.get_running_loop().time()
            message = _Message(
                frame.topic,
                frame.payload,
                frame.qos,
                frame.retain,
                session.key[0],
                session.key,
                link.node,
                None if expiry is None else now + expiry,
            )
            for _ in range(1 + twice):
                self._route(message)
        if frame.qos == 2 and not code:
            session.incoming.add(frame.packet_id)
        if frame.qos and not self._bad("mute-publish"):
            answer = "puback" if frame.qos == 1 else "pubrec"
            link.answer(Frame(answer, frame.packet_id, code=code))

    def _pubrel(self, link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        connection.session.incoming.discard(frame.packet_id)
        link.answer(Frame("pubcomp", frame.packet_id))

    def _puback(self, _link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        connection.session.inflight.pop(frame.packet_id, None)
        self._pump(connection.session)

    _pubcomp = _puback

    def _pubrec(self, link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        delivery = connection.session.inflight.get(frame.packet_id)
        if delivery is not None:
            delivery.released = True
        link.answer(Frame("pubrel", frame.packet_id))

    def _subscribe(self, link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        session = connection.session
        share, bare = split_share(frame.topic)
        early = "early-suback" in self.defects
        since = asyncio.get_running_loop().time()
        if not self._is_unaware(link, "frozen-suback"):
            session.subscriptions[frame.topic] = _Subscription(
                bare,
                share,
                frame.qos,
                frame.fields.get("no_local", False),
                link.node,
                since + (self._rng.uniform(0.1, 0.5) if early else 0.0),
            )
        if not self._bad("mute-subscribe"):
            link.answer(Frame("suback", frame.packet_id, code=frame.qos))
        if not share and not frame.fields.get("retain_handling", 0):
            self._send_retained(session, bare, frame.qos)

    def _send_retained(self, session: _Session, topic_filter: str, qos: int) -> None:
        for (tenant, topic), message in list(self._retained.items()):
            if tenant != session.key[0] or not matches(topic_filter, topic):
                continue
            shown = message
            if "retained-old" in self.defects:
                shown = self._replaced.get((tenant, topic), message)
            delivery = _Delivery(shown, min(qos, message.qos), retain=True)
            session.queue.append(delivery)
        self._pump(session)

    def _unsubscribe(self, link: DoubleLink, connection: _Connection, frame: Frame) -> None:
        if "ignored-unsubscribe" not in self.defects:
            subscription = connection.session.subscriptions.pop(frame.topic, None)
            if subscription is not None:
                self._leave_group(connection.session, subscription)
        if not self._bad("mute-unsubscribe"):
            link.answer(Frame("unsuback", frame.packet_id))

    # Messages on their way.

    def _route(self, message: _Message) -> None:
        if message.retain:
            self._retain(message)
        now = asyncio.get_running_loop().time()
        groups: dict[tuple[str, str, str], None] = {}
        for session in list(self._sessions.values()):
            if session.key[0] != message.tenant and "tenant" not in self.defects:
                continue
            qos = -1
            for sub in session.subscriptions.values():
                if not matches(sub.topic_filter, message.topic):
                    continue
                if sub.share:
                    groups[message.tenant, sub.share, sub.topic_filter] = None
                    continue
                if sub.no_local and session.key == message.publisher:
                    continue
                if sub.since > now and sub.node != message.node:
                    continue
                qos = max(qos, min(sub.qos, message.qos))
            if qos < 0 and session.subscriptions and self._bad("unasked"):
                qos = message.qos
            denied = self._is_denied(session.key[1], "subscribe", message.topic)
            if qos >= 0 and not denied:
                self._hand_over(session, _Delivery(message, qos))
        for group in groups:
            self._share(group, self._members(group), message)

    def _retain(self, message: _Message) -> None:
        key = (message.tenant, message.topic)
        if not message.payload:
            if not self._bad("retained-stays"):
                self._retained.pop(key, None)
        elif not self._bad("retained-lost"):
            before = self._retained.get(key)
            if before is not None:
                self._replaced[key] = before
            self._retained[key] = message

    def _members(
        self, group: tuple[str, str, str], without: _Session | None = None
    ) -> list[tuple[_Session, _Subscription]]:
        tenant, share, topic_filter = group
        return [
            (session, sub)
            for session in self._sessions.values()
            if session.key[0] == tenant and session is not without
            for sub in session.subscriptions.values()
            if (sub.share, sub.topic_filter) == (share, topic_filter)
        ]

    def _share(
        self,
        group: tuple[str, str, str],
        members: list[tuple[_Session, _Subscription]],
        message: _Message,
    ) -> None:
        here = [member for member in members if member[0].link is not None] or members
        ghosts = self._ghosts.get(group, 0)
        if not here or self._bad("share-none"):
            return
        if ghosts and self._rng.random() < ghosts / (ghosts + len(here)):
            return
        count = min(len(here), 2 if self._bad("share-two") else 1)
        for session, sub in self._rng.sample(here, count):
            name = f"{group[1]}/{group[2]}"
            self._hand_over(session, _Delivery(message, min(sub.qos, message.qos), group=name))

    def _hand_over(self, session: _Session, delivery: _Delivery) -> None:
        """Queue one delivery; most defects of delivery are here."""
        if session.link is None:
            if not delivery.qos:
                return
            if "queue-limit" in self.defects and len(session.queue) >= 3:
                return
        if self._bad("drop"):
            return
        message = delivery.message
        if self._bad("damage"):
            delivery.message = replace(message, payload=message.payload[:-3])
        elif self._bad("other-topic"):
            delivery.message = replace(message, topic=f"{message.topic}/x")
        if "swap" in self.defects:
            held = self._swapped.pop(session.key, None)
            if held is None and self._bad("swap"):
                self._swapped[session.key] = delivery
                self._later(0.5, lambda: self._unswap(session))
                return
            session.queue.append(delivery)
            if held is not None:
                session.queue.append(held)
        else:
            session.queue.append(delivery)
        if delivery.qos == 2 and self._bad("double-qos2"):
            session.queue.append(replace(delivery))
        if not delivery.qos and self._bad("double-qos0"):
            session.queue.append(replace(delivery))
        if self._bad("invent"):
            payload = encode_payload(f"ghost/{self._rng.random()}", 0)
            session.queue.append(_Delivery(replace(message, payload=payload), delivery.qos))
        self._pump(session)

    def _unswap(self, session: _Session) -> None:
        held = self._swapped.pop(session.key, None)
        if held is not None:
            session.queue.append(held)
            self._pump(session)

    def _pump(self, session: _Session) -> None:
        """Send as many messages as the window allows."""
        now = asyncio.get_running_loop().time()
        while session.queue and session.link is not None:
            delivery = session.queue[0]
            expires_at = delivery.message.expires_at
            if expires_at is not None and now > expires_at and "expired" not in self.defects:
                del session.queue[0]
                continue
            full = len(session.inflight) >= session.window and "over-window" not in self.defects
            if delivery.qos and full:
                return
            del session.queue[0]
            packet_id = self._packet_id(session) if delivery.qos else 0
            if packet_id:
                session.inflight[packet_id] = delivery
            self._send(session, packet_id, delivery, dup=False)

    def _packet_id(self, session: _Session) -> int:
        if session.inflight and self._bad("same-packet-id"):
            return next(iter(session.inflight))
        while True:
            session.packet_id = session.packet_id % 65_535 + 1
            if session.packet_id not in session.inflight:
                return session.packet_id

    def _send(self, session: _Session, packet_id: int, delivery: _Delivery, *, dup: bool) -> None:
        assert session.link is not None
        message = delivery.message
        if not delivery.qos:
            dup = self._bad("dup-qos0")
        session.link.answer(
            Frame(
                "publish",
                packet_id,
                message.topic,
                message.payload,
                delivery.qos,
                dup=dup,
                retain=delivery.retain,
            )
        )
