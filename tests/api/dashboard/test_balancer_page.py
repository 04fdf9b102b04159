"""The page of the balancer in a browser: a control plane that runs, an API without a system."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from launcher.ports import free_ports
from tests.api.dashboard.conftest import page_of, served_api
from tests.ingest.balancer.serving import served_plane
from tests.integration.dashboard.browser import NARROW

pytestmark = pytest.mark.programs


def test_nodes_that_take_nobody_say_why_and_drains_are_undone(
    tmp_path: Path, browser: Browser
) -> None:
    port = free_ports(1)[0]
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name in ("a", "b")]
    proxies = [{"name": "proxy-1", "runtime_api": str(tmp_path / "nowhere.sock")}]
    with (
        served_plane(tmp_path, nodes=nodes, proxies=proxies) as plane,
        served_api(tmp_path) as served,
        page_of(browser, served) as dashboard,
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
        served.api.services.alarms.watch.tick()
        dashboard.open("alarms")
        expect(page.locator("main")).to_contain_text("the proxy proxy-1 does not follow")


def test_without_a_balancer_the_page_says_how_to_get_one(tmp_path: Path, browser: Browser) -> None:
    with served_api(tmp_path) as served, page_of(browser, served) as dashboard:
        dashboard.open("balancer")
        expect(dashboard.page.locator("main")).to_contain_text("mqlake up --balanced")
