"""Append messages to `mqlake.inbound` from the event loop, and wait until the log has them."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from api.log.appending import CLIENT_ID
from api.messages.messages import MadeMessage
from mqlake.errors import LogError
from mqlake.log.blocking import TIMEOUT_SECONDS
from mqlake.log.contract import LogWriter, queue
from mqlake.log.following import GrowthFollower
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.processes.log_disk import LogDisk, LogDiskFull
from mqlake.records.messages import INBOUND

_MAX_QUEUED_KIB: Final = 32_768


class Placed(NamedTuple):
    """Outcome of a message: its position in the log, or the error."""

    partition: int
    offset: int
    error: LogError | None


class ApiPublisher:
    """Appends messages where gateways do; use it in one event loop.

    Args:
        servers: Bootstrap servers of the log.
        disk: Disk of the log.
        timeout_seconds: For the log to answer.
    """

    def __init__(
        self, servers: str, disk: LogDisk, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._servers = servers
        self._disk = disk
        self._timeout = timeout_seconds
        self._opening = asyncio.Lock()
        self._growth: GrowthFollower | None = None
        self._writer: KafkaLogWriter | None = None

    async def publish(self, messages: Sequence[MadeMessage]) -> list[Placed]:
        """Append messages in their order; return the outcome of each.

        Raises:
            LogDiskFull: No message is in the log, as it is full.
            LogError: No message is in the log, because it takes no more at the moment, or does not
                answer.
        """
        if problem := self._disk.why_full():
            raise LogDiskFull(problem)
        writer = await self._opened_writer()
        queued: list[asyncio.Future[tuple[int, int]] | LogError] = []
        for message in messages:
            try:
                queued.append(
                    queue(
                        writer,
                        INBOUND,
                        message.key,
                        message.value,
                        message.headers,
                        timestamp_ms=message.timestamp_ms,
                    )
                )
            except LogError as exc:
                if not queued:
                    raise
                queued.append(exc)
        appended = [one for one in queued if isinstance(one, asyncio.Future)]
        # librdkafka reports in time; this is for when its thread does not get to run.
        await asyncio.wait(appended, timeout=2 * self._timeout)
        return [_placed(one) for one in queued]

    async def close(self) -> None:
        """Let go of the log; no caller waits for an answer any more."""
        if self._growth is not None:
            await self._growth.close()
        if self._writer is not None:
            await self._writer.close(0.0)
        self._growth = self._writer = None

    async def _opened_writer(self) -> LogWriter:
        """Return the one writer, which puts messages where they belong now."""
        async with self._opening:
            if self._growth is None:
                await self.close()
                self._writer = KafkaLogWriter(
                    self._servers,
                    client_id=CLIENT_ID,
                    max_queued_kib=_MAX_QUEUED_KIB,
                    delivery_timeout_seconds=self._timeout,
                )
                self._growth = await GrowthFollower.open(self._writer, self._servers, self._timeout)
            assert self._writer is not None
            await self._growth.look()
            return self._writer


def _placed(one: "asyncio.Future[tuple[int, int]] | LogError") -> Placed:
    if isinstance(one, LogError):
        return Placed(-1, -1, one)
    if not one.done():
        one.cancel()
        return Placed(-1, -1, LogError("the log does not answer", definite=False))
    with contextlib.suppress(LogError):
        return Placed(*one.result(), None)
    error = one.exception()
    assert isinstance(error, LogError)
    return Placed(-1, -1, error)
