"""An application without a server; its log is a list, what it would follow is put in by hand."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.access.materialised import MaterialisedAccess
from api.clients.cache import CacheWriter
from api.clients.presence import Gateways
from api.live.messages import MessageFeed
from api.live.outputs import OutputFeed
from api.log.appending import LogAppender
from api.log.audit_log import AuditLog
from api.log.following import Followed
from api.log.materialised import MaterialisedView
from api.messages.messages import MadeMessage
from api.messages.publishing import ApiPublisher, Placed
from api.metrics.rules import MaterialisedMetrics
from api.references.materialised import MaterialisedReferences
from api.rules.materialised import MaterialisedRules
from api.settings import ApiSettings
from api.wiring.edges import Edges
from api.wiring.resources import ACCESS, REFERENCES, RULES
from api.wiring.services import Services, make_services
from mqlake.clock import ManualClock
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.blocking import Append
from mqlake.processes.log_disk import ELSEWHERE
from mqlake.records.messages import GATEWAYS, INBOUND
from mqlake.records.versions import Headers
from mqlake.security.credentials import MIN_ITERATIONS
from tests.api.routes_made_once import application
from tests.api.scans import ListScan
from tests.api.test_api import TOKEN, Client, write_state

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
NEVER = 0xFFFF_FFFF
SERVERS = "127.0.0.1:9092"
"""Where the log is, in the state of the system."""
REQUESTS = 2_000
"""That somebody may make; the clock stands still."""
_offsets = count()


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
        super().__init__(SERVERS)
        self.records: list[Appended] = []

    def append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        *,
        what: str,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        self.records.append(Appended(log_topic, key, value, headers or []))
        return len(self.records) - 1

    def append_all(self, log_topic: str, records: Sequence[Append], *, what: str) -> list[int]:
        begin = len(self.records)
        for one in records:
            self.records.append(Appended(log_topic, one.key, one.value, one.headers, one.partition))
        return list(range(begin, len(self.records)))


class MemoryPublisher(ApiPublisher):
    """Publishes into the list; refuses payloads that ask for it."""

    def __init__(self, log: MemoryAppender) -> None:
        super().__init__(SERVERS, ELSEWHERE)
        self._log = log

    async def publish(self, messages: Sequence[MadeMessage]) -> list[Placed]:
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
    access: MaterialisedAccess = field(default_factory=MaterialisedAccess)
    rules: MaterialisedRules = field(default_factory=MaterialisedRules)
    metrics: MaterialisedMetrics = field(default_factory=lambda: MaterialisedMetrics(ManualClock()))
    references: MaterialisedReferences = field(default_factory=MaterialisedReferences)
    audited: MemoryAppender = field(default_factory=MemoryAppender)

    @property
    def services(self) -> Services:
        services: Services = self.client.app.state.services
        return services

    def put_in(self, group: str = "", **parts: Any) -> None:
        """Put others in the place of parts: of a group, or of those that are in none."""
        if group:
            parts = {group: replace(getattr(self.services, group), **parts)}
        self.client.app.state.services = replace(self.services, **parts)

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
        "requests_per_second": REQUESTS,
        "request_burst": REQUESTS,
    }
    write_state(tmp_path, healthy=True)
    given = ApiSettings(**{**known, **settings})
    clock, log, audited = ManualClock(), MemoryAppender(), MemoryAppender()
    edges = Edges(
        clock=clock,
        log=log,
        publisher=MemoryPublisher(log),
        messages=MemoryMessageFeed(SERVERS),
        outputs=MemoryOutputFeed(SERVERS),
        open_scan=ListScan,
        password_rounds=MIN_ITERATIONS,
        answer_seconds=0.0,  # there is no engine
    )
    services = make_services(given, edges)
    services = replace(services, audit_log=AuditLog(audited, clock))
    app = application(services)
    app.router.lifespan_context = _no_lifespan  # whoever would start what follows the log
    gateways, kept = services.gateways, services.kept
    with gateways.sessions.taking() as writer:
        for read in (writer, *chain.from_iterable(kept.followed().values())):
            read.complete()
        yield Api(
            Client(app),
            tmp_path,
            writer,
            gateways.heard,
            log,
            clock,
            kept[ACCESS].view,
            kept[RULES].view,
            services.rules.metrics,
            kept[REFERENCES].view,
            audited,
        )


def take(view: MaterialisedView, key: bytes, value: bytes | None) -> list[InvalidRecord]:
    """Have a view take a record that is newer than all before; return what it refuses."""
    return view.take([Followed(GATEWAYS, next(_offsets), key, value)], is_old=False)


def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and what the OpenAPI document says of each operation."""
    return [
        (method.upper(), path.removeprefix("/api/v1"), operation)
        for path, methods in api.client.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
