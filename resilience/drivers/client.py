"""An MQTT client as a state machine over frames; it knows no bytes and no clock but the loop's.

The raw driver gives it a socket, the double a link in memory. It does as the specification says,
no more: it sends again only after it has connected again, with DUP and the same identifiers, and
forgets exchanges under way when the broker has forgotten the session.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from resilience.drivers.frames import ConnectOptions, Frame, Opener, Transport, closes_in_time
from resilience.drivers.operations import Operations
from resilience.errors import ConnectRefused
from resilience.history import Writer, encode_payload

NOT_FOUND: Final = 0x92
"""The reason code Packet Identifier not found."""


@dataclass(slots=True)
class _Outgoing:
    """A PUBLISH of QoS 1 or 2 until its last acknowledgement."""

    frame: Frame
    message_id: str
    done: "asyncio.Future[str]"
    releases: int = 0
    """How often PUBREL has been sent."""
    sent: bool = False


@dataclass(slots=True)
class _Request:
    """SUBSCRIBE or UNSUBSCRIBE until its answer."""

    f: str
    request_id: str
    done: "asyncio.Future[str]"


class MqttClient:
    """One client; see `frames.Client`.

    Args:
        name: The process in the history, and the prefix of its identifiers.
        on_lost: Called when a connection is over, however it ended.
        hold: Called with a function that acknowledges a message; a slow client calls it later.
    """

    def __init__(
        self,
        name: str,
        history: Writer,
        opener: Opener,
        *,
        on_lost: Callable[[], None],
        hold: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.name = name
        self.receive_maximum = 65_535
        self._operations = Operations(name, history)
        self._write = self._operations.write
        self._opener = opener
        self._hold = hold
        self._on_lost = on_lost
        self._transport: Transport | None = None
        self._up = False
        self._ending = False
        self._packet_id = 0
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[int, str] = {}
        self._requests: dict[int, _Request] = {}
        self._connack: asyncio.Future[Frame] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._heard = 0.0

    @property
    def _number(self) -> int:
        return self._operations.connection

    @property
    def is_connected(self) -> bool:
        return self._up

    @property
    def unfinished(self) -> int:
        return len(self._outgoing) + len(self._requests)

    async def connect(self, options: ConnectOptions, timeout_seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        will_id = self._operations.connect(options)
        number = self._number
        self._connack = loop.create_future()
        self._closed = loop.create_future()
        self._ending = False
        transport: Transport | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                transport = await self._opener(
                    options, lambda frame: self._frame(number, frame), self._on_end(number)
                )
                self._transport = transport
                fields: dict[str, Any] = {"options": options}
                if options.will is not None:
                    fields["will_payload"] = encode_payload(will_id, 0)
                transport.send(Frame("connect", fields=fields))
                connack = await self._connack
        except (OSError, TimeoutError) as exc:
            self._transport = None
            if transport is not None:
                transport.abort()
            type_ = "fail" if transport is None else "info"
            self._write("connect", type_, reason=str(exc) or type(exc).__name__)
            raise OSError(f"{self.name}: no connection: {exc!r}") from exc
        if connack.code:
            self._transport = None
            transport.abort()
            self._write("connect", "fail", reason=f"0x{connack.code:02x}")
            raise ConnectRefused(connack.code)
        present: bool = connack.fields["session_present"]
        self._resume(options, connack, present=present)
        return present

    def _resume(self, options: ConnectOptions, connack: Frame, *, present: bool) -> None:
        """Go on with exchanges that the broker still knows, and give the rest up."""
        self.receive_maximum = connack.fields.get("receive_maximum", 65_535)
        for request in self._requests.values():
            self._finish_request(request, "info")
        self._requests.clear()
        if not present:
            self._incoming.clear()
            for packet_id, out in list(self._outgoing.items()):
                if out.sent:
                    del self._outgoing[packet_id]
                    self._finish(out, "info", reason="session gone")
        self._heard = asyncio.get_running_loop().time()
        if options.keep_alive:
            self._watch(options.keep_alive)
        if self._transport is None:
            return
        for packet_id, out in self._outgoing.items():
            if out.releases:
                out.releases += 1
                self._transport.send(Frame("pubrel", packet_id))
            else:
                out.frame.dup = out.sent
                out.sent = True
                self._transport.send(out.frame)

    def _watch(self, keep_alive: int) -> None:
        """Send PINGREQ in time, and cut a connection that brings nothing [MQTT5-3.1.2.10]."""
        loop = asyncio.get_running_loop()
        number = self._number

        def tick() -> None:
            if number != self._number or not self._up or self._transport is None:
                return
            if loop.time() - self._heard > 1.5 * keep_alive:
                self.abort("nothing heard")
                return
            self._transport.send(Frame("pingreq"))
            self._keep_alive = loop.call_later(keep_alive / 2, tick)

        self._keep_alive = loop.call_later(keep_alive / 2, tick)

    # Frames from the broker.

    def _on_end(self, number: int) -> Callable[[str], None]:
        def on_end(reason: str) -> None:
            if number == self._number:
                self._ended(reason)

        return on_end

    def _ended(self, reason: str) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(OSError(reason))
        if self._up:
            self._up = False
            self._transport = None
            if not self._ending:
                self._write("closed", "ok", reason=reason)
            self._fail_requests()
            self._on_lost()
        if self._keep_alive is not None:
            self._keep_alive.cancel()

    def _frame(self, number: int, frame: Frame) -> None:
        if number != self._number or self._transport is None:
            return
        self._heard = asyncio.get_running_loop().time()
        kind = frame.kind
        if kind == "publish":
            self._receive(frame)
        elif kind == "connack":
            self._receive_connack(frame)
        elif kind in ("puback", "pubrec", "pubcomp"):
            self._acknowledged(frame)
        elif kind == "pubrel":
            self._incoming.pop(frame.packet_id, None)
            self._settle(frame.packet_id, "pubcomp")
        elif kind in ("suback", "unsuback"):
            request = self._requests.pop(frame.packet_id, None)
            if request is not None:
                refused = frame.code >= 0x80
                granted = frame.code if kind == "suback" and not refused else None
                self._finish_request(request, "fail" if refused else "ok", granted=granted)

    def _receive_connack(self, frame: Frame) -> None:
        """Note the answer before anything behind it in the same bytes is looked at."""
        if self._connack is None or self._connack.done():
            return
        self._connack.set_result(frame)
        if not frame.code:
            self._up = True
            self._write("connect", "ok", session_present=frame.fields["session_present"])

    def _receive(self, frame: Frame) -> None:
        message_id = self._operations.receive(
            frame.payload,
            frame.topic,
            qos=frame.qos,
            dup=frame.dup,
            retain=frame.retain,
            packet_id=frame.packet_id,
            again=frame.qos == 2 and frame.packet_id in self._incoming,
        )
        if frame.qos == 2:
            self._incoming[frame.packet_id] = message_id or "?"
            if self._transport is not None:
                self._transport.send(Frame("pubrec", frame.packet_id))
        elif frame.qos == 1:
            number = self._number

            def settle() -> None:
                if number == self._number:
                    self._settle(frame.packet_id, "puback")

            if self._hold is None:
                settle()
            else:
                self._hold(settle)

    def _settle(self, packet_id: int, kind: str) -> None:
        if self._transport is not None and self._up:
            self._write("acknowledge", "ok", packet_id=packet_id)
            self._transport.send(Frame(kind, packet_id))

    def _acknowledged(self, frame: Frame) -> None:
        out = self._outgoing.get(frame.packet_id)
        if out is None:
            if frame.kind == "pubrec" and self._transport is not None:
                self._transport.send(Frame("pubrel", frame.packet_id, code=NOT_FOUND))
            return
        # Of a PUBREL that was sent again it says that the exchange is over already.
        is_over = frame.kind == "pubcomp" and frame.code == NOT_FOUND and out.releases > 1
        if frame.code >= 0x80 and not is_over:
            del self._outgoing[frame.packet_id]
            self._finish(out, "fail", reason=f"0x{frame.code:02x}")
        elif frame.kind == "pubrec":
            out.releases += 1
            if self._transport is not None:
                self._transport.send(Frame("pubrel", frame.packet_id))
        elif (frame.kind == "puback") == (out.frame.qos == 1):
            del self._outgoing[frame.packet_id]
            self._finish(out, "ok")

    def _finish(self, out: _Outgoing, type_: str, **fields: Any) -> None:
        self._write("publish", type_, id=out.message_id, **fields)
        if not out.done.done():
            out.done.set_result(type_)

    def _finish_request(self, request: _Request, type_: str, **fields: Any) -> None:
        self._write(request.f, type_, id=request.request_id, **fields)
        if not request.done.done():
            request.done.set_result(type_)

    # Requests of the client's user.

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._outgoing and self._packet_id not in self._requests:
                return self._packet_id

    def publish(
        self,
        message_id: str,
        topic: str,
        *,
        qos: int = 0,
        retain: bool = False,
        empty: bool = False,
        expiry: int | None = None,
        size: int = 0,
    ) -> "asyncio.Future[str]":
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._operations.publish(
            message_id, topic, qos=qos, retain=retain, empty=empty, expiry=expiry
        )
        payload = b"" if empty else encode_payload(message_id, size)
        fields = {} if expiry is None else {"expiry": expiry}
        frame = Frame("publish", 0, topic, payload, qos, retain=retain, fields=fields)
        if qos:
            frame.packet_id = self._next_packet_id()
            out = self._outgoing[frame.packet_id] = _Outgoing(frame, message_id, done)
            if self._up and self._transport is not None:
                out.sent = True
                self._transport.send(frame)
        else:
            if self._up and self._transport is not None:
                self._transport.send(frame)
                type_ = "ok"
            else:
                type_ = "fail"
            self._write("publish", type_, id=message_id)
            done.set_result(type_)
        return done

    async def subscribe(
        self,
        topic_filter: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_handling: int = 0,
    ) -> str:
        return await self._request(
            "subscribe",
            topic_filter,
            qos=qos,
            no_local=no_local or None,
            retain_handling=retain_handling or None,
        )

    async def unsubscribe(self, topic_filter: str) -> str:
        return await self._request("unsubscribe", topic_filter)

    async def _request(self, f: str, topic_filter: str, **fields: Any) -> str:
        """Send and wait for the answer; the result is the type of the operation."""
        request_id = self._operations.request(f, topic_filter, fields)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        request = _Request(f, request_id, done)
        if not self._up or self._transport is None:
            self._finish_request(request, "fail", reason="not connected")
            return "fail"
        packet_id = self._next_packet_id()
        self._requests[packet_id] = request
        options = {key: value for key, value in fields.items() if value is not None}
        self._transport.send(
            Frame(f, packet_id, topic_filter, qos=fields.get("qos") or 0, fields=options)
        )
        return await done

    async def disconnect(self) -> None:
        transport = self._transport
        if not self._up or transport is None or self._closed is None:
            return
        self._ending = True
        self._write("disconnect", "invoke")
        transport.send(Frame("disconnect"))
        closed = await closes_in_time(self._closed)
        self._up = False
        self._transport = None
        self._write("disconnect", "ok" if closed else "info")
        with contextlib.suppress(OSError):
            transport.end()
        self._fail_requests()

    def abort(self, reason: str) -> None:
        transport = self._transport
        if transport is None:
            return
        self._ended(reason)
        transport.abort()

    def _fail_requests(self) -> None:
        for request in self._requests.values():
            self._finish_request(request, "info")
        self._requests.clear()

    def give_up(self) -> None:
        self._fail_requests()
        for out in self._outgoing.values():
            self._finish(out, "info", reason="end of the run")
        self._outgoing.clear()
