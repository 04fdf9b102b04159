"""An application without a server; its log is a list, what it would follow is put in by hand."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.access.book import AccessBook
from api.access.callers import Callers
from api.access.changes import AccessChanges
from api.alarms.book import AlarmBook
from api.alarms.changes import AlarmChanges
from api.alarms.checks import looking_at
from api.alarms.watch import AlarmWatch
from api.app import create_app
from api.audit.trail import AuditLog
from api.authentication import Doorkeeper
from api.bans import BanBook, BanChanges
from api.cache import CacheWriter
from api.job_journal import LogJournal
from api.jobs import Jobs
from api.live.messages import MessageFeed
from api.live.metrics import MetricsSource
from api.live.outputs import OutputFeed
from api.log import Append, LogAppender
from api.messages import MadeMessage
from api.presence import Gateways
from api.publishing import Placed, Publisher
from api.references.book import ReferenceBook
from api.references.changes import ReferenceChanges
from api.rights import RightsBook, RightsChanges
from api.rules.book import RuleBook
from api.rules.changes import Changes
from api.rules.metrics import MetricsBook
from api.schemas.changes import SchemaChanges
from api.settings import ApiSettings
from api.storage import Storage
from api.tenant_metrics import TenantFigures, TenantMetricsBook
from api.tenants import TenantBook, TenantChanges
from mqlake.clock import ManualClock
from mqlake.credentials import MIN_ITERATIONS
from mqlake.errors import LogError
from mqlake.records import INBOUND, Headers
from tests.api.scans import ListScan
from tests.api.test_api import TOKEN, Client, write_state

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
NEVER = 0xFFFF_FFFF
REQUESTS = 2_000
"""That somebody may make; the clock stands still."""


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


class MemoryPublisher(Publisher):
    """Publishes into the list; refuses payloads that ask for it."""

    def __init__(self, log: MemoryAppender) -> None:
        super().__init__()
        self._log = log

    async def publish(self, servers: str, messages: Sequence[MadeMessage]) -> list[Placed]:
        assert servers == "127.0.0.1:9092"
        placed = []
        for one in messages:
            if one.value in (b"refuse", b"lose"):
                error = LogError("the log refuses", definite=one.value == b"refuse")
                placed.append(Placed(-1, -1, error))
            else:
                self._log.records.append(Appended(INBOUND, one.key, one.value, one.headers))
                placed.append(Placed(3, len(self._log.records) - 1, None))
        return placed


class MemoryMessageFeed(MessageFeed):
    """Reads no log: its test gives it records."""

    def _start(self) -> None:
        self._ready.set()


class MemoryOutputFeed(OutputFeed):
    def _start(self) -> None:
        self._ready.set()


@dataclass
class Api:
    """The application, what it has read and what it has written."""

    client: Client
    data_dir: Path
    writer: CacheWriter
    gateways: Gateways
    log: MemoryAppender
    clock: ManualClock = field(default_factory=ManualClock)
    access: AccessBook = field(default_factory=AccessBook)
    rules: RuleBook = field(default_factory=RuleBook)
    metrics: MetricsBook = field(default_factory=lambda: MetricsBook(ManualClock()))
    references: ReferenceBook = field(default_factory=ReferenceBook)
    audited: MemoryAppender = field(default_factory=MemoryAppender)

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """Ask as the administrator, or with other headers."""
        given = AUTHORIZED if headers is None else headers
        return self.client.request(method, f"/api/v1{path}", given, **more)

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
    with memory_api(tmp_path) as made:
        yield made


@asynccontextmanager
async def _no_lifespan(_app: FastAPI) -> AsyncIterator[None]:
    yield


@contextmanager
def memory_api(tmp_path: Path, **settings: Any) -> Iterator[Api]:
    """Make an application with further settings."""
    (tmp_path / "api-token").write_text(TOKEN)
    known: dict[str, Any] = {
        "data_dir": tmp_path,
        "token_file": tmp_path / "api-token",
        "host_names": ("*",),
    }
    app = create_app(ApiSettings(**{**known, **settings}))
    app.router.lifespan_context = _no_lifespan  # whoever would start what follows the log
    write_state(tmp_path, healthy=True)
    clock = ManualClock()
    app.state.log = log = MemoryAppender()
    app.state.audit_log = AuditLog(audited := MemoryAppender(), tmp_path, clock)
    app.state.gateways = gateways = Gateways(clock)
    app.state.bans = bans = BanBook()
    app.state.ban_changes = BanChanges(log, bans, clock)
    bans.complete()
    app.state.rights = rights = RightsBook()
    app.state.rights_changes = RightsChanges(log, rights, clock)
    rights.complete()
    app.state.tenants = tenants = TenantBook()
    app.state.tenant_changes = TenantChanges(log, tenants, clock)
    tenants.complete()
    app.state.rules = rules = RuleBook()
    app.state.rule_changes = Changes(log, rules, clock)
    app.state.schema_changes = SchemaChanges(log, rules, clock)
    app.state.rule_metrics = metrics = MetricsBook(clock)
    app.state.tenant_metrics = of_tenants = TenantMetricsBook(gateways)
    app.state.references = references = ReferenceBook()
    storage = Storage(tmp_path / "tables", references.names, clock)
    app.state.tenant_figures = TenantFigures(of_tenants, metrics, app.state.cache, storage)
    app.state.reference_changes = ReferenceChanges(tmp_path, log, references, clock)
    app.state.jobs = Jobs(clock, LogJournal(log, tmp_path))
    app.state.answer_seconds = 0.0  # there is no engine
    app.state.publisher = MemoryPublisher(log)
    app.state.message_feed = MemoryMessageFeed(tmp_path)
    app.state.output_feed = MemoryOutputFeed(tmp_path)
    app.state.metrics_source = MetricsSource(
        tmp_path,
        gateways,
        rules,
        metrics,
        app.state.balancer,
        app.state.federation,
        clock,
    )
    app.state.alarms = alarms = AlarmBook()
    app.state.alarm_changes = AlarmChanges(log, alarms, clock)
    look = looking_at(app.state)
    app.state.alarm_watch = AlarmWatch(tmp_path, alarms, app.state.alarm_changes, look, clock)
    app.state.open_scan = lambda _servers: ListScan()
    app.state.access = access = AccessBook()
    app.state.access_changes = AccessChanges(log, access, clock, MIN_ITERATIONS)
    app.state.doorkeeper = Doorkeeper.make(
        Callers(TOKEN, access, clock), clock, requests_per_second=REQUESTS, burst=REQUESTS
    )
    access.complete()
    with app.state.cache.writing() as writer:
        writer.complete()
        rules.complete()
        references.complete()
        alarms.complete()
        read = (access, rules, metrics, references, audited)
        yield Api(Client(app), tmp_path, writer, gateways, log, clock, *read)


def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and what the OpenAPI document says of each operation."""
    return [
        (method.upper(), path.removeprefix("/api/v1"), operation)
        for path, methods in api.client.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
