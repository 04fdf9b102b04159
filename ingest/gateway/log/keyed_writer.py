"""Writes a compacted log topic: the last record of a key counts, and is tried until it is there."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError
from mqlake.log.contract import LogFull

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.base.ending import Ending
    from mqlake.log.contract import LogWriter
    from mqlake.records.versions import Headers

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1


class KeyedWriter:
    """Appends records by their keys.

    Args:
        writer: Appends to the log.
        log_topic: Log topic of the records.
        ending: End of this run: untrusted state is not written.
        run_report: Runs a report, now or once it may count.
        loop: Event loop of the gateway.
    """

    def __init__(
        self,
        writer: LogWriter,
        log_topic: str,
        ending: Ending,
        run_report: Callable[[Callable[[], None]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._writer = writer
        self._log_topic = log_topic
        self._run_report = run_report
        self._loop = loop
        self._last_number = 0
        # Key -> number of its last record that the log has not confirmed.
        self._pending: dict[bytes, int] = {}
        # Key -> who waits for a record of it, by number or later.
        self._waiting: dict[bytes, deque[tuple[int, Callable[[], None]]]] = {}
        self._ending = ending

    @property
    def is_saved(self) -> bool:
        """Tell whether the log has confirmed all that was written."""
        return not self._pending

    def append(
        self,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        partition: int,
        on_saved: Callable[[LogError | None], None] | None,
    ) -> None:
        """Append a record; report when the log has it, or not.

        Raises:
            LogError: The log does not take it.
        """
        if not self._ending.is_trusted:
            return
        self._last_number = number = self._last_number + 1

        def report(_partition: int, _offset: int, error: LogError | None) -> None:
            if error is None:
                if self._pending.get(key) == number:
                    del self._pending[key]
                if self._waiting:
                    self._tell(key, number)
            if on_saved is not None:
                self._run_report(lambda: on_saved(error))

        self._writer.append(self._log_topic, key, value, headers, report, partition=partition)
        self._pending[key] = number

    def append_until_taken(
        self,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        partition: int,
        on_taken: Callable[[], None] | None = None,
    ) -> bool:
        """Append a record that must not be missing; return False if the log refuses it for good.

        Args:
            key: Its key.
            value: Its value.
            headers: Its headers.
            partition: Its partition.
            on_taken: Called when the log has it, or a later one under its key.
        """
        number = self._last_number
        if on_taken is not None:
            self._wait(key, number + 1, on_taken)

        def report(error: LogError | None) -> None:
            # One that failed comes again only while nothing newer has been written under its key.
            if error is not None and self._pending.get(key) == number:
                self._loop.call_later(RETRY_SECONDS, again)

        def again() -> None:
            if self._pending.get(key) == number:
                self.append_until_taken(key, value, headers, partition)

        try:
            number = self._last_number + 1
            self.append(key, value, headers, partition, report)
        except LogFull as error:
            self._pending[key] = number
            report(error)
        except LogError as error:
            fields = {"log_topic": self._log_topic, "reason": str(error)}
            logger.error("record not written", extra={"fields": fields})
            return False
        return True

    def when_taken(self, key: bytes, on_taken: Callable[[], None]) -> None:
        """Call back when the log has the last record of a key."""
        number = self._pending.get(key)
        if number is None:
            self._run_report(on_taken)
        else:
            self._wait(key, number, on_taken)

    def when_all_taken(self, prefix: bytes, on_taken: Callable[[], None]) -> None:
        """Call back when the log has the present last records of all keys that begin so."""
        keys = [key for key in self._pending if key.startswith(prefix)]
        left = len(keys) + 1

        def taken() -> None:
            nonlocal left
            left -= 1
            if not left:
                on_taken()

        for key in keys:
            self.when_taken(key, taken)
        self._run_report(taken)

    def forget(self, key: bytes) -> None:
        """Wait for the last record of a key no more: it does not count, or others write the next.

        Nothing that has waited for it depends on it any more.
        """
        self._pending.pop(key, None)
        for _, on_taken in self._waiting.pop(key, ()):
            self._run_report(on_taken)

    def _wait(self, key: bytes, number: int, on_taken: Callable[[], None]) -> None:
        self._waiting.setdefault(key, deque()).append((number, on_taken))

    def _tell(self, key: bytes, number: int) -> None:
        waiting = self._waiting.get(key)
        while waiting and waiting[0][0] <= number:
            self._run_report(waiting.popleft()[1])
        if waiting is not None and not waiting:
            del self._waiting[key]
