"""What comes before it is known who sends it, and what comes slowly."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.app import Server, server_config
from api.entrance import limits as module
from api.entrance.limits import MAX_LOGIN_BYTES
from api.sql.results import Result, ResultColumn
from launcher.testing.systems import await_condition
from tests.api.conftest import AUTHORIZED, Api, memory_api

HEADERS = [(b"content-length", b"4000000"), (b"content-type", b"application/json")]
WITH_TOKEN = [*HEADERS, (b"authorization", AUTHORIZED["Authorization"].encode())]


async def ask(
    made: Api, path: str, headers: list[tuple[bytes, bytes]], parts: AsyncIterator[dict[str, Any]]
) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers of an answer to a request whose body comes in parts."""
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await anext(parts)

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/api/v1{path}",
        "raw_path": f"/api/v1{path}".encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "server": ("127.0.0.1", 8080),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
    await made.client.app(scope, receive, send)
    (start,) = [one for one in said if one["type"] == "http.response.start"]
    return start["status"], dict(start["headers"])


async def nothing() -> AsyncIterator[dict[str, Any]]:
    raise AssertionError("the body was read")
    yield {}


async def silence() -> AsyncIterator[dict[str, Any]]:
    yield {"type": "http.request", "body": b"{", "more_body": True}
    await asyncio.Event().wait()


async def without_end() -> AsyncIterator[dict[str, Any]]:
    while True:
        yield {"type": "http.request", "body": b"x" * 1000, "more_body": True}


@pytest.mark.parametrize(
    "path", ["/publish", "/sql", "/keys", "/rules", "/nothing", "/login/", "//login", "/session"]
)
@pytest.mark.parametrize(
    "more",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Basic czNjcmV0")],
        [(b"authorization", b"Bearer")],
        [(b"cookie", b"mqlake_session=mqs_0_0")],
    ],
)
def test_a_body_of_nobody_we_know_is_not_read(
    api: Api, path: str, more: list[tuple[bytes, bytes]]
) -> None:
    length = [(b"transfer-encoding", b"chunked")]
    for headers in ([*HEADERS, *more], [*length, *more]):
        status, answered = asyncio.run(ask(api, path, headers, nothing()))
        assert status == 401
        assert answered[b"connection"] == b"close"
        assert answered[b"content-type"] == b"application/problem+json"


def test_a_body_that_does_not_come_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGIN_SECONDS", 0.05)
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)
    for path, headers in (("/login", HEADERS), ("/publish", WITH_TOKEN)):
        status, answered = asyncio.run(ask(api, path, headers, silence()))
        assert status == 408
        assert answered[b"connection"] == b"close"


def test_the_body_of_a_login_is_small(api: Api) -> None:
    assert asyncio.run(ask(api, "/login", HEADERS, without_end()))[0] == 413
    answer = api.request("POST", "/login", {}, content=b"x" * (MAX_LOGIN_BYTES + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    fits = b'{"token": "wrong"%s}' % (b" " * (MAX_LOGIN_BYTES - 20))
    json = {"Content-Type": "application/json"}
    assert api.request("POST", "/login", json, content=fits).status_code == 401


@contextmanager
def served(made: Api) -> Iterator[int]:
    """Serve as `api.app.main` does; yield the port."""
    config = server_config(made.client.app)
    config.port = 0
    server = Server(config)
    made.services.live.readers.is_stopping = lambda: server.should_exit
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        await_condition(lambda: server.started, "it listens")
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_a_head_that_does_not_come_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.3)
    live = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(api) as port:
        for begun in (b"", b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(begun)
                assert connection.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(live + live[:-2])  # a whole one, and one that is not
            received = b""
            while part := connection.recv(65_536):
                received += part
            assert received.count(b"HTTP/1.1 200 OK") == 1


def test_connections_have_a_bound_and_silent_ones_make_room(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    live = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n"
    with served(api) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(4)]
        assert silent[0].recv(1) == b"", "the oldest"
        silent[1].sendall(live + b"\r\n")
        assert silent[1].recv(15) == b"HTTP/1.1 200 OK"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as further:
            assert silent[2].recv(1) == b"", "the oldest that asks nothing"
            further.sendall(live + b"\r\n")
            assert further.recv(15) == b"HTTP/1.1 200 OK"
        for one in silent:
            one.close()


LIVE = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LOGIN = (
    b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
)


@pytest.mark.parametrize(("asked", "status"), [(LOGIN, b"HTTP/1.1 100 "), (LIVE, b"HTTP/1.1 200 ")])
def test_an_address_that_has_all_connections_makes_room_for_others(
    api: Api, asked: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they do: the body of a login does not come, or a request comes now and then."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    with served(api) as port, ExitStack() as opened:

        def connect(address: str) -> socket.socket:
            there, source = ("127.0.0.1", port), (address, 0)
            made = socket.create_connection(there, timeout=60, source_address=source)
            opened.callback(made.close)
            return made

        def is_cut(connection: socket.socket) -> bool:
            while received := connection.recv(65_536):
                assert received
            return True

        crowd = [connect("127.0.0.2") for _ in range(3)]
        for one in crowd:
            one.sendall(asked)
            assert one.recv(len(status), socket.MSG_WAITALL) == status
        other = connect("127.0.0.1")
        other.sendall(LIVE)
        assert other.recv(13, socket.MSG_WAITALL) == b"HTTP/1.1 200 "
        assert is_cut(crowd[0]), "the oldest"
        newcomer = connect("127.0.0.2")
        assert is_cut(newcomer if asked == LOGIN else crowd[1]), "one that asks nothing"
        other.sendall(LIVE)
        assert other.recv(1)


class LargeResult:
    """In the place of Spark: a result of 32 MiB."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "part-0.parquet"
        column = pa.array(["x" * 65_536] * 512)
        pq.write_table(pa.table({"c0": column}), self._path, compression="none")
        self.ended = threading.Event()

    @contextmanager
    def run(self, *_: object, caller: str) -> Iterator[Result]:
        try:
            yield Result((ResultColumn("text", "string", False),), (self._path,), 512, False)
        finally:
            self.ended.set()


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_an_answer_that_nobody_reads_ends_with_its_result(
    api: Api, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREAD_SECONDS", 0.3)
    result = LargeResult(tmp_path)
    api.put_in("queries", runner=result)
    body = json.dumps({"query": "SELECT topic FROM messages", "format": form}).encode()
    with served(api) as port, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port))
        head = (
            f"POST /api/v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: {AUTHORIZED['Authorization']}\r\n"
            "Content-Type: application/json\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        assert result.ended.wait(60)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_an_answer_that_is_read_is_whole(api: Api, tmp_path: Path) -> None:
    result = LargeResult(tmp_path)
    api.put_in("queries", runner=result)
    body = {"query": "SELECT topic FROM messages", "format": "csv"}
    url = "http://127.0.0.1:{}/api/v1/sql"
    with (
        served(api) as port,
        httpx.stream("POST", url.format(port), json=body, headers=AUTHORIZED, timeout=60) as answer,
    ):
        assert sum(len(part) for part in answer.iter_bytes()) > 32 * 1024 * 1024
        assert result.ended.wait(60)


@pytest.mark.parametrize(
    ("trusted", "address"),
    [("", "127.0.0.1"), ("192.0.2.1", "127.0.0.1"), ("127.0.0.1", "9.9.9.9")],
)
def test_whom_a_proxy_asks_for_counts_from_proxies_alone(
    tmp_path: Path, trusted: str, address: str
) -> None:
    with memory_api(tmp_path, trusted_proxies=trusted) as api, served(api) as port:
        answer = httpx.post(
            f"http://127.0.0.1:{port}/api/v1/login",
            json={"token": "wrong"},
            headers={"X-Forwarded-For": "9.9.9.9"},
            timeout=60,
        )
        assert answer.status_code == 401
        (record,) = api.audited.records
    assert json.loads(record.value or b"")["address"] == address
