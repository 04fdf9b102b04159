"""The child process that reads tables for a gateway: requests on standard input, answers on output.

A frame is four bytes of length and a pickle. A request is (operation, arguments); its answer is any
number of ("rows", list) and one ("end", value) or ("error", text). The child ends with its input,
so also when the gateway is killed.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

from ingest.gateway.lake.messages import HistoryPage, read_messages
from ingest.gateway.lake.retained import read_retained
from ingest.gateway.lake.table import TableError, TableReader
from mqlake.tables import MESSAGES, RETAINED

LENGTH: Final = Struct(">I")
ROWS: Final = "rows"
END: Final = "end"
ERROR: Final = "error"

ROWS_IN_FRAME: Final = 1_000
"""The gateway's loop unpickles them in about 2 ms."""

NICENESS: Final = 5
"""Clients that are there go before those that catch up."""

Answer = Iterator[tuple[str, Any]]


class Worker:
    """Answers requests about the tables of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._messages = TableReader(data_dir / "tables" / MESSAGES.name)
        self._retained = TableReader(data_dir / "tables" / RETAINED.name)
        self._operations: dict[str, Callable[..., Answer]] = {
            "messages": self.messages,
            "retained": self.retained,
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
        for start in range(0, len(page.records), ROWS_IN_FRAME):
            yield ROWS, page.records[start : start + ROWS_IN_FRAME]
        yield END, page._replace(records=[])

    def retained(self) -> Answer:
        """Answer with the rows of `retained` and, as its end, the offsets to go on from."""
        if not self._retained.refresh():
            yield END, {}
            return
        offsets = self._retained.next_offsets()
        for rows in read_retained(self._retained):
            yield ROWS, rows
        yield END, offsets


def encode_frame(content: object) -> bytes:
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def serve(worker: Worker, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more, or nobody reads the answers."""
    try:
        while len(length := requests.read(LENGTH.size)) == LENGTH.size:
            # From our gateway, which has started us.
            request = pickle.loads(requests.read(*LENGTH.unpack(length)))  # noqa: S301
            for part in worker.answer(*request):
                answers.write(encode_frame(part))
                answers.flush()
    except BrokenPipeError:
        return


def main() -> None:
    # The terminal's interrupt is for the gateway; we end when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    serve(Worker(Path(sys.argv[1])), sys.stdin.buffer, sys.stdout.buffer)
    # Not through the interpreter's end: a flush of what nobody reads would complain.
    os._exit(0)


if __name__ == "__main__":
    main()
