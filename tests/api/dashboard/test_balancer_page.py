"""The page of the balancer in a browser: a control plane that runs, an API without a system."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from playwright.sync_api import expect

from mqlake.local.ports import free_ports
from mqlake.local.testing import LocalSystem, await_condition
from tests.api.conftest import Api, memory_api
from tests.api.test_api import TOKEN
from tests.ingest.balancer.serving import served_plane
from tests.integration.dashboard.browser import (
    NARROW,
    WIDE,
    Dashboard,
    open_page,
    running_browser,
)

pytestmark = pytest.mark.timeout(120)


_NONE: Final[dict[str, Any]] = {"items": [], "next_cursor": None}


@contextmanager
def page_of_balancer(
    folder: Path, prepare: Callable[[Api], None] = lambda _: None
) -> Iterator[Dashboard]:
    """Open a browser on an API without a system, once `prepare` has filled it."""
    port = free_ports(1)[0]
    with memory_api(folder) as api:
        prepare(api)
        config = uvicorn.Config(api.client.app, port=port, ws="wsproto", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        await_condition(lambda: server.started, "the API serves")
        system = LocalSystem(folder, 0, port)
        try:
            with running_browser() as browser:
                context = browser.new_context(viewport=WIDE, base_url=system.api_url)
                # Spark reads those, and there is none here.
                for path in ("dead_letters", "retained"):
                    context.route(f"**/api/v1/{path}?*", lambda route: route.fulfill(json=_NONE))
                answer = context.request.post("/api/v1/login", data={"token": TOKEN})
                assert answer.ok, answer.text()
                with open_page(context, system) as dashboard:
                    yield dashboard
                context.close()
        finally:
            server.should_exit = True
            thread.join(30)


def test_nodes_that_take_nobody_say_why_and_drains_are_undone(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name in ("a", "b")]
    proxies = [{"name": "proxy-1", "runtime_api": str(tmp_path / "nowhere.sock")}]
    with (
        served_plane(tmp_path, nodes=nodes, proxies=proxies) as plane,
        page_of_balancer(tmp_path) as dashboard,
    ):
        page = dashboard.page
        dashboard.open("balancer")
        row = page.get_by_role("region", name="Nodes").get_by_role("row").nth(1)
        expect(row).to_contain_text("mqtt: connection refused")
        expect(page.get_by_role("region", name="Proxies").last).to_contain_text("not reached")
        expect(page.get_by_title(plane.snapshot.version)).to_be_visible()
        for theme in ("light", "dark"):
            dashboard.use_theme(theme)
            seen = dashboard.run("contrast.js")
            assert seen["looked"] > 30
            assert seen["found"] == []
        assert dashboard.run("names.js") == []
        row.get_by_role("button", name="Drain a").click()
        page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        expect(row).to_contain_text("drained")
        expect(page.get_by_role("region", name="Drains").last).to_contain_text("proxies are told")
        row.get_by_role("button", name="Undo the drain of a").click()
        expect(row.get_by_role("button", name="Drain a")).to_be_visible()
        page.set_viewport_size(NARROW)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
        dashboard.open("alarms")
        expect(page.locator("main")).to_contain_text("the proxy proxy-1 does not follow")


def test_without_a_balancer_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    with page_of_balancer(tmp_path) as dashboard:
        dashboard.open("balancer")
        expect(dashboard.page.locator("main")).to_contain_text("mqlake up --balanced")
