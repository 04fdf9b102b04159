"""Pages that follow what comes, in a browser; tests give the API what it would read."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from launcher.testing.systems import await_condition
from tests.api.dashboard.conftest import Served
from tests.api.live.records import message
from tests.api.live.test_feeds import output
from tests.api.test_metrics import stage
from tests.integration.dashboard.browser import Dashboard

pytestmark = pytest.mark.programs

TOPICS = 1_000
MOST_ROWS = 100
"""In the page, of however many topics: about three times as many as there is room for."""


def publish(served: Served, topic_name: str, payload: str) -> None:
    served.api.services.live.messages.receive([message(topic_name, payload.encode())])


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do something again and again, in a thread, until the end of the `with` block."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.1):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def test_the_overview_shows_what_passes(dashboard: Dashboard, served: Served) -> None:
    page = dashboard.page
    dashboard.open("overview")
    expect(page.get_by_text("No gateway has been heard of")).to_be_visible()
    for number in range(3):
        counters = {"messages_received": number * 20, "messages_sent": number * 30}
        counters["sessions_caught_up"] = number * 50
        latency = {"accept": stage(ms_4=number * 10)}
        for name in ("gateway-1", "gateway-2"):
            served.api.hear(name, counters=counters, latency=latency, sessions_catching_up=4_000)
        served.api.clock.advance(0.5)
    for label, rate in (("Messages in", "80"), ("Messages out", "120")):
        expect(page.locator(".tile").filter(has_text=label).locator("dd")).to_have_text(rate)
    gateways = page.get_by_role("region", name="Gateways").last
    for name in ("gateway-1", "gateway-2"):
        expect(gateways.get_by_role("row", name=name)).to_contain_text("serving")
        expect(gateways.get_by_role("row", name=name)).to_contain_text("4,000, 40 s left")
    processes = page.get_by_role("region", name="Processes").last
    for name in ("log", "router"):
        expect(processes.get_by_role("row", name=name)).to_contain_text("healthy")
    shown = page.locator("#latency").get_by_role("row", name="Accepted all")
    expect(shown).to_contain_text("ms")
    chart = page.locator(".chart")
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("aria-label", re.compile("last: in 80, stored 0, out 120$"))


def test_topics_show_their_last_values_live(dashboard: Dashboard, served: Served) -> None:
    page = dashboard.page
    publish(served, "line/state", "standing")
    publish(served, "line/temperature", "{}")
    dashboard.open("topics?filter=line/%23")
    tree = page.get_by_role("tree", name="Topics")
    expect(tree.get_by_role("treeitem", name="state")).to_contain_text("standing")
    publish(served, "line/state", "running")
    expect(tree.get_by_role("treeitem", name="state")).to_contain_text("running")
    tree.get_by_role("treeitem", name="temperature").click()
    payload = page.locator(".detail pre")

    def is_followed() -> bool:
        publish(served, "line/temperature", '{"celsius": 31.5}')
        return "31.5" in payload.inner_text()

    await_condition(is_followed, "the page follows the topic")
    for celsius in (32.5, 33.5):
        publish(served, "line/temperature", f'{{"celsius": {celsius}, "at": {{"volts": 3}}}}')
        expect(payload).to_contain_text(str(celsius))
    detail = page.locator(".detail")
    for name in ("celsius", "at.volts"):
        expect(detail.get_by_role("checkbox", name=name)).to_be_checked()
    chart = detail.get_by_role("img")
    expect(chart.locator("canvas")).to_be_visible()
    label = "Numbers of line/temperature; last: celsius 33.5, at.volts 3"
    expect(chart).to_have_attribute("aria-label", label)


def test_a_click_on_a_topic_counts_though_rows_come_meanwhile(
    dashboard: Dashboard, served: Served
) -> None:
    page = dashboard.page
    publish(served, "held/one", "chosen")
    dashboard.open("topics?filter=held/%23")
    panel = page.get_by_role("region", name="Topics seen lately")
    expect(panel.get_by_role("treeitem", name="one")).to_contain_text("chosen")
    panel.get_by_role("treeitem", name="one").hover()
    page.mouse.down()
    publish(served, "held/another", "1")
    expect(panel.get_by_role("status")).to_have_text("2 topics")
    page.mouse.up()
    expect(page.locator(".detail pre")).to_contain_text("chosen")
    expect(panel.get_by_role("treeitem", name="another")).to_be_visible()


def test_of_a_flood_few_rows_are_in_the_page_and_a_click_counts(
    dashboard: Dashboard, served: Served
) -> None:
    feed = served.api.services.live.messages
    flood = [message(f"flood/{number}", b'{"n": 1}') for number in range(TOPICS)]
    feed.receive(flood)
    page = dashboard.page
    dashboard.open("topics?filter=flood/%23")
    tree = page.get_by_role("tree", name="Topics")
    with meanwhile(lambda: feed.receive(flood)):
        expect(page.get_by_text("messages were left out")).to_be_visible()
        expect(tree.get_by_role("treeitem", name="flood")).to_contain_text("1,000 topics")
        assert tree.get_by_role("treeitem").count() < MOST_ROWS
        level = page.locator(".level", has_text=re.compile(r"^7$"))
        row = tree.get_by_role("treeitem").filter(has=level)
        expect(row).to_contain_text("/s")
        row.click()
        expect(page.get_by_role("heading", name="flood/7", exact=True)).to_be_visible()
        expect(page.locator(".detail pre")).to_contain_text('"n": 1')


def test_what_rules_give_out_is_shown_as_it_comes(dashboard: Dashboard, served: Served) -> None:
    page = dashboard.page
    dashboard.open("alarms")
    outputs = page.get_by_role("region", name="What rules give out").last
    expect(outputs).to_contain_text("Nothing since this page was opened")
    row = outputs.get_by_role("row", name="hot").first

    def is_shown() -> bool:
        served.api.services.live.outputs.receive([output("hot", row=b'{"number":7}')])
        return row.is_visible()

    await_condition(is_shown, "the page follows what rules give out")
    expect(row).to_contain_text('{"number":7}')
