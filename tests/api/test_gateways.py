from pathlib import Path

import pytest
from fastapi import FastAPI

from api.app import create_app
from api.control import GatewayControl
from api.problems import MEDIA_TYPE
from api.settings import ApiSettings
from mqlake.errors import LogError
from tests.api.test_api import TOKEN, Client, write_state

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    (tmp_path / "api-token").write_text(TOKEN)
    return create_app(ApiSettings(data_dir=tmp_path, token_file=tmp_path / "api-token"))


@pytest.fixture
def client(app: FastAPI) -> Client:
    return Client(app)


def test_unknown_gateway_is_a_problem_that_names_those_there_are(
    client: Client, tmp_path: Path
) -> None:
    write_state(tmp_path, healthy=True)
    answer = client.request("POST", "/api/v1/gateways/gateway-9/reload", AUTHORIZED)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json()["detail"] == "no gateway 'gateway-9'; there are: gateway-1"


def test_reload_needs_the_token(client: Client, tmp_path: Path) -> None:
    write_state(tmp_path, healthy=True)
    assert client.request("POST", "/api/v1/gateways/gateway-1/reload").status_code == 401


def test_nothing_can_be_asked_where_no_system_runs(client: Client) -> None:
    answer = client.request("POST", "/api/v1/gateways/gateway-1/reload", AUTHORIZED)
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("no system runs on ")


def test_a_log_that_does_not_answer_is_a_problem(
    app: FastAPI, client: Client, tmp_path: Path
) -> None:
    write_state(tmp_path, healthy=True)
    app.state.control = GatewayControl(timeout_seconds=0.2)
    answer = client.request("POST", "/api/v1/gateways/gateway-1/reload", AUTHORIZED)
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("control record for gateway-1: ")


def test_a_log_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LogError, match="control record for gateway-1"):
        GatewayControl(timeout_seconds=0.2).send("127.0.0.1:1", "gateway-1", "reload")
