"""The gateway's side: asks the child process, starts it when needed and lets it go when idle."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.lake.exchange import (
    ERROR,
    LENGTH,
    MAX_PAGE_BYTES,
    MESSAGES_OPERATION,
    RETAINED_OPERATION,
    ROWS,
    HistoryPage,
    TableError,
    decode_frame,
    encode_frame,
)
from ingest.gateway.store.retained import RetainedRow

if TYPE_CHECKING:
    from mqlake.records.messages import LogRecord

_WORKER: Final = "ingest.gateway.lake.worker"
_MAX_BUFFER_BYTES: Final = 1024 * 1024

RowsConsumer = Callable[[list[RetainedRow]], Awaitable[None]]
"""Takes at most a thousand rows and is awaited before it gets more."""


class LakeReader:
    """Reads the tables under `<data_dir>/tables`. Requests are answered one after another.

    Args:
        data_dir: The data directory; without tables everything is empty.
        idle_seconds: How long the child process is kept for the next request. A new one takes about
            half a second more, an idle one keeps its memory.
        timeout_seconds: Longest time without an answer; the child process is then killed.
    """

    def __init__(
        self, data_dir: Path, *, idle_seconds: float = 30.0, timeout_seconds: float = 60.0
    ) -> None:
        self._data_dir = data_dir
        self._idle_seconds = idle_seconds
        self._timeout_seconds = timeout_seconds
        self._one_at_a_time = asyncio.Lock()
        self._process: Process | None = None
        self._release: asyncio.TimerHandle | None = None
        self._released: set[asyncio.Task[None]] = set()
        self._closed = False

    async def messages(
        self,
        tenant: str,
        ranges: Mapping[int, tuple[int, int]],
        topic_filters: Collection[str] | None,
        *,
        limit: int = 10_000,
        not_before_ms: int | None = None,
        max_bytes: int = MAX_PAGE_BYTES,
        offsets: Collection[int] | None = None,
    ) -> HistoryPage:
        """Return messages with offsets from start up to and without end whose topic matches.

        They come as the records of `mqlake.inbound` that they were, each once, however many filters
        match it.

        Args:
            tenant: Whose messages.
            ranges: Partition -> (start, end); it is empty when end is not above start.
            topic_filters: Valid filters without `$share/<name>/`; None: whatever the topic.
            limit: Most rows that the table gives at a time.
            not_before_ms: Leaves out messages accepted before, UTC epoch; spares reading files
                where partitions differ much in their offsets.
            max_bytes: Bytes of payloads; the message that reaches it is the last.
            offsets: None but these, in whichever partition.

        Raises:
            TableError: The table cannot be read.
        """
        unread = {partition: at for partition, at in ranges.items() if at[0] < at[1]}
        ends = {partition: max(at) for partition, at in ranges.items()}
        filters = None if topic_filters is None else list(topic_filters)
        if not unread or filters == []:
            return HistoryPage([], ends, has_more=False)
        only = None if offsets is None else list(offsets)
        arguments = (tenant, unread, filters, limit, not_before_ms, max_bytes, only)
        records: list[LogRecord] = []
        async with self._one_at_a_time, aclosing(self._ask(MESSAGES_OPERATION, arguments)) as parts:
            async for kind, content in parts:
                if kind == ROWS:
                    records.extend(content)
                else:
                    page: HistoryPage = content
        return HistoryPage(records, ends | page.next_offsets, page.has_more)

    async def retained(self, partitions: Collection[int], on_rows: RowsConsumer) -> dict[int, int]:
        """Hand over the rows of the table `retained` of some partitions of `mqlake.inbound`.

        Returns:
            Partition of `mqlake.inbound` -> the offset from which to go on in the log. Empty when
            nothing is known: without a table, or when none of its commits says it.

        Raises:
            TableError: The table cannot be read.
        """
        offsets: dict[int, int] = {}
        async with (
            self._one_at_a_time,
            aclosing(self._ask(RETAINED_OPERATION, (sorted(partitions),))) as parts,
        ):
            async for kind, content in parts:
                if kind == ROWS:
                    await on_rows(content)
                else:
                    offsets = content
        return offsets

    async def close(self) -> None:
        """Let the child process go, in the middle of a request too."""
        self._closed = True
        if self._release is not None:
            self._release.cancel()
        await self._end(kill=self._one_at_a_time.locked())
        if self._released:
            await asyncio.wait(self._released)

    async def _ask(
        self, operation: str, arguments: tuple[Any, ...]
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield the parts of an answer; a child that is not heard to its end is killed."""
        request = encode_frame((operation, arguments))
        heard = complete = False
        try:
            while not complete:
                is_new = await self._start()
                try:
                    self._send(request)
                    while not complete:
                        kind, content = await self._receive()
                        heard = True
                        complete = kind != ROWS
                        if kind == ERROR:
                            raise TableError(content)
                        yield kind, content
                except (asyncio.IncompleteReadError, ConnectionError) as exc:
                    await self._end(kill=True)
                    if is_new or heard:
                        raise TableError(
                            f"tables of {self._data_dir}: their reader has ended"
                        ) from exc
                    # It ended while it had nothing to do: another one answers.
        except TimeoutError as exc:
            raise TableError(
                f"tables of {self._data_dir}: no answer for {self._timeout_seconds:g} s"
            ) from exc
        finally:
            if complete and not self._closed:
                self._release = asyncio.get_running_loop().call_later(
                    self._idle_seconds, self._let_go
                )
            else:
                await self._end(kill=True)

    def _send(self, request: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(request)

    async def _receive(self) -> tuple[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(self._timeout_seconds):
            length = await self._process.stdout.readexactly(LENGTH.size)
            data = await self._process.stdout.readexactly(*LENGTH.unpack(length))
        kind, content = decode_frame(data)
        return kind, content

    async def _start(self) -> bool:
        """See that there is a child process; return whether it is a new one."""
        self._check_open()
        if self._release is not None:
            self._release.cancel()
            self._release = None
        if self._process is not None:
            return False
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _WORKER,
            str(self._data_dir),
            stdin=PIPE,
            stdout=PIPE,
            limit=_MAX_BUFFER_BYTES,
            # It finds the modules that we have found.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._check_open()  # who closed meanwhile saw no child to end
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise TableError("the reader of tables was closed")

    def _let_go(self) -> None:
        self._release = None
        task = asyncio.get_running_loop().create_task(self._end(kill=False))
        self._released.add(task)
        task.add_done_callback(self._released.discard)

    async def _end(self, *, kill: bool) -> None:
        """End the child process and see it off."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            with suppress(ProcessLookupError):
                process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
