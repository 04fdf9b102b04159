"""What the API says of a balancer that runs, of one that is dead, and of none."""

from collections.abc import Iterator
from typing import Any

import pytest

from ingest.balancer.control_plane import ControlPlane
from launcher.ports import free_ports
from tests.api.conftest import Api
from tests.ingest.balancer.serving import served_plane


@pytest.fixture
def plane(api: Api) -> Iterator[ControlPlane]:
    port = free_ports(1)[0]
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name in ("a", "b")]
    proxies = [{"name": "proxy-1", "runtime_api": str(api.data_dir / "nowhere.sock")}]
    with served_plane(api.data_dir, nodes=nodes, proxies=proxies) as served:
        yield served


def test_without_a_balancer_it_says_how_to_get_one(api: Api) -> None:
    answer = api.request("GET", "/balancer")
    assert answer.status_code == 404
    assert "up --balanced" in answer.json()["detail"]
    assert api.request("POST", "/balancer/nodes/a/drain").status_code == 404
    assert api.get("/metrics")["balancer"] is None


def test_nodes_proxies_and_versions_are_shown(api: Api, plane: ControlPlane) -> None:
    found: Any = api.get("/balancer")
    assert found["strategy"] == "predicted"
    assert found["version"] == plane.snapshot.version
    assert [node["name"] for node in found["nodes"]] == ["a", "b"]
    first = found["nodes"][0]
    assert first["factors"] == {
        "announced": {"healthy": True, "reason": ""},
        "mqtt": {"healthy": False, "reason": "connection refused"},
    }
    assert (first["weight"], first["slot"], first["overload_level"]) == (1, 1, None)
    assert first["takes_clients"]  # when the probes of all fail, it is not the nodes
    (proxy,) = found["proxies"]
    assert (proxy["name"], proxy["version"]) == ("proxy-1", "")
    assert proxy["problem"]
    assert not found["healthy"]
    assert "proxy-1" in found["detail"]
    assert (found["talkers"], found["loads"]) == (0, {"made_at": None, "problem": ""})
    assert api.get("/metrics")["balancer"]["version"] == found["version"]


def test_a_node_is_drained_and_taken_back(api: Api, plane: ControlPlane) -> None:
    before = plane.snapshot.version
    answer = api.request("POST", "/balancer/nodes/b/drain", json={"connections_per_second": 5})
    assert answer.status_code == 202, answer.text
    assert answer.json() == {"node": "b", "action": "drain"}
    found = api.get("/balancer")
    assert [node["takes_clients"] for node in found["nodes"]] == [True, False]
    assert [drain["node"] for drain in found["drains"]] == ["b"]
    assert api.request("DELETE", "/balancer/nodes/b/drain").status_code == 202
    found = api.get("/balancer")
    assert [node["draining"] for node in found["nodes"]] == [False, False]
    assert found["version"] == before


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_node_that_is_not_there_is_said(api: Api, plane: ControlPlane, method: str) -> None:
    answer = api.request(method, "/balancer/nodes/x/drain")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no node 'x'; there are: a, b"


def test_a_drain_without_a_rate_is_refused(api: Api, plane: ControlPlane) -> None:
    wrong = {"connections_per_second": 0}
    assert api.request("POST", "/balancer/nodes/a/drain", json=wrong).status_code == 422


def test_a_balancer_that_is_dead_is_unavailable(api: Api) -> None:
    socket = api.data_dir / "balancer" / "control.sock"
    socket.parent.mkdir()
    socket.touch()
    answer = api.request("GET", "/balancer")
    assert answer.status_code == 503
    assert "no balancer answers" in answer.json()["detail"]
    assert api.get("/metrics")["balancer"] is None
