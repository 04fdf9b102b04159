"""The clients of a proof: paho-mqtt, each on a thread of its own, connecting again by themselves.

A client has a persistent session and keeps on its side what paho keeps: QoS 1 and 2 messages until
they are acknowledged, QoS 2 packet identifiers until PUBREL, as long as the object lives.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from mqlake.survival.ledger import Arrival, Sent, payload_of

HOST: Final = "127.0.0.1"
KEEP_ALIVE_SECONDS: Final = 10
RETRY_SECONDS: Final = 0.2
CONNACK_SECONDS: Final = 20.0
"""Longer than a gateway looks for a session."""

LOOP_SECONDS: Final = 0.05
"""How long a client that has nothing to do waits for its socket."""

WINDOW: Final = 8
"""Messages of a publisher on their way at once."""

NEVER_EXPIRES: Final = 0xFFFF_FFFF


class _Paho(Client):
    """paho-mqtt 2.2, without forgetting at a second attempt to connect that a PUBREL is due.

    It would send the message anew under an identifier that the server was told is free again.
    """

    def _messages_reconnect_reset_out(self) -> None:
        for message in self._out_messages.values():
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


class ProvingClient(threading.Thread):
    """A client that stays connected until told otherwise.

    Args:
        client_id: Of a session of its own.
        level: 4 (3.1.1) or 5.
        ports: Of the gateways.
        home: Index of the port it connects to first.
        moves: Whether it takes the next gateway when one does not answer, else the same again.
    """

    def __init__(
        self, client_id: str, level: int, ports: Sequence[int], *, home: int, moves: bool
    ) -> None:
        super().__init__(name=client_id, daemon=True)
        self.client_id = client_id
        self.level = level
        self.ports = ports
        self.place = home
        self.moves = moves
        self.connections = 0
        self.lost_sessions = 0
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._away = threading.Event()
        self._is_gone = threading.Event()
        self._cut = False
        self._paho = _Paho(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if level == 5 else False,
            protocol=MQTTProtocolVersion(level),
        )
        self._paho.on_connect = self._connected

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._away.is_set():
                    self._is_gone.set()
                    self._stopping.wait(0.01)
                elif not self._connect() or not self._stay():
                    self._stopping.wait(RETRY_SECONDS)
                    if self.moves:
                        self.place = (self.place + 1) % len(self.ports)
        except BaseException as exc:
            self.failure = exc
            raise

    def leave(self, *, cut: bool) -> None:
        """Disconnect and stay away; a cut connection ends without DISCONNECT."""
        self._cut = cut
        self._is_gone.clear()
        self._away.set()
        self._is_gone.wait(CONNACK_SECONDS)

    def come_back(self, home: int) -> None:
        self.place = home
        self._away.clear()

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._paho.disconnect()

    def _connect(self) -> bool:
        more: dict[str, Any] = {}
        if self.level == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = NEVER_EXPIRES
            more = {"clean_start": False, "properties": properties}
        try:
            self._paho.connect(HOST, self.ports[self.place], KEEP_ALIVE_SECONDS, **more)
        except OSError:
            return False
        return True

    def _stay(self) -> bool:
        """Serve the connection until it ends; return whether we wanted that."""
        paho = self._paho
        give_up_at = time.monotonic() + CONNACK_SECONDS
        while not self._stopping.is_set():
            if paho.loop(self._pause()) != MQTTErrorCode.MQTT_ERR_SUCCESS:
                return False
            if self._away.is_set():
                self._go()
                return True
            if paho.is_connected():
                self._turn()
            elif time.monotonic() > give_up_at:
                return False
        return True

    def _go(self) -> None:
        socket = self._paho.socket()
        if self._cut and socket is not None:
            socket.close()
            return
        self._paho.disconnect()
        while self._paho.loop(LOOP_SECONDS) == MQTTErrorCode.MQTT_ERR_SUCCESS:
            pass

    def _connected(
        self, _client: Client, _data: Any, flags: ConnectFlags, code: ReasonCode, _more: Any
    ) -> None:
        if code.is_failure:
            return
        self.connections += 1
        if self.connections > 1 and not flags.session_present:
            self.lost_sessions += 1
        self._welcomed()

    def _welcomed(self) -> None:
        """Do what there is to do at the start of a connection."""

    def _turn(self) -> None:
        """Do what is due; called all the time while connected."""

    def _pause(self) -> float:
        """Return how long to wait for the socket."""
        return LOOP_SECONDS


class Publisher(ProvingClient):
    """Sends its topics' messages by turns, at a steady rate while it is connected.

    At most `WINDOW` messages are on their way, and after a new connection nothing new leaves before
    what was on its way has been acknowledged: paho would mix the two.

    Args:
        topics: Topic names that nobody else publishes to.
        count: Messages for each topic.
        per_second: Of all its topics together.
        seed: Of the payloads.
        qos: Of the messages.
    """

    def __init__(
        self,
        client_id: str,
        level: int,
        ports: Sequence[int],
        *,
        home: int,
        moves: bool,
        topics: Sequence[str],
        count: int,
        per_second: float,
        seed: int,
        qos: int,
    ) -> None:
        super().__init__(client_id, level, ports, home=home, moves=moves)
        self._plan = deque(Sent(topic, number) for number in range(count) for topic in topics)
        self._seconds_each = 1 / per_second
        self._seed = seed
        self._qos = qos
        self._due_at = 0.0
        self._under_way: dict[int, Sent] = {}
        self._drains = False
        self.sent: dict[Sent, float] = {}
        """When, by `time.monotonic`."""
        self.acknowledged: dict[Sent, float] = {}
        self.refused: dict[Sent, str] = {}
        self._paho.on_publish = self._answered

    @property
    def is_done(self) -> bool:
        """Whether it has sent everything and knows what became of it."""
        return not self._plan and not self._under_way

    def send_more(self, messages: Sequence[Sent]) -> None:
        """Send these too."""
        self._plan.extend(messages)

    def _welcomed(self) -> None:
        self._drains = True
        self._due_at = time.monotonic()

    def _turn(self) -> None:
        if self._drains:
            self._drains = bool(self._under_way)
            return
        now = time.monotonic()
        while self._plan and self._due_at <= now and len(self._under_way) < WINDOW:
            message = self._plan.popleft()
            self.sent[message] = now
            self._due_at += self._seconds_each
            info = self._paho.publish(
                message.topic_name, payload_of(self._seed, message), qos=self._qos
            )
            self._under_way[info.mid] = message
        # What could not leave in time is not made up for all at once.
        self._due_at = max(self._due_at, now - WINDOW * self._seconds_each)

    def _pause(self) -> float:
        if self._drains or not self._plan or len(self._under_way) >= WINDOW:
            return LOOP_SECONDS
        return min(LOOP_SECONDS, max(0.0, self._due_at - time.monotonic()))

    def _answered(
        self, _client: Client, _data: Any, mid: int, code: ReasonCode, _more: Any
    ) -> None:
        message = self._under_way.pop(mid)
        if code.is_failure:
            self.refused[message] = str(code)
        else:
            self.acknowledged[message] = time.monotonic()


class Subscriber(ProvingClient):
    """Takes everything that a topic filter matches.

    Args:
        topic_filter: Subscribed to once, when the session begins.
        seed: Of the payloads.
        qos: Of the subscription.
    """

    def __init__(
        self,
        client_id: str,
        level: int,
        ports: Sequence[int],
        *,
        home: int,
        moves: bool,
        topic_filter: str,
        seed: int,
        qos: int,
    ) -> None:
        super().__init__(client_id, level, ports, home=home, moves=moves)
        self._topic_filter = topic_filter
        self._seed = seed
        self._qos = qos
        self.is_subscribed = threading.Event()
        self.arrivals: list[Arrival] = []
        self.seen: set[Sent] = set()
        self._paho.on_subscribe = lambda *_: self.is_subscribed.set()
        self._paho.on_message = self._take

    def _welcomed(self) -> None:
        if not self.is_subscribed.is_set():
            self._paho.subscribe(self._topic_filter, self._qos)

    def _take(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        number = message.payload.partition(b":")[0]
        sent = Sent(message.topic, int(number) if number.isdigit() else -1)
        is_damaged = message.payload != payload_of(self._seed, sent)
        self.arrivals.append(Arrival(sent, message.dup, time.monotonic(), is_damaged))
        self.seen.add(sent)


def end_session(client_id: str, port: int) -> None:
    """Make the gateway forget a session."""
    paho = Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv311
    )  # a clean session
    paho.connect(HOST, port)
    give_up_at = time.monotonic() + CONNACK_SECONDS
    while not paho.is_connected() and time.monotonic() < give_up_at:
        if paho.loop(LOOP_SECONDS) != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return
    paho.disconnect()
    while paho.loop(LOOP_SECONDS) == MQTTErrorCode.MQTT_ERR_SUCCESS:
        pass
