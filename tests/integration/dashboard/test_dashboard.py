"""What of the dashboard only a system that runs can show; tests/api/dashboard has each page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from playwright.sync_api import Browser, expect

from launcher.testing.systems import LocalSystem, await_condition
from mqlake.api_client import ApiClient
from tests.integration.dashboard.browser import WIDE, Dashboard, fact, open_page

pytestmark = [
    pytest.mark.campaign("tests/api/dashboard shows the pages on an API in memory"),
    pytest.mark.system,
]


@contextmanager
def client_with_session(system: LocalSystem, client_id: str) -> Iterator[mqtt.Client]:
    """Connect a client whose session outlives its connection, through the first gateway."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    properties = Properties(mqtt.CONNECT >> 4)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 600
    client.connect("127.0.0.1", system.mqtt_port, properties=properties)
    client.loop_start()
    try:
        assert connected.wait(60)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def test_login_by_token_and_logout(browser: Browser, system: LocalSystem) -> None:
    with (
        browser.new_context(viewport=WIDE) as context,
        open_page(context, system) as dashboard,
    ):
        page = dashboard.page
        page.goto(f"{system.api_url}/")
        dashboard.keep_picture("login")
        page.get_by_label("Token", exact=True).fill(system.api_token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.reload()
        expect(page.get_by_text("api-token admin")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token", exact=True)).to_be_visible()


def test_clients_with_their_subscriptions(dashboard: Dashboard, system: LocalSystem) -> None:
    page = dashboard.page
    dashboard.open("clients")
    with client_with_session(system, "dash/sensor") as client:
        client.reconnect_delay_set(60, 60)
        subscribed, gone = threading.Event(), threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_disconnect = lambda *_: gone.set()
        client.subscribe("dash/orders/+", 1)
        assert subscribed.wait(60)
        page.get_by_label("Client identifier begins with").fill("dash/")
        page.get_by_role("button", name="dash/sensor").click()
        detail = page.locator(".detail")
        expect(detail.get_by_role("row", name="dash/orders/+")).to_be_visible()
        expect(detail).to_contain_text("connected")
        dashboard.keep_picture("clients")
        detail.get_by_role("button", name="End session").click()
        page.get_by_role("dialog").get_by_role("button", name="End session").click()
        assert gone.wait(60)
        expect(page.get_by_role("button", name="dash/sensor")).to_have_count(0)


def test_queries_show_rows_charts_and_errors(dashboard: Dashboard, system: LocalSystem) -> None:
    page = dashboard.page
    query = "SELECT count(*) FROM messages WHERE topic = 'dash/line-1/temperature'"

    def is_stored() -> bool:
        result = system.run("sql", query, "--format", "csv")
        assert result.returncode == 0, result.stderr
        return int(result.stdout.split()[-1]) >= 20

    await_condition(is_stored, "the messages are in the table")
    dashboard.open("sql")
    page.get_by_text("messages", exact=True).click()
    page.get_by_role("button", name="payload_text").wait_for()
    editor = page.get_by_role("textbox", name="Query")
    editor.fill("SELECT ts,\n  nothing FROM messages")
    page.keyboard.press("Control+Enter")
    place = page.get_by_role("button", name="Line 2, column 3")
    expect(place).to_be_visible()
    expect(editor).to_have_attribute("aria-invalid", "true")
    place.click()
    assert page.evaluate("getSelection().toString()") == "nothing"
    editor.fill(
        "SELECT ts, payload:celsius::double AS celsius FROM messages\n"
        "WHERE topic = 'dash/line-1/temperature' ORDER BY ts, log_offset LIMIT 20"
    )
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("20 rows in")).to_be_visible()
    expect(page.get_by_role("cell", name="29.5")).to_be_visible()
    page.get_by_role("tab", name="Chart").click()
    expect(page.get_by_role("tabpanel").locator("canvas")).to_be_visible()
    dashboard.keep_picture("sql")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    text = saved.value.path().read_text(encoding="utf-8")
    assert text.splitlines()[0] == "ts,celsius"
    assert len(text.splitlines()) == 21


def test_a_rule_from_its_first_letter_to_its_outputs(dashboard: Dashboard, api: ApiClient) -> None:
    page = dashboard.page
    dashboard.open("rules")
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Identifier").fill("dash_hot")
    editor = page.get_by_role("textbox", name="SQL of the rule")
    editor.fill('SELECT payload.celsius AS celsius\nFROM "dash/+/temperature" WHERE nothing(1)')
    expect(page.get_by_role("button", name="Line 2, column 33")).to_be_visible()
    sql = 'SELECT payload.celsius AS celsius, topic(2) AS line\nFROM "dash/+/temperature"\n'
    editor.fill(sql + "WHERE payload.celsius > 25")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    assert page.locator(".layers .keyword").all_text_contents()[:2] == ["SELECT", "AS"]
    page.get_by_label("Message", exact=True).fill(
        '{"topic": "dash/line-9/temperature", "payload": {"celsius": 70}}'
    )
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_text("1 output", exact=True)).to_be_visible(timeout=120_000)
    expect(page.get_by_role("tabpanel").locator("pre")).to_contain_text('"line": "line-9"')
    page.get_by_role("tab", name="Dry run").click()
    page.get_by_role("button", name="Dry run", exact=True).click()
    expect(page.get_by_text("succeeded after")).to_be_visible(timeout=120_000)
    expect(page.get_by_role("tabpanel").locator("canvas")).to_be_visible()
    assert int(fact(page, "Matched").inner_text()) >= 20
    dashboard.keep_picture("rule")
    page.get_by_role("button", name="Add an action").click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="dash_hot", exact=True)).to_be_visible()
    expect(page.locator(".heading .badge")).to_have_text("running")
    for number in range(3):
        payload = {"celsius": 50 + number}
        api.post("/publish", {"topic_name": "dash/line-3/temperature", "payload": payload})
    page.get_by_role("tab", name="Counters").click()
    expect(fact(page, "Outputs")).to_have_text("3")
    editor = page.get_by_role("textbox", name="SQL of the rule")
    editor.fill(sql + "WHERE payload.celsius > 26")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("version 2", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Versions").click()
    page.get_by_role("button", name="Compare version 1 with the newest").click()
    expect(page.locator(".diff .added").filter(has_text="celsius > 26")).to_be_visible()
    dashboard.open("rules")
    row = page.get_by_role("row", name="dash_hot")
    expect(row).to_contain_text("running")
    row.get_by_role("checkbox", name="Run dash_hot").click()
    expect(row).to_contain_text("stopped")
    dashboard.keep_picture("rules")
    row.get_by_role("button", name="dash_hot").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
    expect(row).to_have_count(0)


def test_the_mqtt_client_reaches_a_gateway(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("mqtt")
    expect(page.get_by_label("Gateway")).not_to_have_value("")
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(page.get_by_text("connected", exact=True)).to_be_visible()
    page.get_by_label("Topic filter").fill("dash-mqtt/#")
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.get_by_role("listitem")).to_contain_text("dash-mqtt/# QoS 1")
    page.get_by_label("Topic name").fill("dash-mqtt/1")
    page.get_by_label("Payload").fill("grüße")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("row", name="dash-mqtt/1")).to_contain_text("grüße")
    dashboard.keep_picture("mqtt")
    page.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("not connected", exact=True)).to_be_visible()
