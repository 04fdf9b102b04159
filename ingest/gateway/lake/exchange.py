"""Frames between the gateway and its child process.

A frame is four bytes of length and a pickle: both ends are of one program and one version. A
request is (operation, arguments); its answer is any number of (`ROWS`, list), then one (`END`,
value) or (`ERROR`, text).
"""

import pickle
from struct import Struct
from typing import Any, Final, NamedTuple

from mqlake.errors import MqlakeError
from mqlake.records.messages import LogRecord

LENGTH: Final = Struct(">I")
ROWS: Final = "rows"
END: Final = "end"
ERROR: Final = "error"

ROWS_IN_FRAME: Final = 1_000
BYTES_IN_FRAME: Final = 1024 * 1024
"""A frame ends when either is reached; the gateway's loop unpickles it in about 2 ms."""

MAX_PAGE_BYTES: Final = 32 * 1024 * 1024
"""Payloads of a page; the one that reaches it is the last."""

MESSAGES_OPERATION: Final = "messages"
RETAINED_OPERATION: Final = "retained"


class TableError(MqlakeError):
    """A Delta table that cannot be read."""


class HistoryPage(NamedTuple):
    records: list[LogRecord]
    """Ascending by partition and offset; without `source` headers."""
    next_offsets: dict[int, int]
    """Partition -> the first offset of its range that is still to be read, its end when none is."""
    has_more: bool
    """The table has more: ask it again from `next_offsets`. Else go on from there in the log."""


def encode_frame(content: object) -> bytes:
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def decode_frame(data: bytes) -> Any:
    """Undo `encode_frame`, of the bytes behind the length."""
    return pickle.loads(data)  # noqa: S301 - the other end is the process we started, or started us
