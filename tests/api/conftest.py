"""An application without a server; its log is a list, what it would follow is put in by hand."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.cache import CacheWriter
from api.log import Append, LogAppender
from api.presence import Gateways
from api.rules.book import RuleBook
from api.rules.changes import Changes
from api.rules.metrics import MetricsBook
from api.settings import ApiSettings
from mqlake.clock import ManualClock
from mqlake.records import Headers
from tests.api.test_api import TOKEN, Client, write_state

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
NEVER = 0xFFFF_FFFF


@dataclass(frozen=True)
class Appended:
    log_topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int | None = None


class MemoryAppender(LogAppender):
    """Keeps what would be in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Appended] = []

    def append(
        self,
        bootstrap_servers: str,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        *,
        what: str,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        assert bootstrap_servers == "127.0.0.1:9092"
        self.records.append(Appended(log_topic, key, value, headers or []))
        return len(self.records) - 1

    def append_all(
        self, bootstrap_servers: str, log_topic: str, records: Sequence[Append], *, what: str
    ) -> list[int]:
        begin = len(self.records)
        for one in records:
            self.records.append(Appended(log_topic, one.key, one.value, one.headers, one.partition))
        return list(range(begin, len(self.records)))


@dataclass
class Api:
    """The application, what it has read and what it has written."""

    client: Client
    data_dir: Path
    writer: CacheWriter
    gateways: Gateways
    log: MemoryAppender
    clock: ManualClock = field(default_factory=ManualClock)
    rules: RuleBook = field(default_factory=RuleBook)
    metrics: MetricsBook = field(default_factory=lambda: MetricsBook(ManualClock()))

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.client.request(method, f"/api/v1{path}", AUTHORIZED, **more)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.request("GET", path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put_session(self, client_id: str, **fields: Any) -> None:
        value = session(client_id, **fields)
        key = f"s/{value['tenant']}/{client_id}".encode()
        assert self.writer.apply([(key, json.dumps(value).encode())]) == []

    def put(self, key: str, value: dict[str, Any] | None) -> None:
        data = None if value is None else json.dumps(value).encode()
        assert self.writer.apply([(key.encode(), data)]) == []

    def hear(self, gateway: str, **said: Any) -> None:
        value = {"v": 1, "gateway": gateway, "incarnation": "1", "at": self.clock.now_ms(), **said}
        self.gateways.receive(gateway.encode(), json.dumps(value).encode(), is_old=False)


def session(client_id: str, **fields: Any) -> dict[str, Any]:
    """Return the value of a record of `mqlake.sessions`."""
    return {
        "v": 1,
        "id": "00000000000000ab",
        "tenant": "default",
        "client_id": client_id,
        "protocol_level": 5,
        "username": None,
        "keep_alive": 60,
        "clean_start": False,
        "expiry": NEVER,
        "gateway": "gateway-1",
        "incarnation": "i1",
        "connected": True,
        "connected_at": 1_600_000_000_000,
        "disconnected_at": None,
        "reason": None,
        "subscriptions": [],
        "will": None,
        "will_at": None,
        **fields,
    }


def progress(**fields: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "id": "00000000000000ab",
        "cursor": [5],
        "settled": False,
        "out": [],
        "in": [],
        "storing": [],
        "storing_from": [],
        **fields,
    }


def subscription(topic_filter: str, **fields: Any) -> dict[str, Any]:
    return {
        "filter": topic_filter,
        "qos": 1,
        "no_local": False,
        "retain_as_published": False,
        "retain_handling": 0,
        "identifier": None,
        "starts": [1, 2, 3],
        **fields,
    }


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "api-token").write_text(TOKEN)
    app = create_app(ApiSettings(data_dir=tmp_path, token_file=tmp_path / "api-token"))
    write_state(tmp_path, healthy=True)
    clock = ManualClock()
    app.state.log = log = MemoryAppender()
    app.state.gateways = gateways = Gateways(clock)
    app.state.rules = rules = RuleBook()
    app.state.rule_changes = Changes(log, rules, clock)
    app.state.rule_metrics = metrics = MetricsBook(clock)
    app.state.answer_seconds = 0.0  # there is no engine
    with app.state.cache.writing() as writer:
        writer.complete()
        rules.complete()
        yield Api(Client(app), tmp_path, writer, gateways, log, clock, rules, metrics)
