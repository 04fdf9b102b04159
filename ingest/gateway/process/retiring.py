"""Gateways that are gone: their routes, left in the log, would draw messages to no gateway.

A gateway withdraws routes that its own earlier run left. One that is gone for good is *retired*:

    its name is taken ──► routes withdrawn ──► sessions and share groups are settled
        ──► routes of share groups withdrawn, the router knows it ──► delivery topic removed

The name is taken as a run of the gateway takes it (`peers.py`): none can begin meanwhile, and the
run before is over, so the gateways that are there settle its sessions and memberships at once. They
are asked shard by shard how much is left, as a gateway asks that was cut off. A route of a share
group stays until then: it stands for a membership that begins beside it, and messages that the
router gives the dead gateway count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingest.gateway.log.lease import HEARTBEAT_SECONDS, Lease
from ingest.gateway.peers.peers import HeartbeatLog, NameInUseError, Peers
from ingest.session.shard.acts import CONFIRM
from mqlake.errors import InvalidRecord, LogError, OperationalError
from mqlake.log.contract import END
from mqlake.log.versioned_writer import VersionedWriter
from mqlake.records.gateway_heartbeat import SERVING, GatewayHeartbeat, decode_gateway_heartbeat
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    CONTROL_KEY_PREFIX,
    GATEWAYS,
    HEADER_SOURCE,
    INBOUND,
    NO_GATEWAY,
    RETIRING,
    ROUTES,
    SESSIONS,
    Barrier,
    Route,
    barrier_key,
    decode_barrier_key,
    decode_route_key,
    decode_source,
    delivery_topic,
)
from mqlake.records.sessions import marks_key
from mqlake.records.shards import Run, encode_run, left_key, question_key, stamp_headers
from mqlake.records.versions import VERSION_HEADER, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.peers.hosts import Host
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess, LogReader, LogWriter
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 30.0
ASK_AGAIN_SECONDS: Final = 1.0
BARRIER_SECONDS: Final = 10.0
"""After so long without an answer the router is asked again."""

_HEADERS: Final[Headers] = [VERSION_HEADER]
_CONFIRM_KEY: Final = CONTROL_KEY_PREFIX + CONFIRM.encode()


async def withdraw_routes_of_ended(
    reader: LogReader, writer: LogWriter, gateways: Collection[str], host: Host
) -> int:
    """Withdraw routes of gateways of this machine that have ended; return how many.

    Those of share groups stay, and those of a gateway that may still run: it is to be retired.

    Args:
        reader: Reader of the log.
        writer: Writer of the log.
        gateways: Names that are about to be taken again: these withdraw their own.
        host: Tells whether a process of this machine has ended.

    Raises:
        LogError: The log does not answer or does not take the records.
    """
    words = await reader.read_compacted(GATEWAYS)
    keys = [
        key
        for key, route in await _routes(reader)
        if route.gateway not in gateways
        and not route.is_shared
        and _has_ended(words.get(route.gateway.encode()), host)
    ]
    await _withdraw(writer, keys)
    return len(keys)


async def _routes(reader: LogReader) -> list[tuple[bytes, Route]]:
    found = []
    for key in await reader.read_compacted(ROUTES):
        with contextlib.suppress(InvalidRecord):  # another program has written to the topic
            found.append((key, decode_route_key(key)))
    return found


def _has_ended(word: LogRecord | None, host: Host) -> bool:
    if word is None:
        return True  # it has said so itself
    try:
        return host.is_gone(decode_gateway_heartbeat(word.value).process)
    except InvalidRecord:
        return False


async def _withdraw(writer: LogWriter, keys: Sequence[bytes]) -> int:
    """Withdraw routes; return the offset of the last record, -1 without any."""
    last = -1
    failures: list[LogError] = []

    def report(_partition: int, offset: int, error: LogError | None) -> None:
        nonlocal last
        last = max(last, offset)
        if error is not None:
            failures.append(error)

    for key in keys:
        writer.append(ROUTES, key, None, _HEADERS, report, partition=0)
        # The queue is longer than any list of routes seen, but bounded all the same.
        if writer.queued() > 10_000:
            await writer.flush(FLUSH_SECONDS)
    await writer.flush(FLUSH_SECONDS)
    if failures:
        raise failures[0]
    return last


class Unsettled(NamedTuple):
    """Counts of the unsettled state of a gateway that is gone."""

    sessions: int
    """At least this number; of each shard no more than a few hundred are counted."""
    groups: int
    """Memberships in share groups."""
    shards: int
    """Number of them that have not answered."""

    def __str__(self) -> str:
        texts = [f"{self.sessions} sessions", f"{self.groups} share groups"]
        if self.shards:
            texts.append(f"{self.shards} shards whose owner has not answered")
        return ", ".join(text for text in texts if not text.startswith("0 ")) or "nothing"


class Retirement:
    """Retires one gateway.

    Args:
        gateway: Its name.
        log: Log with its routes, sessions and memberships.
        partitions: Numbers of partitions of the log topics.
        lease_seconds: Lease of gateways: one that may still run is awaited for this long.
        clock: Measures the lease.
        host: Tells whether processes of this machine are gone.
        ensure: Creates the gateway's delivery topic unless it exists: the router answers there.
        remove: Removes it.
    """

    def __init__(
        self,
        gateway: str,
        log: LogAccess,
        partitions: Partitions,
        lease_seconds: float,
        clock: Clock,
        host: Host,
        ensure: Callable[[], Coroutine[Any, Any, None]],
        remove: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._gateway = gateway
        self._me = Run(gateway, secrets.token_hex(8))
        self._writer = VersionedWriter(log.writer)
        self._log = log
        self._partitions = partitions
        self._ensure = ensure
        self._remove = remove
        self._lease = Lease(clock, lease_seconds, _pass)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peers = Peers(
            HeartbeatLog(self._writer, self._writer, log.open_reader()),
            self._me,
            clock,
            self._lease,
            host,
            self._writer.use,
            self._fail,
        )
        # By shard: sessions and memberships that are left.
        self._answers: dict[int, tuple[int, int]] = {}
        self._answered = asyncio.Event()
        self._has_name = asyncio.Event()
        # Shards that were asked, later partitions that have a barrier, and no answer has come.
        self._awaited: set[int] = set()

    async def run(self, timeout_seconds: float, tell: Callable[[Unsettled], None]) -> None:
        """Retire it.

        Args:
            timeout_seconds: For all of it.
            tell: Called with the rest, whenever that has changed.

        Raises:
            LogError: The log does not answer.
            OperationalError: The gateway is there, or no other that could settle its state, or not
                all was settled in time. Settled parts stay so; the rest can be asked for again.
        """
        await self._check_others()
        try:
            await self._peers.open()
        except NameInUseError as exc:
            raise OperationalError(
                f"{self._gateway} is running: let its clients go (bin/mqlake drain) and stop it, "
                "then retire it"
            ) from exc
        work = asyncio.create_task(self._retire(tell))
        heartbeats = asyncio.create_task(self._send_heartbeats())
        try:
            await asyncio.wait(
                (work, heartbeats, self._lost),
                timeout=timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in (self._lost, heartbeats, work):
                if one.done():
                    one.result()
                    return
            raise OperationalError(
                f"{self._gateway} is not retired after {timeout_seconds:g} s, what is left: "
                f"{self._left()}"
            )
        finally:
            heartbeats.cancel()
            work.cancel()
            await asyncio.wait((work, heartbeats))
            if not self._lost.done():  # else the heartbeat there is another's
                self._peers.leave()
            await self._peers.close()
            await self._writer.flush(FLUSH_SECONDS)

    async def _check_others(self) -> None:
        """Refuse if no gateway could settle, or nothing is known of the gateway."""
        reader = self._log.open_reader()
        try:
            words = await reader.read_compacted(GATEWAYS)
            name = self._gateway.encode()
            if name not in words and all(
                route.gateway != self._gateway for _, route in await _routes(reader)
            ):
                await self._check_topic(reader)
        finally:
            await reader.close()
        others = (
            decode_gateway_heartbeat(word.value)
            for key, word in words.items()
            if key != name and not key.startswith(NO_GATEWAY)
        )
        if not any(one.state == SERVING for one in others):
            raise OperationalError(
                f"there is no other gateway: one has to settle what {self._gateway} held"
            )

    async def _check_topic(self, reader: LogReader) -> None:
        """Refuse if there is nothing of the gateway at all."""
        try:
            await reader.partition_count(delivery_topic(self._gateway))
        except LogError as exc:
            if not exc.definite:
                raise
            raise OperationalError(f"the log knows no gateway {self._gateway}") from exc

    def _fail(self, failure: OperationalError) -> None:
        if not self._lost.done():
            self._lost.set_exception(failure)

    async def _send_heartbeats(self) -> None:
        while True:
            self._peers.send_heartbeat(GatewayHeartbeat(state=RETIRING, listeners=[]))
            if self._peers.is_read:  # no other process has the name once our own heartbeat is read
                self._has_name.set()
            await asyncio.sleep(HEARTBEAT_SECONDS / 5)

    async def _retire(self, tell: Callable[[Unsettled], None]) -> None:
        await self._has_name.wait()
        await self._ensure()
        reader = self._log.open_reader()
        try:
            await reader.start(delivery_topic(self._gateway), {0: END}, self._receive, _warn)
            await self._withdraw(reader, are_shared=False)
            await self._until_settled(tell)
            # A route that is left has no membership: messages by it reach no member.
            last = await self._withdraw(reader, are_shared=True)
            await self._until_applied(last)
        finally:
            await reader.close()
        await self._forget()
        await self._remove()

    async def _withdraw(self, reader: LogReader, *, are_shared: bool) -> int:
        keys = [
            key
            for key, route in await _routes(reader)
            if route.gateway == self._gateway and route.is_shared is are_shared
        ]
        if not self._lease.holds():
            raise OperationalError(
                "heartbeats of this process did not arrive for too long: ask again"
            )
        return await _withdraw(self._writer, keys)

    async def _until_settled(self, tell: Callable[[Unsettled], None]) -> None:
        told: Unsettled | None = None
        number = 0
        key = question_key(self._gateway)
        while (left := self._left()) != Unsettled(0, 0, 0):
            if left != told:
                tell(left)
                told = left
            if left.sessions or left.groups:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            number += 1
            shards = range(self._partitions.sessions)
            self._awaited = {shard for shard in shards if self._answers.get(shard) != (0, 0)}
            for shard in list(self._awaited):
                await self._write(SESSIONS, key, encode_run(self._me, number), shard)
            await self._until_answered(ASK_AGAIN_SECONDS)

    async def _until_answered(self, seconds: float) -> None:
        """Wait until all that was asked is answered, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._awaited:
                    self._answered.clear()
                    await self._answered.wait()

    def _left(self) -> Unsettled:
        return Unsettled(
            sum(sessions for sessions, _ in self._answers.values()),
            sum(groups for _, groups in self._answers.values()),
            self._partitions.sessions - len(self._answers),
        )

    async def _until_applied(self, routes_offset: int) -> None:
        """Wait until the router gives the gateway nothing more: barriers follow the routes."""
        key = barrier_key(Barrier(self._gateway, self._me.incarnation, 1, routes_offset))
        self._awaited = set(range(self._partitions.inbound))
        while self._awaited:
            for partition in list(self._awaited):
                await self._write(INBOUND, key, b"", partition)
            await self._until_answered(BARRIER_SECONDS)

    async def _forget(self) -> None:
        """Remove the gateway's own records from the shards."""
        headers = stamp_headers(self._me.incarnation)
        for shard in range(self._partitions.sessions):
            for key in (question_key, left_key, marks_key):
                await self._writer.append_durably(
                    SESSIONS, key(self._gateway), None, headers, partition=shard
                )

    async def _write(self, log_topic: str, key: bytes, value: bytes, partition: int) -> None:
        headers = stamp_headers(self._me.incarnation) if log_topic == SESSIONS else _HEADERS
        await self._writer.append_durably(log_topic, key, value, headers, partition=partition)

    def _receive(self, records: list[LogRecord]) -> None:
        """Take records for the gateway: answers of the owners of shards, and barriers."""
        for record in records:
            key = record.key or b""
            try:
                if key == _CONFIRM_KEY:
                    self._take_answer(json.loads(record.value or b"{}"))
                elif key.startswith(BARRIER_KEY_PREFIX):
                    self._take_barrier(key, record)
            except (InvalidRecord, ValueError, KeyError, TypeError) as exc:
                logger.warning("answer ignored", extra={"fields": {"reason": str(exc)}})

    def _take_answer(self, value: dict[str, Any]) -> None:
        if value["incarnation"] == self._me.incarnation and "earlier" in value:
            sessions, groups = value["earlier"]
            shard = int(value["shard"])
            self._answers[shard] = (int(sessions), int(groups))
            self._awaited.discard(shard)
            self._answered.set()

    def _take_barrier(self, key: bytes, record: LogRecord) -> None:
        if decode_barrier_key(key).incarnation == self._me.incarnation:
            source = decode_source(dict(record.headers)[HEADER_SOURCE])
            self._awaited.discard(source.partition)
            self._answered.set()


def _pass() -> None:
    """This process has no clients: a lease that is over is seen before the next act."""


def _warn(error: LogError) -> None:
    logger.warning("the delivery topic cannot be read", extra={"fields": {"reason": str(error)}})
