"""Ask a Kafka broker whether it is in service: a few requests, no client library.

A library costs the supervisor 20 MB and threads that reconnect; this is one socket, closed again.
Wire format: https://kafka.apache.org/protocol, Metadata request version 4; a login goes before it
where the broker wants one (SaslHandshake, SaslAuthenticate, RFC 5802).
"""

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from functools import lru_cache
from typing import Final

from mqlake.log.security import ClientSecurity

_METADATA: Final = (3, 4)
_SASL_HANDSHAKE: Final = (17, 1)
_SASL_AUTHENTICATE: Final = (36, 0)
"""Number and version of requests."""
_CORRELATION_ID: Final = 1
_CLIENT_ID: Final = b"mqlake-probe"
_NO_TOPICS: Final = struct.pack(">i?", 0, False)
_MAX_ANSWER_BYTES: Final = 1 << 20
_MOST_ITERATIONS: Final = 100_000
"""Rounds of a login; an impostor in the broker's place must not keep us busy."""


def is_serving(
    host: str,
    port: int,
    security: ClientSecurity | None = None,
    *,
    timeout_seconds: float = 2.0,
) -> bool:
    """Return whether a broker answers there and knows of at least one broker in service.

    Args:
        host: Host name or address of the broker.
        port: TCP port of the broker.
        security: Login and protocol; None: neither.
        timeout_seconds: For each answer.
    """
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            if security is not None and security.has_login:
                _log_in(connection, security)
            return count_brokers(_ask(connection, _METADATA, _NO_TOPICS)) > 0
    except (OSError, struct.error, ValueError, KeyError):
        return False


def count_brokers(answer: bytes) -> int:
    """Read the number of brokers: after correlation id and throttle time comes their array."""
    correlation_id, _throttle_ms, brokers = struct.unpack_from(">iii", answer)
    return brokers if correlation_id == _CORRELATION_ID else 0


def _ask(connection: socket.socket, request: tuple[int, int], body: bytes) -> bytes:
    """Send a request and return its answer, correlation id first."""
    header = struct.pack(">hhih", *request, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    (length,) = struct.unpack(">i", _read(connection, 4))
    if not 12 <= length <= _MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {length} bytes")
    return _read(connection, length)


def _log_in(connection: socket.socket, security: ClientSecurity) -> None:
    """Prove that we know the password, and have the broker prove it.

    Raises:
        ValueError: It does not let us in, or is another one.
        KeyError: A field of its answer is missing.
    """
    mechanism = security.mechanism.encode()
    _ask(connection, _SASL_HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism)
    digest = security.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    nonce = secrets.token_urlsafe(18)
    first = f"n={security.username},r={nonce}"
    challenge = _authenticate(connection, f"n,,{first}")
    told = _attributes(challenge)
    iterations = int(told["i"])
    if not told["r"].startswith(nonce) or iterations > _MOST_ITERATIONS:
        raise ValueError("not an answer to us")
    salted = _salted(digest, security.password, base64.b64decode(told["s"]), iterations)
    final = f"c=biws,r={told['r']}"
    both = f"{first},{challenge},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), both, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = _authenticate(connection, f"{final},p={base64.b64encode(proof).decode()}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), both, digest)
    if not hmac.compare_digest(base64.b64decode(_attributes(answer)["v"]), expected):
        raise ValueError("the broker does not know the password")


def _authenticate(connection: socket.socket, message: str) -> str:
    """Return the message that answers one: it stands behind an error and its words."""
    data = message.encode()
    answer = _ask(connection, _SASL_AUTHENTICATE, struct.pack(">i", len(data)) + data)
    _, error, words = struct.unpack_from(">ihh", answer)
    if error:
        raise ValueError(f"not let in, error {error}")
    at = 8 + max(0, words)
    (length,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + length].decode()


def _attributes(message: str) -> dict[str, str]:
    """Return `r=…,s=…` by letter."""
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)


@lru_cache(maxsize=4)
def _salted(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    """A broker keeps its salt for as long as it runs."""
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("connection closed in the middle of an answer")
        data += chunk
    return data
