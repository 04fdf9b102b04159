"""The dashboard of the running system, in a browser, with something to see."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext

from launcher.testing.systems import LocalSystem
from mqlake.api_client import ApiClient
from tests.integration.dashboard.browser import WIDE, Dashboard, open_page, running_browser


@pytest.fixture(scope="module")
def api(system: LocalSystem) -> ApiClient:
    system.await_healthy()
    return ApiClient(system.data_dir)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def logged_in(browser: Browser, system: LocalSystem, api: ApiClient) -> Iterator[BrowserContext]:
    """A browser's profile that has logged in, and readings that its pages ask for."""
    readings = [
        {"topic_name": "dash/line-1/temperature", "payload": {"celsius": 20 + number / 2}}
        for number in range(20)
    ]
    api.post("/publish/bulk", {"messages": readings})
    context = browser.new_context(viewport=WIDE, base_url=system.api_url)
    answer = context.request.post("/api/v1/login", data={"token": system.api_token})
    assert answer.ok, answer.text()
    yield context
    context.close()


@pytest.fixture
def dashboard(logged_in: BrowserContext, system: LocalSystem) -> Iterator[Dashboard]:
    with open_page(logged_in, system) as opened:
        yield opened
