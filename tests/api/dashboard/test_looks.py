"""What holds for all pages, in a browser: names, contrast, width, keyboard, theme."""

import httpx
import pytest
from playwright.sync_api import expect

from tests.api.conftest import AUTHORIZED
from tests.api.dashboard.conftest import PAGES, Served
from tests.api.live.records import message
from tests.cases import case
from tests.integration.dashboard.browser import NARROW, Dashboard

pytestmark = pytest.mark.programs

PLACES = (*PAGES, "rules/+new", "rules/not_there", "topics/plant%2F1")
SHOWN = {
    "overview": "gateway-1",
    "topics": "21.5",
    "clients": "plant/sensor",
    "rules": "hot",
    "schemas": "sparkplug_b",
    "alarms": "gateway-1 is draining",
    "topics/plant%2F1": "21.5",
}
"""Words by place, which show that the page has what there is."""


@pytest.fixture(scope="module")
def served(served: Served) -> Served:
    """With something on pages that would be empty."""
    api = served.api
    api.put_session("plant/sensor", username="ann")
    api.hear("gateway-1", state="draining")
    api.services.alarms.watch.tick()
    api.services.live.messages.receive([message("plant/1", b'{"celsius": 21.5}')])
    rule = {"id": "hot", "sql": 'SELECT payload.celsius AS celsius FROM "plant/+"'}
    url = f"{served.system.api_url}/api/v1/rules"
    assert httpx.post(url, headers=AUTHORIZED, json=rule).is_success
    return served


def test_pages_can_be_read_and_their_controls_have_names(dashboard: Dashboard) -> None:
    page = dashboard.page
    for place in PLACES:
        with case(place):
            dashboard.open(place)
            expect(page.locator("main")).to_contain_text(SHOWN.get(place, ""))
            assert dashboard.run("names.js") == []
            assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
            for theme in ("light", "dark"):
                dashboard.use_theme(theme)
                seen = dashboard.run("contrast.js")
                assert seen["looked"] > 15
                assert seen["found"] == []


def test_narrow_pages_have_all_their_width(dashboard: Dashboard) -> None:
    page = dashboard.page
    page.set_viewport_size(NARROW)
    for place in PLACES:
        with case(place):
            dashboard.open(place)
            expect(page.locator("main")).to_contain_text(SHOWN.get(place, ""))
            assert dashboard.run("names.js") == []
            assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
    expect(page.get_by_role("link", name="Topics")).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Topics").click()
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Clients")).to_be_hidden()


def test_the_keyboard_is_enough(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("link", name="SQL").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="SQL", exact=True)).to_be_focused()
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.outerHTML.slice(0, 80),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        seen.add(name)
        # Behind the last control comes the browser's own bar.
        assert outline != "none" or name.startswith("<body"), name
    assert len(seen) > 10


def test_the_theme_can_be_chosen_and_stays(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.use_theme("light")
    dashboard.open("overview")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    button = page.get_by_role("button", name="Theme")
    button.click()
    expect(button).to_have_text("Theme: light")
    button.click()
    expect(button).to_have_text("Theme: dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(ground) == dark
    button.click()
    expect(button).to_have_text("Theme: auto")
    assert page.evaluate(ground) == light
