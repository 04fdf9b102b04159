"""The dashboard of an API without a system, in a browser; both are started once for a module."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from playwright.sync_api import Browser, Route

from api.live.metrics import MetricsSource, MetricsTicker
from launcher.ports import free_ports
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.clock import SystemClock
from tests.api.conftest import Api, memory_api
from tests.api.test_api import TOKEN
from tests.integration.dashboard.browser import WIDE, Dashboard, open_page, running_browser

PAGES: Final = (
    *("overview", "topics", "clients", "balancer", "federation", "rules", "sql", "retained"),
    *("trace", "references", "schemas", "jobs", "alarms", "mqtt", "access", "audit"),
)
"""All there are, in the order of the navigation."""
_NONE: Final[dict[str, Any]] = {"items": [], "next_cursor": None}
_NO_ROWS: Final[dict[str, Any]] = {
    "columns": [],
    "rows": [],
    "row_count": 0,
    "truncated": False,
    "complete_until": None,
}
_WITHOUT_SPARK: Final = {"dead_letters": _NONE, "retained": _NONE, "sql": _NO_ROWS}
"""Paths that Spark answers, and there is none here."""


@dataclass(frozen=True)
class Served:
    """An API that answers browsers, and what is behind it."""

    api: Api
    system: LocalSystem


@contextmanager
def served_api(folder: Path) -> Iterator[Served]:
    """Serve an API without a system until the end of the `with` block."""
    port = free_ports(1)[0]
    with memory_api(folder) as api:
        gateways, rules = api.services.gateways, api.services.rules
        # Pages follow figures by a clock that goes.
        figures = MetricsSource(
            folder,
            gateways.heard,
            api.rules,
            rules.metrics,
            gateways.balancer,
            gateways.federation,
            SystemClock(),
        )
        api.put_in("live", ticker=MetricsTicker(figures.read))
        config = uvicorn.Config(api.client.app, port=port, ws="wsproto", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            await_condition(lambda: server.started, "the API serves")
            yield Served(api, LocalSystem(folder, 0, port))
        finally:
            server.should_exit = True
            thread.join(30)


def _answer(found: dict[str, Any], route: Route) -> None:
    route.fulfill(json=found)


@contextmanager
def page_of(
    browser: Browser, served: Served, *, login: dict[str, str] | None = None, has_tour: bool = False
) -> Iterator[Dashboard]:
    """Open a page in a profile of its own that has logged in: by the token, or as `login` says."""
    url = served.system.api_url
    context = browser.new_context(viewport=WIDE, base_url=url)
    try:
        for path, found in _WITHOUT_SPARK.items():
            context.route(f"**/api/v1/{path}?*", partial(_answer, found))
        answer = context.request.post("/api/v1/login", data=login or {"token": TOKEN})
        assert answer.ok, answer.text()
        with open_page(context, served.system, has_tour=has_tour) as dashboard:
            yield dashboard
    finally:
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its state is that of all tests of the module: each uses names of its own."""
    with served_api(tmp_path_factory.mktemp("served")) as serving:
        yield serving


@pytest.fixture
def dashboard(browser: Browser, served: Served) -> Iterator[Dashboard]:
    served.api.clock.advance(1)  # what one may ask for in a second is for each test
    with page_of(browser, served) as opened:
        yield opened
