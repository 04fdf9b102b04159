"""MQTT in WebSocket frames: a protocol to the socket below, a transport to the MQTT above.

Framing and handshake are wsproto's. Here is MQTT's use of them (section 6 of 3.1.1 and 5.0):
the sub-protocol, binary frames only [MQTT5-6.0.0-1] [MQTT311-6.0.0-1], packets cut anywhere, many
in a frame and a frame in the midst of one [MQTT5-6.0.0-2] [MQTT311-6.0.0-2].

A frame is passed on as it comes, so one that claims to be huge takes no memory: its bound is the
largest packet that MQTT allows. Compression is not offered: MQTT payloads gain little by it,
and it turns a small frame into a large one before anything could look at its size.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import H11Handshake
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.info import ListenerInfo, MakeConnection
from ingest.gateway.listeners.origins import is_welcome

if TYPE_CHECKING:
    from ingest.gateway.listeners.transports import Facts

logger = logging.getLogger(__name__)

MAX_HANDSHAKE_BYTES: Final = 16 * 1024
"""Largest request of a client; browsers send cookies along."""

CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""How long the client may take to answer a Close frame before the socket is closed."""

SUBPROTOCOL: Final = "mqtt"  # [MQTT5-6.0.0-3] [MQTT5-6.0.0-4] [MQTT311-6.0.0-3] [MQTT311-6.0.0-4]
SUBPROTOCOL_3_1: Final = "mqttv3.1"
"""Asked for by clients of 3.1; that version says nothing of WebSockets."""

_END_OF_REQUEST: Final = b"\r\n\r\n"
_KEY: Final = re.compile(
    rb"^sec-websocket-key:[ \t]*([^ \t\r\n]*)[ \t]*\r$", re.IGNORECASE | re.MULTILINE
)
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class WebSocketRules:
    """One listener's rules for its WebSocket clients.

    Args:
        info: For connections with the sub-protocol `mqtt`.
        info_3_1: Info for clients with `mqttv3.1`; None when the listener has no 3.1.
        path: Path of the request; `*` for any.
        origins: Origins of pages that may connect, as `is_welcome` takes them.
        timeout_seconds: For the handshake.
    """

    info: ListenerInfo
    info_3_1: ListenerInfo | None
    path: str
    origins: tuple[str, ...]
    timeout_seconds: float


class UpgradeRefused(Exception):  # noqa: N818 - it is an answer
    """The answer to a request that does not become a WebSocket."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class WebSocket(asyncio.Protocol):
    """One connection.

    The protocol above is made when the handshake is over. Bytes that it writes at once are
    one binary frame; back-pressure passes through in both directions.

    Args:
        rules: Rules of the listener.
        make_connection: Makes the protocol above.
        in_handshake: Holds this connection until the handshake is over.
        arrivals: Arrivals of the gateway; has it as long.
    """

    __slots__ = (
        "_above",
        "_arrivals",
        "_connection",
        "_facts",
        "_failure",
        "_in_handshake",
        "_is_writable",
        "_make_connection",
        "_request",
        "_rules",
        "_timer",
        "_transport",
    )

    def __init__(
        self,
        rules: WebSocketRules,
        make_connection: MakeConnection,
        in_handshake: "set[WebSocket]",
        arrivals: Arrivals,
    ) -> None:
        self._rules = rules
        self._make_connection = make_connection
        self._in_handshake = in_handshake
        self._arrivals = arrivals
        self._transport: asyncio.Transport
        self._request = b""
        self._connection: Connection | None = None  # these from the end of the handshake on
        self._above: asyncio.Protocol | None = None
        self._facts: Facts = {}
        self._failure: Exception | None = None
        self._is_writable = True
        self._timer: asyncio.TimerHandle | None = None

    # The socket below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._in_handshake.add(self)
        host = str(self._peer[0]) if isinstance(self._peer, tuple) else ""
        self._arrivals.enter(self, host, self._rules.info.name)
        self._start_timer(self._rules.timeout_seconds, self._give_up_handshake)

    def data_received(self, data: bytes) -> None:
        if self._connection is None:
            self._receive_request(data)
        elif not self._transport.is_closing():
            self._receive_frames(self._connection, data)

    def pause_writing(self) -> None:
        self._is_writable = False
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._above is not None:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._leave_handshake()
        above, self._above = self._above, None
        if above is not None:
            above.connection_lost(exc or self._failure)

    # The handshake

    def _receive_request(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._request += data
        self._arrivals.hold(self, len(self._request))
        if self._transport.is_closing():
            return
        end = self._request.find(_END_OF_REQUEST) + len(_END_OF_REQUEST)
        is_whole = end >= len(_END_OF_REQUEST)
        if (end if is_whole else len(self._request)) > MAX_HANDSHAKE_BYTES:
            self._log_refused(f"request longer than {MAX_HANDSHAKE_BYTES} bytes")
            self._transport.close()
            return
        if not is_whole:
            return
        request, rest = self._request[:end], self._request[end:]
        self._request = b""
        handshake = H11Handshake(ConnectionType.SERVER)
        try:
            handshake.receive_data(request)
            accepted, info = self._accept(next(handshake.events()))
            _check_form(request)
            answer = handshake.send(accepted)
        except (
            UpgradeRefused,
            RemoteProtocolError,
            h11.ProtocolError,
            StopIteration,
            ValueError,
        ) as exc:
            # ValueError: a header that is not text where it must be. h11: a request with a body.
            self._refuse(handshake, exc)
            return
        self._stop_timer()
        self._leave_handshake()
        self._transport.write(answer)
        self._connection = Connection(ConnectionType.SERVER)
        self._above = self._make_connection(info)
        self._above.connection_made(cast("asyncio.Transport", self))
        if not self._is_writable:
            self._above.pause_writing()
        if rest:
            self._receive_frames(self._connection, rest)

    def _accept(self, request: Event) -> tuple[AcceptConnection, ListenerInfo]:
        """Return the answer to a request and the listener that its connection counts for.

        Raises:
            Refused: It is not for us.
        """
        assert isinstance(request, Request)
        rules = self._rules
        headers = {name: value.decode("latin-1") for name, value in request.extra_headers}
        if rules.path not in ("*", request.target.partition("?")[0]):
            raise UpgradeRefused(404, f"no such path; MQTT is at {rules.path}")
        origin = headers.get(b"origin")
        if not is_welcome(origin, request.host, rules.origins):
            raise UpgradeRefused(403, f"pages of {origin} may not connect")
        if SUBPROTOCOL in request.subprotocols:
            subprotocol, info = SUBPROTOCOL, rules.info
        elif SUBPROTOCOL_3_1 in request.subprotocols and rules.info_3_1 is not None:
            subprotocol, info = SUBPROTOCOL_3_1, rules.info_3_1
        else:
            raise UpgradeRefused(400, "the WebSocket sub-protocol mqtt is required")
        self._facts = {
            "websocket_path": request.target,
            "websocket_subprotocol": subprotocol,
        }
        return AcceptConnection(subprotocol=subprotocol), info

    def _refuse(self, handshake: H11Handshake, exc: Exception) -> None:
        status, headers, reason = 400, [], str(exc) or "not an HTTP request"
        if isinstance(exc, UpgradeRefused):
            status = exc.status
        elif isinstance(exc, RemoteProtocolError) and isinstance(exc.event_hint, RejectConnection):
            status, headers = exc.event_hint.status_code, list(exc.event_hint.headers)
        body = reason.encode() + b"\n"
        headers += [
            (b"Connection", b"close"),
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", b"%d" % len(body)),
        ]
        try:
            answer = handshake.send(RejectConnection(status, headers, has_body=True))
            self._transport.write(answer + handshake.send(RejectData(body)))
        except (LocalProtocolError, h11.ProtocolError):  # too broken to be answered
            pass
        self._log_refused(reason)
        self._transport.close()

    def _leave_handshake(self) -> None:
        self._in_handshake.discard(self)
        self._arrivals.leave(self)

    def give_way(self, reason: str) -> None:
        """Cut a connection that has not ended its handshake, to make room for others."""
        self._log_refused(reason)
        self._transport.abort()

    def _give_up_handshake(self) -> None:
        self._log_refused("no WebSocket handshake in time")
        self._transport.abort()

    # Frames

    def _receive_frames(self, connection: Connection, data: bytes) -> None:
        connection.receive_data(data)
        for event in connection.events():
            # Each may end the connection; later events are then ignored.
            if isinstance(event, BytesMessage):
                if self._above is not None and connection.state is ConnectionState.OPEN:
                    self._above.data_received(cast("bytes", event.data))
            elif isinstance(event, Ping):
                # A client that pings and does not read must not fill our memory with answers.
                if self._is_writable and connection.state is ConnectionState.OPEN:
                    self._transport.write(connection.send(event.response()))
            elif isinstance(event, TextMessage):
                self._fail(
                    connection,
                    CloseReason.UNSUPPORTED_DATA,
                    "text frame, expected binary",
                    "MQTT5-6.0.0-1",
                )
                return
            elif isinstance(event, CloseConnection):
                if connection.state is ConnectionState.OPEN:  # wsproto says: broken frame
                    self._fail(
                        connection,
                        CloseReason(event.code),
                        event.reason or "malformed frame",
                        "RFC6455-5.2",
                    )
                    return
                if connection.state is ConnectionState.REMOTE_CLOSING:
                    self._transport.write(connection.send(event.response()))
                self._transport.close()
                return

    def _fail(self, connection: Connection, code: CloseReason, reason: str, clause: str) -> None:
        """End a connection whose client breaks the rules of the framing."""
        self._failure = ConnectionError(f"{reason} [{clause}]")
        logger.debug(
            "protocol violation",
            extra={"fields": {"peer": self._peer, "clause": clause, "reason": reason}},
        )
        if connection.state is ConnectionState.OPEN:
            self._transport.write(connection.send(CloseConnection(code, reason)))
        self._transport.close()

    # The transport that the protocol above has

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._facts:
            return self._facts[name]
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        connection = self._connection
        return (
            connection is None
            or connection.state is not ConnectionState.OPEN
            or self._transport.is_closing()
        )

    def write(self, data: bytes) -> None:
        """Send bytes as one binary frame; nothing once the connection closes."""
        if not self.is_closing():
            assert self._connection is not None
            self._transport.write(self._connection.send(BytesMessage(data)))

    def close(self) -> None:
        """Send written bytes, then close as RFC 6455 has it."""
        if self.is_closing():
            return
        assert self._connection is not None
        self._transport.write(self._connection.send(CloseConnection(CloseReason.NORMAL_CLOSURE)))
        self._start_timer(CLOSE_TIMEOUT_SECONDS, self._transport.close)
        self._transport.resume_reading()  # for the client's Close

    def can_write_eof(self) -> bool:
        """There are no half-closed WebSockets; `close` waits for the client by itself."""
        return False

    def abort(self) -> None:
        self._transport.abort()

    def _start_timer(self, seconds: float, then: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _peer(self) -> Any:
        return self._transport.get_extra_info("peername")

    def _log_refused(self, reason: str) -> None:
        fields = {"listener": self._rules.info.name, "peer": self._peer, "reason": reason}
        logger.info("connection refused", extra={"fields": fields})


def _check_form(request: bytes) -> None:
    """Check parts of a well-formed request that wsproto does not look at (RFC 6455, 4.2.1).

    Raises:
        Refused: It is of another version of HTTP, or its key is none.
    """
    line, _, headers = request.partition(b"\r\n")
    if not line.endswith(b" HTTP/1.1"):
        raise UpgradeRefused(400, "HTTP/1.1 is required")
    key = _KEY.search(headers)
    if key is None or len(base64.b64decode(key[1], validate=True)) != _KEY_BYTES:
        raise UpgradeRefused(400, "Sec-WebSocket-Key has to be 16 bytes in base64")
