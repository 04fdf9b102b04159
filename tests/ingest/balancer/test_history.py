"""The file of expected loads, made of the history by the SQL of an API."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from api.sql.checking import check
from ingest.balancer.control_plane import ControlPlane
from ingest.balancer.history import (
    AGAIN_SECONDS,
    CLIENTS,
    PROBES,
    SOON_SECONDS,
    SUBSCRIPTIONS,
    TOPICS,
    BalancerHistory,
)
from ingest.balancer.loads import read_expected
from ingest.balancer.settings import BalancerSettings, HistorySettings
from ingest.balancer.talks import key_of
from mqlake.clock import ManualClock, SystemClock
from mqlake.processes.status import STATE_FILE
from tests.api.test_api import write_state
from tests.ingest.balancer.harness import quick_settings, until

pytestmark = pytest.mark.anyio

ANSWERS: dict[str, list[list[Any]]] = {
    "count(*) AS messages FROM messages\nWHERE ts > now() - INTERVAL 7 DAYS AND client": [
        ["heavy", 604_800 * 3],
        ['a "name", +', 302_400],
    ],
    "SELECT topic": [["group/1", 604_800], ["+/looks, odd", 1]],
    "FROM subscriptions": [["a", "+/1"], ["b", "group/#"]],
}


class Handler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]
    broken = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tenant = self.path.partition("tenant=")[2]
        self.asked.append(body | {"tenant": tenant, "token": self.headers["Authorization"]})
        rows = next(rows for words, rows in ANSWERS.items() if words in body["query"])
        answer = {"columns": [], "rows": rows if tenant == "default" else [], "truncated": False}
        self.send_response(503 if type(self).broken else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[type[Handler]]:
    handler = type("OwnHandler", (Handler,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state = write_state(tmp_path, healthy=True)
    url = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / STATE_FILE).write_text(replace(state, api_url=url).to_json())
    (tmp_path / "api-token").write_text("secret\n")
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def history(folder: Path, clock: ManualClock | None = None, **more: Any) -> BalancerHistory:
    settings = HistorySettings(data_dir=folder, **more)
    clock = clock or ManualClock(now_ms=SystemClock().now_ms())
    return BalancerHistory(settings, ["acme", "default"], folder / "loads.csv", clock)


async def test_the_file_is_what_the_history_says(api: type[Handler], tmp_path: Path) -> None:
    assert await history(tmp_path, rows=50).make() == SOON_SECONDS
    text = (tmp_path / "loads.csv").read_text()
    assert text.splitlines() == [
        "tenant,client_id,rate,topic",
        "default,heavy,3,",
        'default,"a ""name"", +",0.5,',
        "default,,1,group/1",
        'default,,1.65344e-06,"+/looks, odd"',
        "default,a,,+/1",
        "default,b,,group/#",
    ]
    expected = read_expected(lambda: text.splitlines(), 64, 10)
    assert expected.talks.keys == (key_of("default", "a"), key_of("default", "b"))
    assert [one["tenant"] for one in api.asked] == ["acme"] * 3 + ["default"] * 3
    assert all("LIMIT 50" in one["query"] and one["limit"] == 50 for one in api.asked)
    assert all(one["token"] == "Bearer secret" for one in api.asked)


async def test_a_system_without_history_is_asked_again_soon(
    api: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ANSWERS", {words: [] for words in ANSWERS})
    assert await history(tmp_path).make() == SOON_SECONDS
    assert not (tmp_path / "loads.csv").exists()


async def test_the_file_of_a_new_system_is_made_again_sooner_than_that_of_an_old_one(
    api: type[Handler], tmp_path: Path
) -> None:
    new = history(tmp_path, every_seconds=2_000)
    assert [await new.make() for _ in range(4)] == [600, 1_200, 2_000, 2_000]
    assert 1_990 < new.due_seconds() <= 2_000
    old = history(tmp_path, every_seconds=2_000)
    assert 1_990 < old.due_seconds() <= 2_000
    assert await old.make() == 2_000


async def test_a_failure_leaves_the_file_as_it_was_and_is_said(
    api: type[Handler], tmp_path: Path
) -> None:
    made = history(tmp_path)
    await made.make()
    before = (tmp_path / "loads.csv").read_bytes()
    api.broken = True
    assert await made.make() == AGAIN_SECONDS
    assert "503" in made.state.problem
    assert (tmp_path / "loads.csv").read_bytes() == before
    api.broken = False
    await made.make()
    assert made.state.problem == ""


async def test_a_system_that_starts_is_asked_again_at_once_and_a_broken_one_now_and_then(
    api: type[Handler], tmp_path: Path
) -> None:
    made = history(tmp_path)
    api.broken = True
    pauses = [await made.make() for _ in range(8)]
    assert pauses == [10, 20, 40, 80, 160, 320, SOON_SECONDS, SOON_SECONDS]
    api.broken = False
    await made.make()
    api.broken = True
    assert await made.make() == AGAIN_SECONDS


async def test_without_a_system_it_is_said(tmp_path: Path) -> None:
    made = history(tmp_path)
    assert await made.make() == AGAIN_SECONDS
    assert str(tmp_path) in made.state.problem


def test_a_file_is_made_when_it_is_old_whoever_wrote_it(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=1_000_000_000)
    file = tmp_path / "loads.csv"
    assert history(tmp_path, clock, every_seconds=100).due_seconds() == 0
    file.touch()
    made = history(tmp_path, clock, every_seconds=100)
    os.utime(file, (1_000_000 - 30, 1_000_000 - 30))
    assert made.due_seconds() == 70
    os.utime(file, (1_000_000 + 30, 1_000_000 + 30))
    assert made.due_seconds() == 100  # a clock that was set back


async def test_the_control_plane_makes_it_reads_it_and_says_how_old_it_is(
    api: type[Handler], tmp_path: Path
) -> None:
    file = tmp_path / "loads.csv"
    settings = quick_settings(
        tmp_path / "balancer",
        (),
        strategy="predicted",
        predicted={"loads_file": file},
        history={"data_dir": tmp_path},
    )
    plane = ControlPlane(settings, SystemClock())
    assert plane.describe()["loads"] == {"made_at": None, "problem": ""}
    stop = asyncio.Event()
    running = asyncio.create_task(plane.run(stop))
    await until(lambda: plane.fleet.expected is not None)
    assert len(plane.fleet.expected.talks.keys) == 2  # type: ignore[union-attr]
    assert plane.describe()["loads"]["made_at"].endswith("+00:00")
    stop.set()
    await running


def test_a_history_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"history\.data_dir needs predicted\.loads_file"):
        BalancerSettings(history=HistorySettings(data_dir=tmp_path))


@pytest.mark.parametrize("query", [CLIENTS, TOPICS, SUBSCRIPTIONS])
def test_the_api_takes_the_queries(query: str) -> None:
    assert check(query.format(days=7, rows=100, probes=PROBES), "default")
