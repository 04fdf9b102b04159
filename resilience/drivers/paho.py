"""The driver over paho-mqtt, the client library that most programs in Python use.

It shares nothing with the raw driver but the history, so a fault that both see is the broker's.
paho shows less: with QoS 2 a message is known at PUBREL, and repetitions before it are not. It
resends after a lost session too, and acknowledges at once: a plan's `hold_seconds` is for the raw
driver.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv31, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from resilience.drivers.frames import Addresses, ConnectOptions, closes_in_time
from resilience.drivers.operations import Operations
from resilience.errors import ConnectRefused
from resilience.history import Writer, encode_payload

PROTOCOLS: Final = {3: MQTTv31, 4: MQTTv311, 5: MQTTv5}
CONNECT_SECONDS: Final = 2.0
"""For TCP alone; paho blocks while it opens a connection."""

_RESET: Final = struct.pack("ii", 1, 0)


def _properties(packet_type: int) -> Any:
    """Make properties, which paho has no types for."""
    make: Any = Properties
    return make(packet_type)


class PahoClient:
    """One client identity; see `frames.Client`. paho runs on the event loop, without threads."""

    def __init__(
        self, name: str, history: Writer, addresses: Addresses, *, on_lost: Callable[[], None]
    ) -> None:
        self.name = name
        self.receive_maximum = 65_535
        self._operations = Operations(name, history)
        self._write = self._operations.write
        self._addresses = addresses
        self._on_lost = on_lost
        self._paho: Client | None = None
        self._options: ConnectOptions | None = None
        self._up = False
        self._ending = False
        self._connack: asyncio.Future[tuple[int, bool]] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._publishing: dict[int, tuple[str, asyncio.Future[str]]] = {}
        self._requests: dict[int, tuple[str, str, asyncio.Future[str]]] = {}
        self._ticking: asyncio.TimerHandle | None = None

    @property
    def is_connected(self) -> bool:
        return self._up

    @property
    def unfinished(self) -> int:
        return len(self._publishing) + len(self._requests)

    def _make(self, options: ConnectOptions) -> Client:
        """Return a paho client; the same one as long as its session is to go on."""
        same = self._options is not None and replace(self._options, node=options.node) == options
        if self._paho is not None and same:
            return self._paho
        self.give_up()
        self._options = options
        version = PROTOCOLS[options.version]
        client = Client(
            CallbackAPIVersion.VERSION2,
            options.client_id,
            clean_session=options.clean if options.version != 5 else None,
            protocol=version,
        )
        client.max_inflight_messages_set(0)
        client.connect_timeout = CONNECT_SECONDS
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_suback
        client.on_unsubscribe = self._on_unsuback
        loop = asyncio.get_running_loop()
        client.on_socket_open = lambda c, _u, sock: loop.add_reader(sock, c.loop_read)
        client.on_socket_close = lambda _c, _u, sock: self._forget(sock)
        client.on_socket_register_write = lambda c, _u, sock: loop.add_writer(sock, c.loop_write)
        client.on_socket_unregister_write = lambda _c, _u, sock: self._stop_writing(sock)
        self._paho = client
        return client

    def _forget(self, sock: Any) -> None:
        # A socket that we have cut has no number any more; paho still tells of it later.
        if sock.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(sock)
            loop.remove_writer(sock)

    def _stop_writing(self, sock: Any) -> None:
        if sock.fileno() >= 0:
            asyncio.get_running_loop().remove_writer(sock)

    async def connect(self, options: ConnectOptions, timeout_seconds: float) -> bool:
        client = self._make(options)
        loop = asyncio.get_running_loop()
        will_id = self._operations.connect(options)
        self._ending = False
        self._connack = loop.create_future()
        self._closed = loop.create_future()
        will = options.will
        if will is not None:
            properties = None
            if will.delay and options.version == 5:
                properties = _properties(PacketTypes.WILLMESSAGE)
                properties.WillDelayInterval = will.delay
            payload = encode_payload(will_id, 0)
            client.will_set(will.topic, payload, will.qos, will.retain, properties)
        opened = False
        try:
            self._open(client, options)
            opened = True
            async with asyncio.timeout(timeout_seconds):
                code, present = await self._connack
        except (OSError, TimeoutError) as exc:
            self._cut()
            self._write("connect", "info" if opened else "fail", reason=str(exc) or "timeout")
            raise OSError(f"{self.name}: no connection: {exc!r}") from exc
        if code:
            self._cut()
            self._write("connect", "fail", reason=f"0x{code:02x}")
            raise ConnectRefused(code)
        self._tick()
        return present

    def _open(self, client: Client, options: ConnectOptions) -> None:
        host, port = self._addresses[options.node]
        keep_alive = options.keep_alive or 3600
        if options.version != 5:
            client.connect(host, port, keep_alive)
            return
        properties = _properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = options.expiry
        if options.receive_maximum < 65_535:
            properties.ReceiveMaximum = options.receive_maximum
        client.connect(host, port, keep_alive, clean_start=options.clean, properties=properties)

    def _tick(self) -> None:
        """Let paho look at its keep-alive."""
        if self._up and self._paho is not None:
            self._paho.loop_misc()
            self._ticking = asyncio.get_running_loop().call_later(0.5, self._tick)

    def _cut(self) -> None:
        """Break the connection with RST."""
        sock = self._paho.socket() if self._paho is not None else None
        if isinstance(sock, socket.socket) and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._forget(sock)
            with contextlib.suppress(OSError):
                sock.close()

    # Called by paho.

    def _on_connect(self, _c: Client, _u: Any, flags: Any, code: Any, properties: Any) -> None:
        if self._connack is None or self._connack.done():
            return
        value = int(code.value)
        if not value:
            self._up = True
            maximum = getattr(properties, "ReceiveMaximum", None)
            self.receive_maximum = maximum or 65_535
            self._write("connect", "ok", session_present=bool(flags.session_present))
        self._connack.set_result((value, bool(flags.session_present)))

    def _on_disconnect(self, _c: Client, _u: Any, _flags: Any, code: Any, _p: Any) -> None:
        self._ended(str(code))

    def _ended(self, reason: str) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(OSError(reason))
        if self._up:
            self._up = False
            if not self._ending:
                self._write("closed", "ok", reason=reason)
            self._fail_requests()
            self._on_lost()

    def _on_message(self, _c: Client, _u: Any, message: MQTTMessage) -> None:
        self._operations.receive(
            bytes(message.payload),
            message.topic,
            qos=message.qos,
            dup=message.dup,
            retain=message.retain,
            packet_id=message.mid,
        )
        if message.qos:
            # paho sends PUBACK or PUBCOMP when this returns.
            self._write("acknowledge", "ok", packet_id=message.mid)

    def _on_publish(self, _c: Client, _u: Any, mid: int, code: Any, _p: Any) -> None:
        known = self._publishing.pop(mid, None)
        if known is not None:
            message_id, done = known
            refused = code is not None and code.value >= 0x80
            self._finish(message_id, done, "fail" if refused else "ok")

    def _finish(self, message_id: str, done: "asyncio.Future[str]", type_: str) -> None:
        self._write("publish", type_, id=message_id)
        if not done.done():
            done.set_result(type_)

    def _on_suback(self, _c: Client, _u: Any, mid: int, codes: Any, _p: Any) -> None:
        self._answered(mid, codes[0].value)

    def _on_unsuback(self, _c: Client, _u: Any, mid: int, codes: Any, _p: Any) -> None:
        self._answered(mid, codes[0].value if codes else 0)

    def _answered(self, mid: int, code: int) -> None:
        known = self._requests.pop(mid, None)
        if known is None:
            return
        f, request_id, done = known
        type_ = "fail" if code >= 0x80 else "ok"
        granted = code if f == "subscribe" and type_ == "ok" else None
        self._write(f, type_, id=request_id, granted=granted)
        if not done.done():
            done.set_result(type_)

    # Called by the runner.

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
        if self._paho is None or (not qos and not self._up):
            self._finish(message_id, done, "fail")
            return done
        properties = None
        if expiry is not None and self._options is not None and self._options.version == 5:
            properties = _properties(PacketTypes.PUBLISH)
            properties.MessageExpiryInterval = expiry
        payload = b"" if empty else encode_payload(message_id, size)
        info = self._paho.publish(topic, payload, qos, retain, properties)
        if qos:
            self._publishing[info.mid] = (message_id, done)
        else:
            self._finish(message_id, done, "ok")
        return done

    async def subscribe(
        self,
        topic_filter: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_handling: int = 0,
    ) -> str:
        def ask(client: Client) -> int | None:
            if self._options is None or self._options.version != 5:
                return client.subscribe(topic_filter, qos)[1]
            options = SubscribeOptions(qos, no_local, False, retain_handling)
            return client.subscribe(topic_filter, options=options)[1]

        return await self._request(
            "subscribe",
            topic_filter,
            ask,
            qos=qos,
            no_local=no_local or None,
            retain_handling=retain_handling or None,
        )

    async def unsubscribe(self, topic_filter: str) -> str:
        return await self._request(
            "unsubscribe", topic_filter, lambda client: client.unsubscribe(topic_filter)[1]
        )

    async def _request(
        self, f: str, topic_filter: str, ask: Callable[[Client], int | None], **fields: Any
    ) -> str:
        request_id = self._operations.request(f, topic_filter, fields)
        mid = ask(self._paho) if self._up and self._paho is not None else None
        if mid is None:
            self._write(f, "fail", id=request_id, reason="not connected")
            return "fail"
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._requests[mid] = (f, request_id, done)
        return await done

    async def disconnect(self) -> None:
        if not self._up or self._paho is None or self._closed is None:
            return
        self._ending = True
        self._write("disconnect", "invoke")
        self._paho.disconnect()
        closed = await closes_in_time(self._closed)
        self._up = False
        self._write("disconnect", "ok" if closed else "info")
        self._cut()
        self._fail_requests()

    def abort(self, reason: str) -> None:
        if self._up:
            self._cut()
            self._ended(reason)

    def _fail_requests(self) -> None:
        for f, request_id, done in self._requests.values():
            self._write(f, "info", id=request_id)
            if not done.done():
                done.set_result("info")
        self._requests.clear()

    def give_up(self) -> None:
        self._fail_requests()
        for message_id, done in self._publishing.values():
            self._finish(message_id, done, "info")
        self._publishing.clear()
