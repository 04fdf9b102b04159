import asyncio
import http.client
import logging
import socket
import threading
import urllib.error
import urllib.request

import pytest

from launcher.ports import free_ports
from launcher.testing.systems import await_condition
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


def test_silent_connections_have_a_bound_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.5)
    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), Heart("x", None), read)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(module.MOST_AT_ONCE)]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as further:
            assert further.recv(1) == b"", "there is no place"
        for one in silent:
            one.settimeout(60)
            assert one.recv(1) == b"", "it has said nothing"
        await_condition(lambda: get_or_none(port) is not None, "there are places again")
    finally:
        for one in silent:
            one.close()
        server.close()


def get_or_none(port: int) -> str | None:
    try:
        return get(port)
    except (OSError, http.client.HTTPException):
        return None


def test_without_a_port_there_is_no_server() -> None:
    MetricsServer(MetricsSettings(), Heart("x", None), read).close()


def test_a_port_that_is_taken_costs_the_metrics_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        settings = MetricsSettings(port=taken.getsockname()[1])
        MetricsServer(settings, Heart("x", None), read).close()
    assert caplog.messages == ["no metrics are served"]
