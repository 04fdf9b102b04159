"""Histories: operations of clients of a broker and their results, one JSON line each.

The format is a promise to other programs (`docs/resilience.md`). The first line is a header, each
further line one operation. The order of the lines is the order of events: an `invoke` is written
before its bytes leave, an `ok` after the answer has come. Checkers rely on that order, and use the
times only where a clause speaks of time.
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from resilience.errors import HistoryError

VERSION: Final = 1

Operation = dict[str, Any]
"""One line: `process`, `f`, `type`, `time` (microseconds of one clock), and the fields of `f`."""

FUNCTIONS: Final[dict[str, str]] = {
    "connect": "CONNECT until CONNACK; ok has session_present",
    "disconnect": "DISCONNECT until the broker has closed the connection",
    "closed": "ok: a connection ended in another way than by DISCONNECT",
    "publish": "one message until its last acknowledgement; QoS 0 is ok once it is written",
    "subscribe": "one topic filter until SUBACK",
    "unsubscribe": "one topic filter until UNSUBACK",
    "receive": "ok: a message was given to the client; info: a repetition that QoS 2 swallowed",
    "acknowledge": "ok: the client is about to send PUBACK or PUBCOMP",
    "rights": "a right is granted or taken away; ok when the broker has confirmed it",
    "tenant": "a tenant is opened or shut; ok when the broker has confirmed it",
    "fault": "a fault from its first effect until it is over",
    "drain": "the wait at the end for all that is due; ok is what the end of a history means",
}
TYPES: Final = ("invoke", "ok", "info", "fail")

_SEPARATOR: Final = b"|"


class Writer:
    """Append operations to a history; threads may share one.

    Args:
        stream: Open for text.
        header: Fields known before the first operation; `history` is added.
        clock: Seconds, monotonic; the first operation is not necessarily at 0.
    """

    def __init__(self, stream: IO[str], header: dict[str, Any], clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self.count = 0
        stream.write(json.dumps({"history": VERSION, **header}) + "\n")

    def write(self, process: str, f: str, type_: str, **fields: Any) -> None:
        """Write one operation; None among the fields is left out."""
        with self._lock:
            operation = {"process": process, "f": f, "type": type_}
            operation["time"] = round(self._clock() * 1e6)  # type: ignore[assignment]
            operation.update((k, v) for k, v in fields.items() if v is not None)
            self._stream.write(json.dumps(operation, separators=(",", ":")) + "\n")
            self.count += 1


class Recorder(Writer):
    """Keep the operations in memory instead of a file; the double writes ten thousands of these."""

    def __init__(self, header: dict[str, Any], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.header = {"history": VERSION, **header}
        self.operations: list[Operation] = []
        self.count = 0

    def write(self, process: str, f: str, type_: str, **fields: Any) -> None:
        """Keep one operation; None among the fields is left out."""
        operation: Operation = {"process": process, "f": f, "type": type_}
        operation["time"] = round(self._clock() * 1e6)
        for key, value in fields.items():
            if value is not None:
                operation[key] = value
        self.operations.append(operation)
        self.count += 1


def read(path: Path) -> tuple[dict[str, Any], Iterator[Operation]]:
    """Open a history: its header, and its operations as they are read.

    A last line that is cut short is left out: its writer was killed. The iterator closes the file.

    Raises:
        HistoryError: The file is no history, or a line in it is none of an operation.
    """
    stream = path.open(encoding="utf-8")
    try:
        header = json.loads(stream.readline())
        version = header["history"]
    except (ValueError, KeyError, TypeError) as exc:
        stream.close()
        raise HistoryError(f"{path}: line 1 is not the header of a history") from exc
    if version != VERSION:
        stream.close()
        raise HistoryError(f"{path}: history version {version}, expected {VERSION}")
    return header, _operations(path, stream)


def _operations(path: Path, stream: IO[str]) -> Iterator[Operation]:
    with stream:
        loads = json.loads
        for number, line in enumerate(stream, start=2):
            try:
                yield loads(line)
            except ValueError as exc:
                if not line.endswith("\n"):
                    return
                raise HistoryError(f"{path}: line {number} is not JSON") from exc


def encode_payload(message_id: str, size: int) -> bytes:
    """Return a payload of at least `size` bytes that says which message it is and checks itself."""
    head = message_id.encode()
    padding = b"." * max(0, size - len(head) - 10)
    return b"%s|%08x|%s" % (head, zlib.crc32(head + padding), padding)


def decode_payload(payload: bytes) -> str | None:
    """Return the identifier in a payload; None if this is not the payload as it was made."""
    head, _, rest = payload.partition(_SEPARATOR)
    check, separator, padding = rest.partition(_SEPARATOR)
    if not separator or check != b"%08x" % zlib.crc32(head + padding):
        return None
    return head.decode(errors="replace")
