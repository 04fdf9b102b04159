"""The load side of `mqlake bench` where there is no C compiler: `loader.c` again, on asyncio.

Same options, same JSON answer; it becomes the bottleneck at some ten thousand messages a second,
and the bench says so. Run as `python -m mqlake.bench.fallback_loader`.
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from mqlake.limits import raise_open_files

_NUMBERS: Final = struct.Struct("<qII")  # due time in ns, publisher, sequence
_MAX_IN_FLIGHT: Final = 60_000
_HANDSHAKE_SECONDS: Final = 20.0
_SLICE_SECONDS: Final = 0.001
"""How long it may go on sending before it looks at what has come."""


class LoadError(Exception):
    """The broker did not do its part; the message is the whole report."""


@dataclass(slots=True)
class Options:
    publish_to: list[tuple[str, int]]
    subscribe_to: list[tuple[str, int]]
    publishers: int
    subscribers: int
    rate: float
    window: int
    await_delivery: bool
    everyone: bool
    subscribe_qos: int
    persistent: bool
    seconds: float
    warmup_seconds: float
    drain_seconds: float
    payload_bytes: int
    probes: int
    probe_interval_seconds: float
    prefix: str
    answers: str
    answered: int


@dataclass(slots=True)
class Tally:
    """Everything counted; times are of `time.monotonic_ns`."""

    measure_ns: int = 0
    end_ns: int = 0
    published: int = 0
    acknowledged: int = 0
    measured_acks: int = 0
    delivered: int = 0
    measured_deliveries: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    last_delivery_ns: int = 0
    longest_gap_ns: int = 0
    ack_ns: list[int] = field(default_factory=list)
    delivery_ns: list[int] = field(default_factory=list)
    suback_ns: list[int] = field(default_factory=list)


class _Client(asyncio.Protocol):
    """One connection: takes packets apart and awaits the answers of the handshake."""

    def __init__(self, load: "_Load", number: int) -> None:
        self.load = load
        self.number = number
        self.broken: str | None = None
        self._data = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self.load.fail(f"connection {self.number}: the broker closed it")

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        at = 0
        while True:
            length = shift = 0
            body = at + 1
            while body < len(data):
                byte = data[body]
                body += 1
                length |= (byte & 127) << shift
                shift += 7
                if not byte & 128:
                    break
            else:
                break
            if body + length > len(data):
                break
            self._take(data[at], data[body : body + length])
            at = body + length
        self._data = data[at:]

    def _take(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 3:
            self.take_publish(first, body)
        elif kind == 4:
            self.take_puback(int.from_bytes(body[:2], "big"))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result((kind, body))

    def take_publish(self, first: int, body: bytes) -> None:
        raise NotImplementedError

    def take_puback(self, packet_id: int) -> None:
        raise NotImplementedError

    async def ask(self, packet: bytes, kind: int, what: str) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(packet)
        try:
            got, body = await asyncio.wait_for(self._answer, _HANDSHAKE_SECONDS)
        except TimeoutError:
            raise LoadError(f"no {what} from the broker") from None
        if got != kind:
            raise LoadError(f"packet of type {got}, expected {what}")
        return body

    async def handshake(self, kind: str, *, clean: bool) -> None:
        client_id = f"bench-{os.getpid()}-{kind}{self.number}".encode()
        flags = b"\2" if clean else b"\0"
        variable = b"\0\4MQTT\4" + flags + b"\1\x2c" + encode_text(client_id)
        body = await self.ask(b"\x10" + encode_length(len(variable)) + variable, 2, "CONNACK")
        if body[1]:
            raise LoadError(f"CONNACK with return code {body[1]}, expected 0")

    async def subscribe(self, packet_id: int, topic_filter: str) -> None:
        variable = packet_id.to_bytes(2, "big") + encode_text(topic_filter.encode())
        variable += bytes((self.load.options.subscribe_qos,))
        body = await self.ask(b"\x82" + encode_length(len(variable)) + variable, 9, "SUBACK")
        if body[2] > 1:
            raise LoadError(f"SUBACK refuses {topic_filter} with code {body[2]}")

    def disconnect(self) -> None:
        self._closing = True
        self.transport.write(b"\xe0\0")
        self.transport.close()


class _Publisher(_Client):
    def __init__(self, load: "_Load", number: int) -> None:
        super().__init__(load, number)
        self.sent = 0
        self.delivered = 0
        self._packet_id = 0
        self._due: dict[int, int] = {}
        options = load.options
        group = number % options.subscribers if options.subscribers else 0
        topic = encode_text(f"{options.prefix}/{group}/c{number}".encode())
        self._head = b"\x32" + encode_length(len(topic) + 2 + options.payload_bytes) + topic
        self._payload_bytes = options.payload_bytes

    def can_publish(self) -> bool:
        options = self.load.options
        limit = _MAX_IN_FLIGHT if options.rate else options.window
        finished = self.delivered // self.load.copies
        unfinished = self.sent - finished if options.await_delivery else len(self._due)
        return unfinished < limit and len(self._due) < _MAX_IN_FLIGHT

    def packet(self, due: int) -> bytes:
        """Return the next PUBLISH, which counts as sent."""
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._due:
                break
        self._due[self._packet_id] = due
        payload = self._payload(due)
        self.sent += 1
        self.load.tally.published += 1
        return self._head + self._packet_id.to_bytes(2, "big") + payload

    def _payload(self, due: int) -> bytes:
        if not self.load.options.answers:
            numbers = _NUMBERS.pack(due, self.number, self.sent)
            return numbers.ljust(self._payload_bytes, b"\0")
        begin = b'{"due":%d,"publisher":%d,"number":%d,"celsius":21.5,"filling":"' % (
            due,
            self.number,
            self.sent,
        )
        return begin.ljust(self._payload_bytes - 2, b"x") + b'"}'

    def take_puback(self, packet_id: int) -> None:
        now = time.monotonic_ns()
        tally = self.load.tally
        due = self._due.pop(packet_id, None)
        if due is None:
            self.load.fail(f"PUBACK for packet {packet_id} that is not in flight")
            return
        tally.acknowledged += 1
        if tally.measure_ns <= now < tally.end_ns:
            tally.measured_acks += 1
        if due >= tally.measure_ns:
            tally.ack_ns.append(now - due)


class _Subscriber(_Client):
    def __init__(self, load: "_Load", number: int) -> None:
        super().__init__(load, number)
        self._seen: list[set[int]] = [set() for _ in range(load.options.publishers)]
        self._next = [0] * load.options.publishers

    def take_publish(self, first: int, body: bytes) -> None:
        now = time.monotonic_ns()
        tally = self.load.tally
        at = 2 + int.from_bytes(body[:2], "big")
        if first >> 1 & 3:
            self.transport.write(b"\x40\2" + body[at : at + 2])
            at += 2
        if self.load.options.answers:
            row = json.loads(body[at:])
            due, number, sequence = row["due"], row["publisher"], row["number"]
        else:
            due, number, sequence = _NUMBERS.unpack_from(body, at)
        if sequence in self._seen[number]:
            tally.duplicated += 1
            return
        self._seen[number].add(sequence)
        if sequence < self._next[number]:
            tally.out_of_order += 1
        else:
            self._next[number] = sequence + 1
        self.load.publishers[number].delivered += 1
        tally.delivered += 1
        if tally.measure_ns <= now < tally.end_ns:
            since = max(tally.last_delivery_ns, tally.measure_ns)
            tally.longest_gap_ns = max(tally.longest_gap_ns, now - since)
            tally.measured_deliveries += 1
        tally.last_delivery_ns = now
        if due >= tally.measure_ns:
            tally.delivery_ns.append(now - due)


class _Load:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()
        self.publishers: list[_Publisher] = []
        self.subscribers: list[_Subscriber] = []
        self._failure: str | None = None
        self.copies = options.subscribers if options.everyone else 1
        """How many deliveries one message makes, when there are subscribers."""

    def fail(self, problem: str) -> None:
        self._failure = self._failure or problem

    async def run(self) -> Tally:
        if self.options.probes:
            await self._run_probes()
        if self.options.publishers:
            await self._open_all()
            await self._run_messages()
            for client in (*self.publishers, *self.subscribers):
                client.disconnect()
            if self.options.persistent:
                await self._end_sessions()
        return self.tally

    def expected(self) -> int:
        if not self.options.subscribers:
            return 0
        answered = self.options.answered
        sent = sum(publisher.sent for publisher in self.publishers[: answered or None])
        return sent * self.copies

    async def _open(
        self, make: Callable[[], Any], address: tuple[str, int], kind: str, *, clean: bool = True
    ) -> Any:
        try:
            _, client = await asyncio.get_running_loop().create_connection(make, *address)
        except OSError as exc:
            raise LoadError(f"connect to port {address[1]}: {exc.strerror or exc}") from exc
        await client.handshake(kind, clean=clean)
        return client

    async def _open_all(self) -> None:
        options = self.options
        for number in range(options.subscribers):
            address = options.subscribe_to[number % len(options.subscribe_to)]
            subscriber = await self._open(
                partial(_Subscriber, self, number), address, "s", clean=not options.persistent
            )
            if options.answers:
                topic_filter = f"{options.answers}/{number}/#"
            else:
                topic_filter = f"{options.prefix}/" + ("#" if options.everyone else f"{number}/+")
            await subscriber.subscribe(1, topic_filter)
            self.subscribers.append(subscriber)
        for number in range(options.publishers):
            address = options.publish_to[number % len(options.publish_to)]
            self.publishers.append(
                await self._open(partial(_Publisher, self, number), address, "p")
            )

    async def _end_sessions(self) -> None:
        """A clean session in the place of each stored one: nothing is left of the run."""
        options = self.options
        for number in range(options.subscribers):
            address = options.subscribe_to[number % len(options.subscribe_to)]
            client = await self._open(partial(_Client, self, number), address, "s")
            client.disconnect()

    async def _run_messages(self) -> None:
        options, tally = self.options, self.tally
        begin = time.monotonic_ns()
        tally.measure_ns = begin + round(options.warmup_seconds * 1e9)
        tally.end_ns = tally.measure_ns + round(options.seconds * 1e9)
        give_up_ns = tally.end_ns + round(options.drain_seconds * 1e9)
        scheduled = 0
        while self._failure is None:
            now = time.monotonic_ns()
            if now >= tally.end_ns:
                settled = tally.acknowledged == tally.published
                if (settled and tally.delivered >= self.expected()) or now >= give_up_ns:
                    return
            elif options.rate:
                scheduled = self._publish_due(now, begin, scheduled)
            else:
                self._publish_windows(now)
            await asyncio.sleep(_SLICE_SECONDS)
        raise LoadError(self._failure)

    def _publish_due(self, now: int, begin: int, scheduled: int) -> int:
        options = self.options
        stop = now + round(_SLICE_SECONDS * 1e9)
        while (due := begin + int(scheduled * 1e9 / options.rate)) <= now:
            publisher = self.publishers[scheduled % options.publishers]
            if not publisher.can_publish() or time.monotonic_ns() > stop:
                break
            publisher.transport.write(publisher.packet(due))
            scheduled += 1
        return scheduled

    def _publish_windows(self, now: int) -> None:
        for publisher in self.publishers:
            packets = []
            while publisher.can_publish():
                packets.append(publisher.packet(now))
            publisher.transport.write(b"".join(packets))

    async def _run_probes(self) -> None:
        options = self.options
        client = await self._open(partial(_Client, self, 0), options.subscribe_to[0], "q")
        for number in range(options.probes):
            begin = time.monotonic_ns()
            await client.subscribe(number % 65_535 + 1, f"{options.prefix}/probe/{number}")
            self.tally.suback_ns.append(time.monotonic_ns() - begin)
            await asyncio.sleep(options.probe_interval_seconds)
        client.disconnect()


def encode_text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def encode_length(length: int) -> bytes:
    out = bytearray()
    while True:
        length, low = length >> 7, length & 127
        out.append(low | (128 if length else 0))
        if not length:
            return bytes(out)


def summarise_latency(samples_ns: list[int]) -> dict[str, float] | None:
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 3)

    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {"count": len(ordered)} | {name: at(share) for name, share in shares.items()}


def _answer(load: _Load) -> dict[str, Any]:
    tally, seconds = load.tally, load.options.seconds
    expected = load.expected()
    late_ns = max(0, tally.last_delivery_ns - tally.end_ns)
    return {
        "published": tally.published,
        "acknowledged": tally.acknowledged,
        "acknowledged_per_second": round(tally.measured_acks / seconds, 1),
        "expected": expected,
        "delivered": tally.delivered,
        "delivered_per_second": round(tally.measured_deliveries / seconds, 1),
        "lost": expected - tally.delivered,
        "duplicated": tally.duplicated,
        "out_of_order": tally.out_of_order,
        "last_delivery_seconds_after_end": round(late_ns / 1e9, 3),
        "longest_gap_ms": round(tally.longest_gap_ns / 1e6, 3),
        "ack_ms": summarise_latency(tally.ack_ns),
        "delivery_ms": summarise_latency(tally.delivery_ns),
        "suback_ms": summarise_latency(tally.suback_ns),
    }


def parse_addresses(text: str) -> list[tuple[str, int]]:
    found = []
    for one in text.split(","):
        host, _, port = one.rpartition(":")
        if not host.startswith("127."):
            raise argparse.ArgumentTypeError(f"host is {host}, expected loopback")
        found.append((host, int(port)))
    return found


def _parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="fallback_loader", add_help=False)
    parser.add_argument("--publish-to", type=parse_addresses, default=[])
    parser.add_argument("--subscribe-to", type=parse_addresses, default=[])
    parser.add_argument("--publishers", type=int, default=0)
    parser.add_argument("--subscribers", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--await-delivery", type=int, default=0)
    parser.add_argument("--everyone", type=int, default=0)
    parser.add_argument("--subscribe-qos", type=int, choices=(0, 1), default=1)
    parser.add_argument("--persistent", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warmup-seconds", type=float, default=1)
    parser.add_argument("--drain-seconds", type=float, default=10)
    parser.add_argument("--payload-bytes", type=int, default=100)
    parser.add_argument("--probes", type=int, default=0)
    parser.add_argument("--probe-interval-seconds", type=float, default=0.02)
    parser.add_argument("--prefix", default="bench")
    parser.add_argument("--answers", default="")
    parser.add_argument("--answered", type=int, default=0)
    return Options(**vars(parser.parse_args(arguments)))


def main(arguments: list[str]) -> int:
    """Put the load on, print the answer."""
    load = _Load(_parse(arguments))
    raise_open_files()
    try:
        asyncio.run(load.run())
    except LoadError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(json.dumps(_answer(load)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
