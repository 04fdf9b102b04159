"""Every page of the dashboard, in a browser, over a system that runs."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from playwright.sync_api import Browser, Locator, Page, expect

from launcher.testing import LocalSystem, await_condition
from mqlake.api_client import ApiClient
from tests.integration.dashboard.browser import NARROW, WIDE, Dashboard, open_page

pytestmark = pytest.mark.system

PAGES = (
    *("overview", "topics", "clients", "balancer", "federation", "rules", "sql", "retained"),
    *("trace", "references", "schemas", "jobs", "alarms", "mqtt", "access", "audit"),
)
FOR_ADMINISTRATORS = ("access", "audit")
BATCHES = 12
"""Of messages under load, four a second."""
LONGEST_TASK_MS = 500
"""Processor time that a page may take under load before it hears its user again."""


@contextmanager
def client_of(system: LocalSystem, client_id: str, *, seconds: int = 0) -> Iterator[mqtt.Client]:
    """Connect a client whose session lasts so long, through the first gateway."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    properties = Properties(mqtt.CONNECT >> 4)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = seconds
    client.connect("127.0.0.1", system.mqtt_port, properties=properties)
    client.loop_start()
    try:
        assert connected.wait(60)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in a thread until the end of the `with` block."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def fact(page: Page, name: str) -> Locator:
    """Return the value that stands below a name."""
    return page.locator(f".facts div:has(dt:text-is('{name}')) dd")


def test_login_by_token_and_logout(browser: Browser, system: LocalSystem) -> None:
    context = browser.new_context(viewport=WIDE)
    with open_page(context, system) as dashboard:
        page = dashboard.page
        page.goto(f"{system.api_url}/")
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        dashboard.keep_picture("login")
        assert dashboard.run("names.js") == []
        for theme in ("light", "dark"):
            dashboard.use_theme(theme)
            assert dashboard.run("contrast.js")["found"] == []
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not one that counts")
        page.get_by_label("Token", exact=True).fill(system.api_token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.reload()
        expect(page.get_by_text("api-token admin")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token", exact=True)).to_be_visible()
    context.close()


def test_an_account_logs_in_and_sees_what_its_role_may(
    browser: Browser, system: LocalSystem, api: ApiClient
) -> None:
    api.post("/accounts", {"name": "ann", "role": "viewer", "password": "correct horse"})
    context = browser.new_context(viewport=WIDE)
    with open_page(context, system) as dashboard:
        page = dashboard.page
        page.goto(f"{system.api_url}/dashboard/#/rules")
        page.get_by_label("With an account").check()
        page.get_by_label("User name").fill("ann")
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="New rule")).to_have_count(0)
        # The session ends elsewhere: the page says so instead of standing still.
        api.delete("/accounts/ann")
        expect(page.get_by_text("Your session is over")).to_be_visible()
    context.close()


@pytest.mark.parametrize(
    ("account", "pages"),
    [
        ({"role": "admin"}, PAGES),
        ({"role": "viewer"}, tuple(one for one in PAGES if one not in FOR_ADMINISTRATORS)),
        (
            {"role": "editor", "tenants": ["default"]},
            (
                *("topics", "clients", "rules", "sql", "retained", "trace", "references"),
                *("schemas", "jobs", "alarms"),
            ),
        ),
        (
            {"role": "viewer", "topic_filters": ["dash/#"]},
            ("topics", "rules", "sql", "retained", "trace", "jobs"),
        ),
    ],
    ids=["administrator", "all", "some tenants", "some topics"],
)
def test_the_navigation_has_the_pages_that_a_login_may_use(
    browser: Browser,
    system: LocalSystem,
    api: ApiClient,
    account: dict[str, Any],
    pages: tuple[str, ...],
) -> None:
    api.post("/accounts", {"name": "tess", "password": "correct horse", **account})
    context = browser.new_context(viewport=WIDE)
    login = {"username": "tess", "password": "correct horse"}
    assert context.request.post(f"{system.api_url}/api/v1/login", data=login).ok
    with open_page(context, system) as dashboard:
        page = dashboard.page
        page.goto(f"{system.api_url}/dashboard/#/balancer")
        links = page.get_by_role("navigation", name="Pages").get_by_role("link")
        expect(links).to_have_count(len(pages))
        assert links.evaluate_all("all => all.map((one) => one.dataset.page)") == list(pages)
        # Who names another page in the address comes to the first one.
        shown = "balancer" if "balancer" in pages else pages[0]
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute("data-page", shown)
        for name in pages:
            dashboard.open(name)
    context.close()
    api.delete("/accounts/tess")


def test_overview_shows_what_passes(
    dashboard: Dashboard, system: LocalSystem, api: ApiClient
) -> None:
    page = dashboard.page
    dashboard.open("overview")

    def publish(over: threading.Event) -> None:
        with client_of(system, "dash-overview") as client:
            client.subscribe("dash/overview", 1)
            while not over.wait(0.02):
                client.publish("dash/overview", b"1", 1)

    tile = page.locator(".tile").filter(has_text="Messages in").locator("dd")
    out = page.locator(".tile").filter(has_text="Messages out").locator("dd")
    with meanwhile(publish):
        for shown in (tile, out):
            expect(shown).to_have_text(re.compile(r"^[1-9]\d"))
        expect(page.locator(".chart canvas")).to_be_visible()
        gateways = page.get_by_role("region", name="Gateways").last
        for name in ("gateway-1", "gateway-2"):
            expect(gateways.get_by_role("row", name=name)).to_contain_text("serving")
        processes = page.get_by_role("region", name="Processes").last
        for name in ("router", "lake"):
            expect(processes.get_by_role("row", name=name)).to_contain_text("healthy")
        shown = page.locator("#latency")
        if "latency" in api.get("/metrics"):
            expect(shown.get_by_role("row", name="Accepted all")).to_contain_text("ms")
        else:
            expect(shown).to_contain_text("Not measured yet.")
        expect(page.locator(".chart")).to_have_attribute("aria-label", re.compile("last: in [1-9]"))
        dashboard.keep_picture("overview")


def test_topics_show_their_last_values_live(dashboard: Dashboard, api: ApiClient) -> None:
    page = dashboard.page
    dashboard.open("topics?filter=dash/%23")
    tree = page.get_by_role("tree", name="Topics")
    api.post("/publish", {"topic_name": "dash/line-2/state", "payload": "standing"})
    expect(tree.get_by_role("treeitem", name="state")).to_contain_text("standing")
    api.post("/publish", {"topic_name": "dash/line-2/state", "payload": "running"})
    expect(tree.get_by_role("treeitem", name="state")).to_contain_text("running")
    tree.get_by_role("treeitem", name="temperature").click()
    detail = page.locator(".detail")
    for celsius in (31.5, 32.5, 33.5):
        payload = {"celsius": celsius, "at": {"volts": 3}}
        api.post("/publish", {"topic_name": "dash/line-1/temperature", "payload": payload})
        expect(detail.locator("pre")).to_contain_text(str(celsius))
    expect(detail.get_by_role("checkbox", name="celsius")).to_be_checked()
    expect(detail.get_by_role("checkbox", name="at.volts")).to_be_checked()
    chart = detail.get_by_role("img")
    expect(chart.locator("canvas")).to_be_visible()
    label = "Numbers of dash/line-1/temperature; last: celsius 33.5, at.volts 3"
    expect(chart).to_have_attribute("aria-label", label)
    dashboard.keep_picture("topics")


def test_a_click_on_a_topic_counts_though_rows_come_meanwhile(
    dashboard: Dashboard, api: ApiClient
) -> None:
    page = dashboard.page
    api.post("/publish", {"topic_name": "held/one", "payload": "chosen"})
    dashboard.open("topics?filter=held/%23")
    panel = page.get_by_role("region", name="Topics seen lately")
    expect(panel.get_by_role("treeitem", name="one")).to_contain_text("chosen")
    panel.get_by_role("treeitem", name="one").hover()
    page.mouse.down()
    api.post("/publish", {"topic_name": "held/another", "payload": "1"})
    expect(panel.get_by_role("status")).to_have_text("2 topics")
    page.mouse.up()
    expect(page.locator(".detail pre")).to_contain_text("chosen")
    expect(panel.get_by_role("treeitem", name="another")).to_be_visible()


def test_topics_are_moved_through_by_keyboard(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("topics?filter=dash/%23")
    tree = page.get_by_role("tree", name="Topics")
    tree.get_by_role("treeitem", name="temperature").wait_for()
    active = tree.locator(".active .level")
    tree.focus()
    page.keyboard.press("Home")
    expect(active).to_have_text("dash")
    expect(tree).to_have_attribute("aria-activedescendant", "row-0")
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem", name="dash")).to_have_attribute("aria-expanded", "false")
    expect(tree.get_by_role("treeitem")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(tree.get_by_role("treeitem", name="about")).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(active).to_have_text("about")
    expect(tree).to_have_attribute("aria-activedescendant", "row-1")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_contain_text("kept for you")


def longest_task_ms(trace: bytes) -> float:
    """Return the most processor time that a task of the page took, of Chromium's trace.

    The time that the page stood still says as much of what else the machine does.
    """
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [event for event in events if (event["pid"], event["tid"]) in mains]
    return float(max(event.get("tdur", 0) for event in tasks)) / 1000


def test_a_thousand_messages_a_second_do_not_hold_up_the_page(
    dashboard: Dashboard, api: ApiClient
) -> None:
    page = dashboard.page
    dashboard.open("topics?filter=dash-fast/%23")
    messages = [
        {"topic_name": f"dash-fast/{number % 50}", "payload": {"n": number}}
        for number in range(250)
    ]
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["__metadata", "toplevel"])
    began = time.monotonic()
    dashboard.run("frames.js")
    for batch in range(BATCHES):
        api.post("/publish/bulk", {"messages": messages})
        # A quarter of a second for each quarter of a thousand.
        page.wait_for_timeout(max(0, (began + (batch + 1) / 4 - time.monotonic()) * 1000))
    seconds = time.monotonic() - began
    frames = dashboard.run("frames.js")
    longest = longest_task_ms(browser.stop_tracing())
    assert BATCHES * len(messages) / seconds > 700
    assert frames / seconds > 10
    assert 0 < longest < LONGEST_TASK_MS
    expect(page.get_by_text("messages were left out")).to_be_visible()
    tree = page.get_by_role("tree", name="Topics")
    expect(tree.get_by_role("treeitem", name="dash-fast")).to_contain_text("50 topics")
    # What was shown is a part; what was counted is all.
    (topic,) = api.get("/topics", topic_filter="dash-fast/7")["items"]
    assert topic["messages"] == BATCHES * len(messages) / 50
    level = page.locator(".level", has_text=re.compile(r"^7$"))
    row = tree.get_by_role("treeitem").filter(has=level)
    expect(row).to_contain_text("/s")


def test_clients_with_their_subscriptions(dashboard: Dashboard, system: LocalSystem) -> None:
    page = dashboard.page
    dashboard.open("clients")
    with client_of(system, "dash/sensor", seconds=600) as client:
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


def test_alarms_tell_what_rules_give_out(dashboard: Dashboard, api: ApiClient) -> None:
    page = dashboard.page
    sql = 'SELECT payload.n AS number FROM "dash/alarm" WHERE payload.n > 1'
    rule = api.post("/rules", {"id": "dash_alarm", "sql": sql}, wait=30)
    assert rule["state"] == "running"
    dashboard.open("alarms")
    expect(page.get_by_role("heading", name="Open now")).to_be_visible()

    def is_shown() -> bool:
        api.post("/publish", {"topic_name": "dash/alarm", "payload": {"n": 7}})
        page.wait_for_timeout(300)
        return page.get_by_role("row", name="dash_alarm").count() > 0

    await_condition(is_shown, "an output is shown")
    row = page.get_by_role("row", name="dash_alarm").first
    expect(row).to_contain_text('{"number":7}')
    api.delete("/rules/dash_alarm")
    dashboard.keep_picture("alarms")


def test_a_job_that_failed_is_an_alarm_until_it_is_forgotten(
    dashboard: Dashboard, api: ApiClient
) -> None:
    page = dashboard.page
    job = api.post("/replay", {"query": "SELECT 1 AS one FROM messages"})
    dashboard.open("alarms")
    alarms = page.get_by_role("region", name="Open alarms")
    row = alarms.get_by_role("row", name=f"replay {job['id']} has failed")
    expect(row).to_contain_text("warning", timeout=120_000)
    row.get_by_role("button", name="Acknowledge").click()
    page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    expect(row).to_contain_text("api-token")
    dashboard.keep_picture("alarm")
    row.get_by_role("link").click()
    page.get_by_role("button", name="Forget").click()
    over: list[Any] = []

    def is_cleared() -> bool:
        found = api.get("/alarms", state="cleared")["items"]
        over[:] = [one for one in found if one["item"] == job["id"]]
        return bool(over)

    await_condition(is_cleared, "the alarm is cleared")
    assert [one["acknowledged_by"] for one in over] == ["api-token"]
    dashboard.open("alarms")
    expect(page.get_by_role("heading", name="Alarms", exact=True)).to_be_visible()
    expect(row).to_have_count(0)


def test_a_message_is_traced_and_a_change_is_in_the_audit_log(
    dashboard: Dashboard, api: ApiClient
) -> None:
    page = dashboard.page
    made = api.post("/publish", {"topic_name": "dash/traced", "payload": "1"})
    dashboard.open(f"trace/{made['message_id']}")
    expect(page.get_by_role("link", name="dash/traced")).to_be_visible(timeout=120_000)
    dashboard.keep_picture("trace")
    key = api.post("/keys", {"role": "viewer", "description": "a test"})
    api.delete(f"/keys/{key['id']}")
    dashboard.open("audit")
    page.get_by_label("Path contains").fill(key["id"])
    rows = page.get_by_role("region", name="Requests").get_by_role("row", name=key["id"])

    def is_there() -> bool:
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("button", name="Show")).to_be_enabled(timeout=120_000)
        return rows.count() > 0

    await_condition(is_there, "the change is in the table")
    expect(rows).to_contain_text("DELETE /keys/{id}")
    dashboard.keep_picture("audit")


def test_retained_messages_are_shown_and_deleted(dashboard: Dashboard, api: ApiClient) -> None:
    page = dashboard.page

    def is_stored() -> bool:
        return bool(api.get("/retained", topic_filter="dash/about")["items"])

    await_condition(is_stored, "the message is in the table")
    dashboard.open("retained")
    page.get_by_label("Topic filter").fill("dash/#")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name="dash/about", exact=True).click()
    expect(page.locator(".detail pre")).to_have_text("kept for you")
    dashboard.keep_picture("retained")
    page.get_by_role("button", name="Delete the retained message of dash/about").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="dash/about", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete the retained message of dash/about").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="dash/about", exact=True)).to_have_count(0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_mqtt_client_subscribes_and_publishes(
    dashboard: Dashboard, system: LocalSystem, qos: int
) -> None:
    page = dashboard.page
    dashboard.open("mqtt")
    expect(page.get_by_label("Gateway")).not_to_have_value("")
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(page.get_by_text("connected", exact=True)).to_be_visible()
    subscribe = page.locator("section").filter(has=page.get_by_role("heading", name="Subscribe"))
    subscribe.get_by_label("Topic filter").fill("dash-mqtt/#")
    subscribe.get_by_label("QoS").select_option(str(qos))
    subscribe.get_by_role("button", name="Subscribe", exact=True).click()
    expect(subscribe.get_by_role("listitem")).to_contain_text(f"dash-mqtt/# QoS {qos}")
    publish = page.locator("section").filter(has=page.get_by_role("heading", name="Publish"))
    publish.get_by_label("Topic name").fill(f"dash-mqtt/{qos}")
    publish.get_by_label("QoS").select_option(str(qos))
    publish.get_by_label("Content type").fill("text/plain")
    publish.get_by_label("Payload").fill("grüße")
    publish.get_by_role("button", name="Publish").click()
    row = page.get_by_role("row", name=f"dash-mqtt/{qos}")
    expect(row).to_contain_text("grüße")
    expect(row).to_contain_text("text/plain")
    with client_of(system, f"dash-mqtt-{qos}") as client:
        client.publish(f"dash-mqtt/other-{qos}", b"\xff\x00", qos)
        other = page.get_by_role("row", name=f"dash-mqtt/other-{qos}")
        expect(other).to_contain_text("2 B, not text")
    dashboard.keep_picture("mqtt")
    page.get_by_role("button", name="Unsubscribe from dash-mqtt/#").click()
    expect(subscribe.get_by_role("listitem")).to_have_count(0)
    page.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("not connected", exact=True)).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(dashboard: Dashboard, theme: str) -> None:
    dashboard.use_theme(theme)
    for place in (*PAGES, "rules/+new"):
        dashboard.open(place)
        dashboard.page.wait_for_load_state("networkidle")
        seen = dashboard.run("contrast.js")
        assert seen["looked"] > 15, place
        assert seen["found"] == [], place
        if theme == "dark":
            dashboard.keep_picture(f"{place.replace('/', '')}-dark")


def test_everything_has_a_name(dashboard: Dashboard) -> None:
    for place in (*PAGES, "rules/+new", "rules/not_there"):
        dashboard.open(place)
        dashboard.page.wait_for_load_state("networkidle")
        assert dashboard.run("names.js") == [], place


def test_narrow_pages_have_all_their_width(dashboard: Dashboard) -> None:
    page = dashboard.page
    page.set_viewport_size(NARROW)
    for place in (*PAGES, "rules/+new"):
        dashboard.open(place)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"], place
        dashboard.keep_picture(f"{place.replace('/', '')}-narrow")
    menu = page.get_by_role("button", name="Menu")
    expect(page.get_by_role("link", name="Topics")).to_be_hidden()
    menu.click()
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
