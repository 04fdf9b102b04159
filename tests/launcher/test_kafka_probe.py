import base64
import hashlib
import hmac
import socket
import struct
import threading

import pytest

from launcher.log.probe import count_brokers, is_serving
from launcher.ports import free_ports
from mqlake.log.security import ClientSecurity


def answer(correlation_id: int, brokers: int) -> bytes:
    return struct.pack(">iii", correlation_id, 0, brokers) + b"\0" * 20


def serve_once(reply: bytes) -> int:
    """Answer one connection with these bytes; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1024)
            connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def serve_login(password: str, broker_password: str | None = None) -> int:
    """Be a broker that lets in by SCRAM whoever knows a password; return the port.

    Args:
        password: That is expected.
        broker_password: That the broker says it knows; without it the same.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    salt, iterations = b"a salt of sixteen", 4096

    def keys(known: str) -> list[bytes]:
        salted = hashlib.pbkdf2_hmac("sha512", known.encode(), salt, iterations)
        names = (b"Client Key", b"Server Key")
        return [hmac.digest(salted, name, "sha512") for name in names]

    def receive(connection: socket.socket, kind: int) -> str:
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        data = connection.recv(size, socket.MSG_WAITALL)
        key, _version, _id, name = struct.unpack_from(">hhih", data)
        assert key == kind
        return data[10 + name + 4 :].decode(errors="replace")

    def authenticated(words: str, error: int = 0) -> bytes:
        data = words.encode()
        return framed(struct.pack(">ihhi", 1, error, -1, len(data)) + data)

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            receive(connection, 17)
            connection.sendall(framed(struct.pack(">ihi", 1, 0, 0) + b"\0\0"))
            first = receive(connection, 36).removeprefix("n,,")
            challenge = f"{first.partition('r=')[2]}more,s={base64.b64encode(salt).decode()}"
            challenge = f"r={challenge},i={iterations}"
            connection.sendall(authenticated(challenge))
            final, _, proof = receive(connection, 36).rpartition(",p=")
            both = f"{first},{challenge},{final}".encode()
            client_key, server_key = keys(password)
            signature = hmac.digest(hashlib.sha512(client_key).digest(), both, "sha512")
            wanted = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
            if base64.b64decode(proof) != wanted:
                connection.sendall(authenticated("", 58))
                return
            if broker_password is not None:
                server_key = keys(broker_password)[1]
            verifier = base64.b64encode(hmac.digest(server_key, both, "sha512")).decode()
            connection.sendall(authenticated(f"v={verifier}"))
            if broker_password is not None:
                return
            receive(connection, 3)
            connection.sendall(framed(answer(1, 1)))

    threading.Thread(target=serve, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    ("data", "brokers"), [(answer(1, 1), 1), (answer(1, 0), 0), (answer(7, 3), 0)]
)
def test_brokers_of_an_answer_to_us_are_counted(data: bytes, brokers: int) -> None:
    assert count_brokers(data) == brokers


def test_a_broker_in_service_is_seen() -> None:
    assert is_serving("127.0.0.1", serve_once(framed(answer(1, 1))))


@pytest.mark.parametrize(
    "reply",
    [
        framed(answer(1, 0)),
        framed(answer(1, 1))[:10],
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        framed(b""),
        struct.pack(">i", -1),
    ],
)
def test_anything_else_is_not_in_service(reply: bytes) -> None:
    assert not is_serving("127.0.0.1", serve_once(reply))


LOGIN = ClientSecurity("SASL_PLAINTEXT", "SCRAM-SHA-512", "mqlake", "right")


def test_a_broker_that_asks_is_told_a_proof_and_has_to_give_one() -> None:
    assert is_serving("127.0.0.1", serve_login("right"), LOGIN)


@pytest.mark.parametrize("passwords", [("wrong", None), ("right", "another")])
def test_a_broker_with_another_password_is_not_ours(passwords: tuple[str, str | None]) -> None:
    assert not is_serving("127.0.0.1", serve_login(*passwords), LOGIN)


@pytest.mark.parametrize("reply", [framed(answer(1, 1)), framed(answer(1, 0) + b"r=,s="), b""])
def test_who_answers_a_login_with_something_else_is_not_in_service(reply: bytes) -> None:
    assert not is_serving("127.0.0.1", serve_once(reply), LOGIN)


def test_nobody_there_is_not_in_service() -> None:
    assert not is_serving("127.0.0.1", free_ports(1)[0])
