"""The client against the application, behind a real server."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner

from api.wiring.resources import RULES
from cli.app import mqlake
from launcher.ports import free_ports
from launcher.testing.systems import await_condition
from mqlake.api_client import ApiAddress, ApiClient, ApiError
from mqlake.errors import OperationalError
from mqlake.processes.status import STATE_FILE, read_state, replace_file
from tests.api.conftest import Api, api
from tests.api.test_api import TOKEN, write_state
from tests.api.test_retained import put

__all__ = ["api"]  # a fixture of the API's own tests


@pytest.fixture
def served(api: Api) -> Iterator[Api]:
    """The same application, served."""
    (port,) = free_ports(1)
    app = api.client.app
    config = uvicorn.Config(app, port=port, log_config=None, lifespan="off", ws="wsproto")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    await_condition(lambda: server.started, "the server listens")
    state = write_state(api.data_dir, healthy=True)
    text = state.to_json().replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    replace_file(api.data_dir / STATE_FILE, text)
    yield api
    server.should_exit = True
    thread.join()


def run(api: Api, *arguments: str) -> str:
    """Run a command; return what it prints."""
    command, *rest = arguments
    result = CliRunner().invoke(mqlake, [command, "--data-dir", str(api.data_dir), *rest])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_lists_come_page_by_page(served: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlake.api_client.PAGE_ITEMS", 2)
    for number in range(5):
        served.put_session(f"c{number}", connected=number != 3)
    client = ApiClient(served.data_dir)
    found = [item["client_id"] for item in client.items("/clients", connected=True)]
    assert found == ["c0", "c1", "c2", "c4"]


def test_what_is_about_to_be_ready_is_asked_again(
    served: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = served.services.kept[RULES].view
    view.forget()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        view.complete()

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("mqlake.api_client.time", clock)
    assert ApiClient(served.data_dir).get("/rules")["items"] == []
    assert slept == [1], "as Retry-After says"
    view.forget()
    monkeypatch.setattr("mqlake.api_client.FOLLOW_SECONDS", 0.5)
    with pytest.raises(ApiError, match=r"the API is reading mqlake\.rules: ask again"):
        ApiClient(served.data_dir).get("/rules")
    assert slept == [1]


def test_a_problem_is_an_error_in_its_words(served: Api) -> None:
    client = ApiClient(served.data_dir)
    with pytest.raises(OperationalError, match=r"^no session of client 'ü/1\?' is stored$"):
        client.get("/clients/ü/1?")
    with pytest.raises(OperationalError, match=r"^the request is not valid; query\.limit: "):
        client.get("/clients", limit=0)
    (served.data_dir / "api-token").write_text("wrong")
    with pytest.raises(OperationalError, match="send an API key"):
        ApiClient(served.data_dir).get("/clients")
    (served.data_dir / "api-token").unlink()
    with pytest.raises(OperationalError, match="the API's token"):
        ApiClient(served.data_dir)


def test_an_api_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "api-token").write_text(TOKEN)
    state = write_state(tmp_path, healthy=True)
    (port,) = free_ports(1)
    replace_file(
        tmp_path / STATE_FILE, state.to_json().replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    )
    with pytest.raises(OperationalError, match="does not answer"):
        ApiClient(tmp_path).get("/clients")
    (tmp_path / STATE_FILE).unlink()
    with pytest.raises(OperationalError, match="no system runs on"):
        ApiClient(tmp_path)


@pytest.fixture
def elsewhere(served: Api, tmp_path: Path) -> list[str]:
    """Options for the served API as one of another machine."""
    file = tmp_path / "key"
    file.write_text(f"{TOKEN}\n")
    return ["--api", read_state(served.data_dir).api_url, "--token-file", str(file)]


def test_an_api_elsewhere_is_asked_by_its_address(served: Api, elsewhere: list[str]) -> None:
    served.put_session("c0", username="alice")
    for _ in range(2):
        result = CliRunner().invoke(mqlake, ["clients", *elsewhere])
        assert result.output.splitlines()[1].split()[:2] == ["c0", "connected"]
        elsewhere[1] += "/api/v1/"  # as the API's document has it


def test_an_api_elsewhere_is_named_by_the_environment(served: Api, elsewhere: list[str]) -> None:
    served.put_session("c0")
    environment = {"MQLAKE_URL": elsewhere[1], "MQLAKE_TOKEN_FILE": elsewhere[3]}
    result = CliRunner().invoke(mqlake, ["clients"], env=environment)
    assert "c0" in result.output


def test_an_api_elsewhere_needs_a_key() -> None:
    result = CliRunner().invoke(mqlake, ["clients", "--api", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--api needs --token-file" in result.output


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "127.0.0.1:8080", "ftp://a", "file:///etc/passwd", "http://", "http:///api/v1"),
        *("http://a b", "http://a/x", "http://a?x", "http://a#x", "http://user:secret@a"),
    ],
)
def test_what_is_no_address_of_an_api_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="no address of an API"):
        ApiClient(ApiAddress(url, tmp_path))


def test_who_sends_elsewhere_does_not_get_the_key_there(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(307)
            self.send_header("Location", "/stolen")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "key").write_text(TOKEN)
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = ApiClient(ApiAddress(f"http://127.0.0.1:{server.server_port}", tmp_path / "key"))
        with pytest.raises(ApiError, match="the API answers 307"):
            client.get("/clients")
        thread.join()
    assert asked == [("/api/v1/clients", f"Bearer {TOKEN}")]


def test_a_proxy_is_not_asked_for_what_is_here(
    served: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ApiClient(served.data_dir).get("/clients")["items"] == []


def test_clients_are_printed(served: Api) -> None:
    for number in range(3):
        served.put_session(f"c{number}", username="alice")
    lines = run(served, "clients", "--limit", "2", "--username", "alice").splitlines()
    assert lines[0].split()[:3] == ["client", "state", "gateway"]
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["c0", "connected", "gateway-1", "alice"],
        ["c1", "connected", "gateway-1", "alice"],
    ]
    assert lines[3] == "there are more than 2: see --limit"


def test_retained_messages_are_printed(served: Api) -> None:
    put(served.data_dir, "a/1", payload=b"12.5")
    put(served.data_dir, "a/2", payload=b"\x00")
    put(served.data_dir, "a/3", payload=b"x" * 100)
    put(served.data_dir, "a/4", payload=b"x" * 300)
    put(served.data_dir, "b")
    lines = run(served, "retained", "a/+").splitlines()
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["a/1", "1", "4", "12.5"],
        ["a/2", "1", "1", "…"],
        ["a/3", "1", "100", "x" * 59 + "…"],
        ["a/4", "1", "300", "…"],
    ]
    assert '"topic_name": "b"' in run(served, "retained", "--json")


def test_a_drain_is_asked_for_and_awaited(served: Api) -> None:
    served.hear("gateway-1", state="serving")
    assert run(served, "drain", "gateway-1") == "gateway-1 was asked to let clients go\n"
    served.hear("gateway-1", state="drained")
    assert run(served, "drain", "gateway-1", "--wait") == "gateway-1 is drained\n"
    served.hear("gateway-1", state="serving")
    assert run(served, "drain", "gateway-1", "--undo", "--wait") == "gateway-1 is serving\n"
    keys = [record.key for record in served.log.records]
    assert keys == [b"\0control/drain", b"\0control/drain", b"\0control/serve"]


def test_a_gateway_that_does_not_drain_is_an_error(
    served: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.requests.drain._BEGIN_SECONDS", 0.0)
    served.hear("gateway-1", state="serving")
    with pytest.raises(OperationalError, match="gateway-1 is still serving"):
        run(served, "drain", "gateway-1", "--wait")
    served.clock.advance(4)
    with pytest.raises(OperationalError, match="gateway-1 is gone, its last state was serving"):
        run(served, "drain", "gateway-1", "--wait")
    with pytest.raises(OperationalError, match="no gateway 'gateway-9'"):
        run(served, "drain", "gateway-9")
