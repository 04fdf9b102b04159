"""The child process: takes requests on its standard input and answers on its standard output.

It ends with its input, so also when the gateway is killed.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from ingest.gateway.lake.exchange import (
    BYTES_IN_FRAME,
    END,
    ERROR,
    LENGTH,
    MESSAGES_OPERATION,
    RETAINED_OPERATION,
    ROWS,
    ROWS_IN_FRAME,
    HistoryPage,
    TableError,
    decode_frame,
    encode_frame,
)
from ingest.gateway.lake.messages import read_messages
from ingest.gateway.lake.retained import read_retained
from ingest.gateway.lake.table import TableReader
from mqlake.tables.catalogue import MESSAGES, RETAINED

NICENESS: Final = 5
"""Clients that are there go before those that catch up."""

Answer = Iterator[tuple[str, Any]]
Row = TypeVar("Row")


class Worker:
    """Answers requests about the tables under `<data_dir>/tables`."""

    def __init__(self, data_dir: Path) -> None:
        self._messages = TableReader(data_dir / "tables" / MESSAGES.name)
        self._retained = TableReader(data_dir / "tables" / RETAINED.name)
        self._operations: dict[str, Callable[..., Answer]] = {
            MESSAGES_OPERATION: self.messages,
            RETAINED_OPERATION: self.retained,
        }

    def answer(self, operation: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            yield from self._operations[operation](*arguments)
        except TableError as exc:
            yield ERROR, str(exc)

    def messages(self, tenant: str, ranges: dict[int, tuple[int, int]], *more: Any) -> Answer:
        """Answer with the records of a page and, as its end, the page without them."""
        if self._messages.refresh():
            page = read_messages(self._messages, tenant, ranges, *more)
        else:
            starts = {partition: start for partition, (start, _) in ranges.items()}
            page = HistoryPage([], starts, has_more=False)
        yield from _frames(page.records, lambda record: len(record.value or b""))
        yield END, page._replace(records=[])

    def retained(self, partitions: list[int]) -> Answer:
        """Answer with rows of `retained` and, as its end, the offsets to go on from."""
        if not self._retained.refresh():
            yield END, {}
            return
        offsets = self._retained.next_offsets()
        yield from _frames(
            read_retained(self._retained, partitions), lambda row: len(row.payload or b"")
        )
        yield END, offsets


def serve(worker: Worker, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more, or the reader of answers is gone."""
    try:
        while len(length := requests.read(LENGTH.size)) == LENGTH.size:
            for part in worker.answer(*decode_frame(requests.read(*LENGTH.unpack(length)))):
                answers.write(encode_frame(part))
                answers.flush()
    except BrokenPipeError:
        return


def _frames(rows: Iterable[Row], size_of: Callable[[Row], int]) -> Answer:
    frame: list[Row] = []
    size = 0
    for row in rows:
        frame.append(row)
        size += size_of(row)
        if len(frame) == ROWS_IN_FRAME or size >= BYTES_IN_FRAME:
            yield ROWS, frame
            frame, size = [], 0
    if frame:
        yield ROWS, frame


def main() -> None:
    # The terminal's interrupt is for the gateway; we end when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    serve(Worker(Path(sys.argv[1])), sys.stdin.buffer, sys.stdout.buffer)
    # Past the interpreter's end, which would complain of answers that are not read.
    os._exit(0)


if __name__ == "__main__":
    main()
