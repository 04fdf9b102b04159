"""The connecting side of `mqlake bench` where there is no C compiler: `connector.c` on asyncio.

Same options, same answers. Run as `python -m mqlake.bench.fallback_connector`.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqlake.bench.fallback_loader import (
    LoadError,
    encode_length,
    encode_text,
    parse_addresses,
    summarise_latency,
)
from mqlake.limits import raise_open_files

PATIENCE_SECONDS: Final = 20.0
KEEP_ALIVE: Final = 300
MAX_ANSWER: Final = 512
"""Bytes of a packet of the broker: a refusal may have a reason string."""
AN_HOUR: Final = b"\x05\x11\0\0\x0e\x10"
"""Properties of a CONNECT of 5.0: Session Expiry Interval."""


class _Client:
    """One connection."""

    def __init__(
        self, number: int, level: int, name: str, login: tuple[str, ...] = (), *, keep: bool = False
    ) -> None:
        self._number = number
        self._level = level
        self._name = name
        self._login = login
        self._keep = keep

    async def connect(self, address: tuple[str, int]) -> bool:
        """Return whether the broker had the session."""
        try:
            self._reader, self._writer = await asyncio.open_connection(*address)
        except OSError as exc:
            raise LoadError(f"connect to port {address[1]}: {exc.strerror or exc}") from exc
        name = b"MQIsdp" if self._level == 3 else b"MQTT"
        flags = (0 if self._keep else 2) | (0xC0 if self._login else 0)
        variable = encode_text(name) + bytes((self._level, flags)) + KEEP_ALIVE.to_bytes(2, "big")
        if self._level == 5:
            variable += AN_HOUR if self._keep else b"\0"
        variable += b"".join(encode_text(one.encode()) for one in (self._name, *self._login))
        self._writer.write(b"\x10" + encode_length(len(variable)) + variable)
        body = await self._receive(0x20, "CONNACK")
        if body[1]:
            raise LoadError(f"CONNACK with return code {body[1]}{_reason(body)}, expected 0")
        return bool(body[0] & 1)

    async def subscribe(self, topic_filter: str) -> None:
        properties = b"\0" if self._level == 5 else b""
        variable = b"\0\1" + properties + encode_text(topic_filter.encode()) + b"\1"
        self._writer.write(b"\x82" + encode_length(len(variable)) + variable)
        body = await self._receive(0x90, "SUBACK")
        if body[-1] > 2:
            raise LoadError(f"SUBACK with return code {body[-1]}, expected 0")

    async def disconnect(self) -> None:
        """Wait for the broker to end the connection."""
        self._writer.write(b"\xe0\0")
        if await self._reader.read(1):
            raise LoadError(f"client {self._number}: bytes after DISCONNECT")
        self._writer.close()

    def leave(self) -> None:
        """Do not wait."""
        self._writer.write(b"\xe0\0")
        self._writer.close()

    async def _receive(self, expected: int, what: str) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                first, length = await self._reader.readexactly(2)
                if length & 128:
                    length = length & 127 | (await self._reader.readexactly(1))[0] << 7
                if length > MAX_ANSWER:
                    raise LoadError(f"{what} of {length} bytes, expected {MAX_ANSWER} at most")
                body = await self._reader.readexactly(length)
        except TimeoutError:
            raise LoadError(f"no {what} from the broker") from None
        except (OSError, EOFError):
            raise LoadError(f"client {self._number}: the broker closed the connection") from None
        if first != expected:
            raise LoadError(f"packet of type {first >> 4}, expected {what}")
        return body


def _reason(connack: bytes) -> str:
    """Return why a broker refuses, if it says so: the properties of 5.0 begin with a reason."""
    properties = connack[4 if len(connack) > 3 + 127 else 3 :]
    end = 3 + int.from_bytes(properties[1:3], "big")
    if properties[:1] != b"\x1f" or end > len(properties):
        return ""
    return f" ({properties[3:end].decode(errors='replace')})"


async def _each(count: int, in_flight: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do something for each number, so many at a time; the first error ends it."""
    numbers = iter(range(count))

    async def take() -> None:
        for number in numbers:
            await work(number)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(in_flight, count)):
                tasks.create_task(take())
    except* LoadError as errors:
        raise LoadError(str(errors.exceptions[0])) from None


async def _run_cycles(options: argparse.Namespace) -> None:
    latency_ns: list[int] = []
    present = 0

    async def cycle(number: int) -> None:
        nonlocal present
        begin = time.monotonic_ns()
        level = int(options.levels[number % len(options.levels)])
        login = (f"user-{number % options.users}", options.password) if options.users else ()
        client = _Client(number, level, _name(options, number), login, keep=bool(options.keep))
        had_session = await client.connect(options.to[number % len(options.to)])
        present += had_session
        latency_ns.append(time.monotonic_ns() - begin)
        if options.subscribe:
            await client.subscribe(f"{options.prefix}/{number}/command")
        await client.disconnect()

    begin = time.monotonic()
    await _each(options.cycles, options.in_flight, cycle)
    seconds = time.monotonic() - begin
    _say(
        cycles=options.cycles,
        seconds=round(seconds, 3),
        per_second=round(options.cycles / seconds, 1),
        present=present,
        connack_ms=summarise_latency(latency_ns),
    )


async def _run_hold(options: argparse.Namespace) -> None:
    clients = [
        _Client(number, 4, _name(options, number), keep=bool(options.keep))
        for number in range(options.hold)
    ]

    async def connect(number: int) -> None:
        await clients[number].connect(options.to[number % len(options.to)])

    async def subscribe(number: int) -> None:
        await clients[number].subscribe(f"{options.prefix}/{number}/command")

    await _each(options.hold, options.in_flight, connect)
    _say(held=options.hold)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line != "subscribe\n":
            raise LoadError("unknown command on standard input")
        await _each(options.hold, options.in_flight, subscribe)
        _say(subscribed=options.hold)
    for client in clients:
        client.leave()


def _name(options: argparse.Namespace, number: int) -> str:
    if options.names is None:
        return f"bench-{os.getpid()}-{number}"
    return f"{options.names}{options.first + number * options.stride}"


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fallback_connector", add_help=False)
    parser.add_argument("--to", type=parse_addresses, required=True)
    parser.add_argument("--cycles", type=int, default=0)
    parser.add_argument("--hold", type=int, default=0)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--levels", default="345")
    parser.add_argument("--prefix", default="bench")
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--subscribe", type=int, default=0)
    parser.add_argument("--names", default=None)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--password", default="")
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> None:
    if options.cycles:
        await _run_cycles(options)
    if options.hold:
        await _run_hold(options)


def main(arguments: list[str]) -> int:
    """Open connections, print the answers."""
    options = _parse(arguments)
    raise_open_files()
    try:
        asyncio.run(_run(options))
    except LoadError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
