import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.app import create_app
from api.settings import ApiSettings
from api.wiring.services import make_services
from mqlake.errors import OperationalError
from mqlake.processes.status import (
    STATE_FILE,
    GatewayAddress,
    ProcessReport,
    SystemState,
    boot_id,
    replace_file,
    report,
    start_ticks,
)
from tests.api.routes_made_once import application

TOKEN = "s3cret"


class Client:
    """Asks the application without a socket."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://mqlake"
            ) as client:
                return await client.request(method, path, headers=headers, **more)

        return asyncio.run(ask())

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", path, headers)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / "api-token").write_text(TOKEN + "\n")
    settings = ApiSettings(
        data_dir=tmp_path, token_file=tmp_path / "api-token", host_names=("mqlake",)
    )
    return Client(application(make_services(settings)))


def write_state(folder: Path, *, healthy: bool) -> SystemState:
    """Write the state of a system whose supervisor is this very process."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    state = SystemState(
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        started_at=1.0,
        written_at=2e10,
        phase="running",
        bootstrap_servers="127.0.0.1:9092",
        controller_port=9093,
        api_url="http://127.0.0.1:8080",
        connect_port=15002,
        gateways=(GatewayAddress("gateway-1", "127.0.0.1", 1883),),
        processes=(
            ProcessReport("log", os.getpid(), True, "serving", start_ticks=ticks),
            ProcessReport("router", os.getpid(), healthy, "starting Spark", start_ticks=ticks),
        ),
    )
    replace_file(folder / STATE_FILE, state.to_json())
    return state


def test_live_needs_neither_token_nor_system(client: Client) -> None:
    answer = client.get("/api/v1/live")
    assert (answer.status_code, answer.json()) == (200, {"live": True})


def test_ready_when_every_part_is_healthy(client: Client, tmp_path: Path) -> None:
    write_state(tmp_path, healthy=True)
    answer = client.get("/api/v1/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


def test_not_ready_names_the_unhealthy_parts(client: Client, tmp_path: Path) -> None:
    write_state(tmp_path, healthy=False)
    answer = client.get("/api/v1/ready")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "title": "Service Unavailable",
        "status": 503,
        "detail": "not healthy: router",
        "code": "unavailable",
        "unhealthy": [{"name": "router", "detail": "starting Spark"}],
    }


def test_not_ready_while_it_stops(client: Client, tmp_path: Path) -> None:
    stopping = replace(write_state(tmp_path, healthy=True), phase="stopping")
    replace_file(tmp_path / STATE_FILE, stopping.to_json())
    answer = client.get("/api/v1/ready")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the system is stopping")


def test_not_ready_without_a_system(client: Client) -> None:
    answer = client.get("/api/v1/ready")
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("no system runs on ")


def test_processes_are_what_status_prints(client: Client, tmp_path: Path) -> None:
    state = write_state(tmp_path, healthy=True)
    answer = client.get("/api/v1/processes", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer.json() == report(state)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
    ],
)
def test_processes_need_the_token(client: Client, headers: dict[str, str]) -> None:
    answer = client.get("/api/v1/processes", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["title"] == "Unauthorized"


def test_every_error_has_one_shape(client: Client) -> None:
    for answer in (client.get("/api/v1/nothing"), client.request("POST", "/api/v1/live")):
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"title", "status", "detail", "code"}
        assert answer.json()["status"] == answer.status_code


def test_every_operation_has_a_short_summary(client: Client) -> None:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    summaries = [operation["summary"] for path in paths.values() for operation in path.values()]
    assert [one for one in summaries if not 2 <= len(one.split()) <= 6 or one[-1] == "."] == []


def test_openapi_describes_every_route(client: Client) -> None:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert set(paths) == {
        "/api/v1/sql",
        "/api/v1/sql/relations",
        "/api/v1/sql/start",
        "/api/v1/rule_metrics",
        "/api/v1/history",
        "/api/v1/retention",
        "/api/v1/live",
        "/api/v1/ready",
        "/api/v1/placement",
        "/api/v1/bans",
        "/api/v1/bans/{id}",
        "/api/v1/rights",
        "/api/v1/rights/plan",
        "/api/v1/rights/export",
        "/api/v1/rights/versions",
        "/api/v1/rights/versions/{version}",
        "/api/v1/login",
        "/api/v1/login/oidc",
        "/api/v1/login/oidc/callback",
        "/api/v1/logout",
        "/api/v1/session",
        "/api/v1/session/operations",
        "/api/v1/session/password",
        "/api/v1/sessions",
        "/api/v1/sessions/{id}",
        "/api/v1/alarms",
        "/api/v1/alarms/{id}/acknowledge",
        "/api/v1/keys",
        "/api/v1/keys/{id}",
        "/api/v1/accounts",
        "/api/v1/accounts/{name}",
        "/api/v1/publish",
        "/api/v1/publish/bulk",
        "/api/v1/topics",
        "/api/v1/metrics",
        "/api/v1/metrics/targets",
        "/api/v1/metrics/tenants",
        "/api/v1/tenants",
        "/api/v1/tenants/{name}",
        "/api/v1/live/messages",
        "/api/v1/live/outputs",
        "/api/v1/live/metrics",
        "/api/v1/processes",
        "/api/v1/gateways",
        "/api/v1/gateways/{name}",
        "/api/v1/balancer",
        "/api/v1/balancer/nodes/{name}/drain",
        "/api/v1/federation",
        "/api/v1/gateways/{name}/reload",
        "/api/v1/gateways/{name}/drain",
        "/api/v1/clients",
        "/api/v1/clients/{client_id}",
        "/api/v1/clients/{client_id}/in_flight",
        "/api/v1/clients/{client_id}/subscriptions",
        "/api/v1/subscriptions",
        "/api/v1/retained",
        "/api/v1/retained/{topic}",
        "/api/v1/rules",
        "/api/v1/rules/validate",
        "/api/v1/rules/{id}",
        "/api/v1/rules/{id}/backfill",
        "/api/v1/rules/{id}/dry_run",
        "/api/v1/rules/{id}/explain",
        "/api/v1/rules/{id}/metrics",
        "/api/v1/rules/{id}/metrics/reset",
        "/api/v1/rules/{id}/resume",
        "/api/v1/rules/{id}/versions",
        "/api/v1/rules/{id}/versions/{version}",
        "/api/v1/rules/{id}/versions/{version}/diff/{other}",
        "/api/v1/rules/{id}/versions/{version}/rollback",
        "/api/v1/rules/{id}/dead_letters/rerun",
        "/api/v1/dead_letters",
        "/api/v1/references",
        "/api/v1/references/{id}",
        "/api/v1/references/{id}/rows",
        "/api/v1/references/{id}/versions",
        "/api/v1/references/{id}/versions/{version}/rollback",
        "/api/v1/schemas",
        "/api/v1/schemas/{name}",
        "/api/v1/schemas/{name}/versions",
        "/api/v1/schemas/{name}/versions/{version}",
        "/api/v1/rule_actions",
        "/api/v1/rule_events",
        "/api/v1/rule_test",
        "/api/v1/jobs",
        "/api/v1/jobs/{id}",
        "/api/v1/jobs/{id}/resume",
        "/api/v1/replay",
        "/api/v1/messages/{id}/trace",
    }


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_api_does_not_start_without_a_token(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "api-token").write_text(content)
    settings = ApiSettings(
        data_dir=tmp_path, token_file=tmp_path / "api-token", host_names=("mqlake",)
    )
    with pytest.raises(OperationalError, match=r"token_file .*api-token"):
        create_app(make_services(settings))
