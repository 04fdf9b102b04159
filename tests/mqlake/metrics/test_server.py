import http.client
import logging
import socket
import urllib.error
import urllib.request

import pytest

from launcher.ports import free_ports
from launcher.testing.systems import await_condition
from mqlake import VERSION
from mqlake.metrics import server as module
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.settings import MetricsSettings


def read(families: Families) -> None:
    families.add("mqlake_gateway_clients", 7)


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_a_process_is_asked_when_somebody_looks() -> None:
    (port,) = free_ports(1)
    healthy = [False]
    server = MetricsServer(
        MetricsSettings(port=port), new_registry("gateway-1", lambda: healthy[0], read)
    )
    try:
        lines = get(port).splitlines()
        assert "mqlake_gateway_clients 7.0" in lines
        assert f'mqlake_build_info{{process="gateway-1",version="{VERSION}"}} 1.0' in lines
        assert 'mqlake_healthy{process="gateway-1"} 0.0' in lines
        assert "# TYPE mqlake_logged_lines_total counter" in lines
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
        healthy[0] = True
        assert 'mqlake_healthy{process="gateway-1"} 1.0' in get(port)
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        get(port)


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
    server = MetricsServer(MetricsSettings(port=port), new_registry("x", lambda: True, read))
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
    server = MetricsServer(settings, new_registry("x", lambda: True, read))
    try:
        assert status(port, "gateway-1.example") == 200
    finally:
        server.close()


def test_silent_connections_have_a_bound_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.5)
    (port,) = free_ports(1)
    server = MetricsServer(MetricsSettings(port=port), new_registry("x", lambda: True, read))
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
    MetricsServer(MetricsSettings(), new_registry("x", lambda: True, read)).close()


def test_a_port_that_is_taken_costs_the_metrics_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        settings = MetricsSettings(port=taken.getsockname()[1])
        MetricsServer(settings, new_registry("x", lambda: True, read)).close()
    assert caplog.messages == ["no metrics are served"]
