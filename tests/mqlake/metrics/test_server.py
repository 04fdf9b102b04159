import logging
import socket
import urllib.error
import urllib.request

import pytest

from launcher.ports import free_ports
from mqlake import VERSION
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


def test_without_a_port_there_is_no_server() -> None:
    MetricsServer(MetricsSettings(), new_registry("x", lambda: True, read)).close()


def test_a_port_that_is_taken_costs_the_metrics_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        settings = MetricsSettings(port=taken.getsockname()[1])
        MetricsServer(settings, new_registry("x", lambda: True, read)).close()
    assert caplog.messages == ["no metrics are served"]
