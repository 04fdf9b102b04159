"""Ask a Kafka broker whether it is in service: one request, no client library.

A library costs the supervisor 20 MB and threads that reconnect; this is one socket, closed again.
Wire format: https://kafka.apache.org/protocol, Metadata request version 4.
"""

import socket
import struct
from typing import Final

_METADATA: Final = 3
_VERSION: Final = 4
_CORRELATION_ID: Final = 1
_CLIENT_ID: Final = b"mqlake-probe"
_NO_TOPICS: Final = struct.pack(">i?", 0, False)

_REQUEST: Final = (
    struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(_CLIENT_ID))
    + _CLIENT_ID
    + _NO_TOPICS
)
_MAX_ANSWER_BYTES: Final = 1 << 20


def is_serving(host: str, port: int, *, timeout_seconds: float = 2.0) -> bool:
    """Return whether a broker answers there and knows of at least one broker in service."""
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (length,) = struct.unpack(">i", _read(connection, 4))
            if not 12 <= length <= _MAX_ANSWER_BYTES:
                return False
            return count_brokers(_read(connection, length)) > 0
    except (OSError, struct.error):
        return False


def count_brokers(answer: bytes) -> int:
    """Read the number of brokers: after correlation id and throttle time comes their array."""
    correlation_id, _throttle_ms, brokers = struct.unpack_from(">iii", answer)
    return brokers if correlation_id == _CORRELATION_ID else 0


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("connection closed in the middle of an answer")
        data += chunk
    return data
