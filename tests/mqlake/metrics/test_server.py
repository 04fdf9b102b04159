import asyncio
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from launcher.ports import free_ports
from mqlake import VERSION
from mqlake.metrics import server as module
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer, in_event_loop
from mqlake.processes.heart import Heart, ProcessState
from mqlake.settings import MetricsSettings


def read(families: Families) -> None:
    families.add("mqlake_gateway_clients", 7)


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def test_a_process_is_asked_when_somebody_looks() -> None:
    (port,) = free_ports(1)
    heart = Heart("gateway-1", None)
    server = MetricsServer(MetricsSettings(port=port), heart, read)
    try:
        lines = get(port).splitlines()
        assert "mqlake_gateway_clients 7.0" in lines
        assert f'mqlake_build_info{{process="gateway-1",version="{VERSION}"}} 1.0' in lines
        assert 'mqlake_healthy{process="gateway-1"} 0.0' in lines
        assert "# TYPE mqlake_logged_lines_total counter" in lines
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
        heart.beat(healthy=True, detail="serving")
        assert 'mqlake_healthy{process="gateway-1"} 1.0' in get(port)
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        get(port)


def test_it_says_whether_it_is_live_and_ready() -> None:
    (port,) = free_ports(1)
    heart = Heart("gateway-1", None)
    server = MetricsServer(MetricsSettings(port=port), heart, read)
    try:
        assert ask(port, "/live") == (200, "live\n")
        assert ask(port, "/ready") == (503, "starting\n")
        heart.beat(healthy=False, detail="the log does not answer")
        assert ask(port, "/live") == (200, "live\n")
        assert ask(port, "/ready") == (503, "the log does not answer\n")
        heart.note(ProcessState(healthy=True, detail="2 clients, drained", is_ready=False))
        assert ask(port, "/ready") == (503, "2 clients, drained\n")
        heart.beat(healthy=True, detail="2 clients")
        assert ask(port, "/ready?verbose") == (200, "2 clients\n")
    finally:
        server.close()


def test_one_that_does_nothing_any_more_is_not_live() -> None:
    class Stuck(Heart):
        is_live = False

        def readiness(self) -> tuple[bool, str]:
            return False, "has not moved for 75 s"

    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), Stuck("lake", None), read)
    try:
        for path in ("/live", "/ready"):
            assert ask(port, path) == (503, "has not moved for 75 s\n")
    finally:
        server.close()


async def _look_in_a_loop() -> None:
    found: list[str] = []

    def note(families: Families) -> None:
        found.append(threading.current_thread().name)

    reader = in_event_loop(note)
    await asyncio.to_thread(reader, Families())
    assert found == [threading.current_thread().name]
    with pytest.raises(TimeoutError):
        reader(Families())  # in the loop's own thread: it cannot answer meanwhile


def test_an_event_loop_is_looked_at_by_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)
    asyncio.run(_look_in_a_loop())


def status(port: int, host: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: int = answer.status
    except urllib.error.HTTPError as exc:
        return exc.code
    return found


def test_a_page_of_another_site_does_not_read_them() -> None:
    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), Heart("x", None), read)
    try:
        for host, expected in (
            ("localhost", 200),
            (f"127.0.0.1:{port}", 200),
            ("[::1]:9", 200),
            ("evil.example", 421),
            (f"localhost.evil.example:{port}", 421),
        ):
            assert status(port, host) == expected, host
    finally:
        server.close()


def test_elsewhere_names_are_for_others_to_check() -> None:
    (port,) = free_ports(1)
    settings = MetricsSettings(port=port, host="0.0.0.0")
    server = MetricsServer(settings, Heart("x", None), read)
    try:
        assert status(port, "gateway-1.example") == 200
    finally:
        server.close()


def is_cut(connection: socket.socket) -> bool:
    connection.settimeout(60)
    return connection.recv(1) == b""


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_silent_connections_make_room_and_have_an_end(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 60.0)
    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), Heart("x", None), read)
    opened.callback(server.close)
    here = ("127.0.0.1", port)
    first = opened.enter_context(socket.create_connection(here))
    first.sendall(b"GET /metrics HTT")
    crowd = [
        opened.enter_context(socket.create_connection(here, source_address=("127.0.0.2", 0)))
        for _ in range(module.MOST_AT_ONCE - 1)
    ]
    assert "mqlake_healthy" in get(port), "at once"
    assert is_cut(crowd[0]), "the oldest of the address that has most"
    first.sendall(b"P/1.0\r\n\r\n")
    first.settimeout(60)
    assert first.recv(8) == b"HTTP/1.0"
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.5)
    last = opened.enter_context(socket.create_connection(here))
    assert is_cut(last), "it has said nothing"


def test_who_is_being_answered_gives_way_to_nobody(opened: ExitStack) -> None:
    asked, may_answer = threading.Semaphore(0), threading.Event()

    def wait(families: Families) -> None:
        asked.release()
        may_answer.wait(60)
        read(families)

    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), Heart("x", None), wait)
    opened.callback(server.close)
    with ThreadPoolExecutor(module.MOST_AT_ONCE) as readers:
        answers = [readers.submit(get, port) for _ in range(module.MOST_AT_ONCE)]
        try:
            for _ in answers:
                assert asked.acquire(timeout=60)
            further = socket.create_connection(("127.0.0.1", port))
            assert is_cut(opened.enter_context(further)), "there is no place"
        finally:
            may_answer.set()
        assert all("mqlake_gateway_clients 7.0" in one.result() for one in answers)
    assert "mqlake_gateway_clients 7.0" in get(port)


def test_without_a_port_there_is_no_server() -> None:
    MetricsServer(MetricsSettings(), Heart("x", None), read).close()


def test_a_port_that_is_taken_costs_the_metrics_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        settings = MetricsSettings(port=taken.getsockname()[1])
        MetricsServer(settings, Heart("x", None), read).close()
    assert caplog.messages == ["no metrics are served"]
