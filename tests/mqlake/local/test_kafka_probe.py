import socket
import struct
import threading

import pytest

from mqlake.local.kafka_probe import count_brokers, is_serving
from mqlake.local.ports import free_ports


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


def test_nobody_there_is_not_in_service() -> None:
    assert not is_serving("127.0.0.1", free_ports(1)[0])
