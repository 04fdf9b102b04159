"""Appending to a Kafka cluster for actions, with the outcome of each record."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from mqlake.errors import LogError
from mqlake.log.contract import LogFull, LogWriter
from rules.actions.contract import NewRecord

DELIVERY_TIMEOUT_SECONDS: Final = 600.0
"""Longer than a restart of the brokers: within it librdkafka appends each record exactly once."""
MAX_RECORD_BYTES: Final = 66 * 1024 * 1024
FULL_SECONDS: Final = 0.01
"""Before a full queue is tried again."""


class _Pending:
    """The records of one call of `append` that are under way."""

    __slots__ = ("done", "errors", "left")

    def __init__(self, count: int, done: asyncio.Future[Mapping[int, LogError]]) -> None:
        self.left = count
        self.done = done
        self.errors: dict[int, LogError] = {}

    def report(self, number: int, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self.errors[number] = error
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.errors)


class KafkaTarget:
    """Keeps the contract `rules.actions.contract.LogTarget`. Make it inside the event loop."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._in_turn = 0

    async def append(self, records: Sequence[NewRecord]) -> Mapping[int, LogError]:
        """Append records; return errors by index."""
        if not records:
            return {}
        pending = _Pending(len(records), self._loop.create_future())
        for number, record in enumerate(records):
            if self._in_turn or not self._offer(pending, number, record):
                await self._append_in_turn(pending, records, number)
                break
        return await pending.done

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """End; records not under way yet after the time are not appended."""
        await self._writer.close(timeout_seconds)

    async def _append_in_turn(
        self, pending: _Pending, records: Sequence[NewRecord], first: int
    ) -> None:
        """Go on when the queue is full; later callers wait too, so that order is kept."""
        self._in_turn += 1
        try:
            async with self._turn:
                for number in range(first, len(records)):
                    # The writer tells nobody that it has room again
                    while not self._offer(pending, number, records[number]):  # noqa: ASYNC110
                        await asyncio.sleep(FULL_SECONDS)
        finally:
            self._in_turn -= 1

    def _offer(self, pending: _Pending, number: int, record: NewRecord) -> bool:
        """Queue a record; False when the queue is full."""
        try:
            self._writer.append(
                record.log_topic,
                record.key,
                record.value,
                record.headers,
                partial(pending.report, number),
                timestamp_ms=record.timestamp_ms,
            )
        except LogFull:
            return False
        except LogError as error:
            pending.report(number, -1, -1, error)
        return True
