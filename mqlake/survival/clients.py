"""The clients of a proof: paho-mqtt, connecting again by themselves, all served on one thread.

A client has a persistent session and keeps on its side what paho keeps: QoS 1 and 2 messages until
they are acknowledged, QoS 2 packet identifiers until PUBREL, as long as the object lives.

Which answers a publisher may get: success, always; a reason code of failure in PUBACK or PUBREC
refuses the message, which no kill excuses; 0x92 in PUBCOMP says that the exchange is over already,
which is so only where the PUBREL had left before, on a connection that broke under it.
"""

import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt.client import Client, ConnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike

HOST: Final = "127.0.0.1"
KEEP_ALIVE_SECONDS: Final = 10
"""Unless said otherwise. A connection that brings nothing is given up after one or two of these."""

RETRY_SECONDS: Final = 0.2
CONNACK_SECONDS: Final = 20.0
"""Longer than a gateway looks for a session."""

IDLE_SECONDS: Final = 0.002
"""How long all clients together wait for their sockets when nothing comes."""

POLL_SECONDS: Final = 0.01

PACKETS_AT_ONCE: Final = 50
"""Read for one client in its turn."""

NEVER_EXPIRES: Final = 0xFFFF_FFFF
FAILURE: Final = 0x80
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92


class _Paho(Client):
    """paho-mqtt 2.2, mended where it breaks QoS 2 exchanges.

    It takes no notice of a PUBREC that refuses; and at a second attempt to connect it forgets that
    a PUBREL is due, and would send the message anew under an identifier that the server was told is
    free again.
    """

    def __init__(self, client_id: str, level: int, *, keeps_session: bool) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if level == 5 else not keeps_session,
            protocol=MQTTProtocolVersion(level),
        )
        self._releases: dict[int, int] = {}

    def take_releases(self, packet_id: int) -> int:
        """Return how often the PUBREL of a message has been sent; asked once, at its end."""
        return self._releases.pop(packet_id, 0)

    def _send_pubrel(self, mid: int) -> MQTTErrorCode:
        self._releases[mid] = self._releases.get(mid, 0) + 1
        return super()._send_pubrel(mid)

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = bytes(self._in_packet["packet"])
        packet_id = int.from_bytes(packet[:2], "big")
        if len(packet) > 2 and packet[2] >= FAILURE and packet_id in self._out_messages:
            code = ReasonCode(PacketTypes.PUBREC, identifier=packet[2])
            return self._do_on_publish(packet_id, code, Properties(PacketTypes.PUBREC))  # type: ignore[no-untyped-call]
        return super()._handle_pubrec()

    def _messages_reconnect_reset_out(self) -> None:
        for message in self._out_messages.values():
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects, and where.

    Attributes:
        client_id: Of a session of its own.
        level: 4 (3.1.1) or 5.
        ports: Of the gateways.
        home: Index of the port it connects to first.
        moves: Whether it takes the next gateway when one does not answer, else the same again.
        keep_alive_seconds: Of its connections.
        away_seconds: How long it stays away after a connection has broken.
        keeps_session: Whether its session outlives its connections.
    """

    client_id: str
    level: int
    ports: Sequence[int]
    home: int
    moves: bool
    keep_alive_seconds: int = KEEP_ALIVE_SECONDS
    away_seconds: float = RETRY_SECONDS
    keeps_session: bool = True


class ProvingClient:
    """A client that comes when told, and stays connected until told otherwise."""

    def __init__(self, caller: Caller) -> None:
        self.client_id = caller.client_id
        self.ports = caller.ports
        self.place = caller.home
        self.keeps_session = caller.keeps_session
        self.connections = 0
        self.breaks = 0
        """Connections that had begun and ended though the client did not leave."""
        self.lost_sessions = 0
        self._caller = caller
        self._is_wanted = False
        self._is_open = False
        self._has_begun = False
        self._cut = False
        self._try_at = 0.0
        self._give_up_at = 0.0
        self._paho = _Paho(caller.client_id, caller.level, keeps_session=caller.keeps_session)
        self._paho.on_connect = self._connected

    @property
    def socket(self) -> "SocketLike | None":
        return self._paho.socket() if self._is_open else None

    @property
    def wants_write(self) -> bool:
        return self._paho.want_write()

    @property
    def is_connected(self) -> bool:
        return self._is_open and self._paho.is_connected()

    @property
    def is_gone(self) -> bool:
        """Whether it has left, as it was told."""
        return not self._is_wanted and not self._is_open

    def leave(self, *, cut: bool) -> None:
        """Disconnect and stay away; a cut connection ends without DISCONNECT."""
        self._cut = cut
        self._is_wanted = False

    def come(self, home: int | None = None) -> None:
        """Connect, to another gateway than before if one is named, and stay."""
        if home is not None:
            self.place = home
        self._is_wanted = True

    def serve(self, now: float) -> None:
        """Do what is due: connect, ping, leave, and what the kind of client does in its turn."""
        if not self._is_wanted:
            if self._is_open:
                self._go()
        elif not self._is_open:
            if now >= self._try_at:
                self._connect(now)
        elif self._paho.loop_misc() != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._lost(now)
        elif self._paho.is_connected():
            self._turn(now)
        elif now > self._give_up_at:
            self._lost(now)

    def read(self, now: float) -> None:
        """Take what has come; paho reads one packet at a time."""
        for _ in range(PACKETS_AT_ONCE):
            if self._paho.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._lost(now)
                return
            socket = self.socket
            if socket is None or not select.select((socket,), (), (), 0)[0]:
                return

    def write(self, now: float) -> None:
        if self._paho.loop_write() != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._lost(now)

    def _connect(self, now: float) -> None:
        more: dict[str, Any] = {}
        caller = self._caller
        if caller.level == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = NEVER_EXPIRES if caller.keeps_session else 0
            more = {"clean_start": not caller.keeps_session, "properties": properties}
        self._give_up_at = now + CONNACK_SECONDS
        try:
            self._paho.connect(HOST, self.ports[self.place], caller.keep_alive_seconds, **more)
        except OSError:
            self._lost(now)
        else:
            self._is_open = True

    def _lost(self, now: float) -> None:
        has_broken = self._has_begun
        self._close()
        self._try_at = now + (self._caller.away_seconds if has_broken else RETRY_SECONDS)
        if has_broken:
            self.breaks += 1
            self._broke(now)
        if self._caller.moves:
            self.place = (self.place + 1) % len(self.ports)

    def _go(self) -> None:
        if not self._cut:
            self._paho.disconnect()
        self._close()

    def _close(self) -> None:
        self._is_open = self._has_begun = False
        socket = self._paho.socket()
        if socket is not None:
            socket.close()

    def _connected(
        self, _client: Client, _data: Any, flags: ConnectFlags, code: ReasonCode, _more: Any
    ) -> None:
        if code.is_failure:
            return
        self._has_begun = True
        self.connections += 1
        if self.keeps_session and self.connections > 1 and not flags.session_present:
            self.lost_sessions += 1
        self._welcomed()

    def _welcomed(self) -> None:
        """Do what there is to do at the start of a connection."""

    def _broke(self, now: float) -> None:
        """Do what there is to do when a connection has broken."""

    def _turn(self, now: float) -> None:
        """Do what is due; called all the time while connected."""


class Attendant(threading.Thread):
    """Serves clients by turns: with a thread for each they would wait for each other's.

    Args:
        clients: Disconnected at the end.
        steps: Called between their turns.
    """

    def __init__(
        self, clients: Sequence[ProvingClient], steps: Sequence[Callable[[], None]]
    ) -> None:
        super().__init__(name="clients", daemon=True)
        self._clients = clients
        self._steps = steps
        self._stopping = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                for step in self._steps:
                    step()
                self._serve_all()
            for client in self._clients:
                client.leave(cut=False)
                client.serve(time.monotonic())
        except Exception as exc:  # noqa: BLE001 - whoever waits for something is told
            self._failure = exc

    def holds(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until something holds; return whether it does within the time.

        Raises:
            OperationalError: The clients are served no more.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """End; the clients disconnect.

        Raises:
            OperationalError: The clients were served no more before that.
        """
        self._stopping.set()
        self.join()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise OperationalError(f"the clients broke: {self._failure!r}") from self._failure

    def _serve_all(self) -> None:
        now = time.monotonic()
        by_socket: dict[SocketLike, ProvingClient] = {}
        writers = []
        for client in self._clients:
            client.serve(now)
            socket = client.socket
            if socket is not None:
                by_socket[socket] = client
                if client.wants_write:
                    writers.append(socket)
        readable, writable, _ = select.select(list(by_socket), writers, (), IDLE_SECONDS)
        now = time.monotonic()
        for socket in writable:
            by_socket[socket].write(now)
        for socket in readable:
            if by_socket[socket].socket is socket:  # not lost meanwhile
                by_socket[socket].read(now)


def end_session(client_id: str, port: int) -> None:
    """Make the gateway forget a session."""
    paho = Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv311
    )  # a clean session
    paho.connect(HOST, port)
    give_up_at = time.monotonic() + CONNACK_SECONDS
    while not paho.is_connected() and time.monotonic() < give_up_at:
        if paho.loop(IDLE_SECONDS) != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return
    paho.disconnect()
    while paho.loop(IDLE_SECONDS) == MQTTErrorCode.MQTT_ERR_SUCCESS:
        pass
