"""Pages of the dashboard in a browser, over an API that has no system."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from api.jobs.jobs import Job
from api.routes.messages.retained import RetainedMessageView
from launcher.testing.systems import await_condition
from mqlake.errors import OperationalError
from tests.api.dashboard.conftest import Served, page_of
from tests.integration.dashboard.browser import Dashboard, fact

pytestmark = pytest.mark.programs


def test_a_client_is_found_and_shown(dashboard: Dashboard, served: Served) -> None:
    served.api.put_session("plant/sensor", username="ann")
    page = dashboard.page
    dashboard.open("clients")
    page.get_by_label("Client identifier begins with").fill("other")
    expect(page.get_by_text("No client has a session")).to_be_visible()
    page.get_by_label("Client identifier begins with").fill("plant/")
    page.get_by_role("button", name="plant/sensor").click()
    expect(fact(page, "User")).to_have_text("ann")
    expect(page.locator(".detail")).to_contain_text("In flight: 0 to the client")
    assert page.url.endswith("#/clients/plant%2Fsensor")


def test_a_rule_is_written_and_told_where_it_is_wrong(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("rules")
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Identifier").fill("cold")
    editor = page.get_by_role("textbox", name="SQL of the rule")
    editor.fill('SELECT payload.t AS t\nFROM "a" WHERE nothing(1)')
    expect(page.get_by_role("button", name="Line 2, column 16")).to_be_visible()
    editor.fill('SELECT payload.t AS t FROM "a" WHERE payload.t < 0')
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Add an action").click()
    arguments = page.get_by_label("Arguments as JSON")
    arguments.fill("{")
    expect(page.get_by_text(re.compile("^Not JSON"))).to_be_visible()
    arguments.fill('{"topic": "b"}')
    expect(page.get_by_text("Takes topic (needed)")).to_be_visible()
    page.get_by_role("button", name="Remove this action").click()
    expect(arguments).to_have_count(0)
    for tab in ("Dry run", "Test"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("button", name=tab, exact=True)).to_be_visible()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").filter(has_text="Rule cold, version 1")).to_be_visible()


def test_a_retained_message_is_deleted(dashboard: Dashboard) -> None:
    page = dashboard.page
    deleted = []
    asked: list[str] = []
    # Spark reads the table, and there is none here. It follows a deletion some seconds later.
    shown = {
        **dict.fromkeys(("payload_base64", "username", "properties", "expires_at")),
        "tenant": "default",
        "topic_name": "a/b",
        "payload": "21",
        "payload_bytes": 2,
        "qos": 1,
        "message_id": "0" * 32,
        "client_id": "c",
        "protocol_version": "5.0",
        "origin": "local/gateway-1",
        "received_at": "2026-01-01T00:00:00Z",
    }
    kept = RetainedMessageView.model_validate(shown).model_dump(mode="json")
    found = {"items": [kept], "next_cursor": None}

    def answer_list(route: Route) -> None:
        asked.extend(parse_qs(urlsplit(route.request.url).query).get("topic_filter", []))
        route.fulfill(json=found)

    page.route("**/api/v1/retained?*", answer_list)

    def answer(route: Route) -> None:
        if route.request.method == "DELETE":
            deleted.append(route.request.url)
        route.fulfill(json=kept)

    page.route("**/api/v1/retained/a%2Fb?*", answer)
    dashboard.open("retained")
    topic = page.get_by_role("button", name="a/b", exact=True)
    expect(topic).to_be_visible()
    page.get_by_label("Topic filter").fill("a/#")
    page.get_by_role("button", name="Show").click()
    topic.click()
    expect(page.locator(".detail pre")).to_have_text("21")
    assert asked == ["a/#"]
    page.get_by_role("button", name="Delete the retained message of a/b").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(topic).to_be_visible()
    assert deleted == []
    page.get_by_role("button", name="Delete the retained message of a/b").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(topic).to_have_count(0)
    assert len(deleted) == 1
    page.get_by_role("button", name="Show").click()
    expect(topic).to_be_visible()


def test_a_paused_rule_goes_on_is_saved_and_deleted(dashboard: Dashboard) -> None:
    rule = {
        **dict.fromkeys(("name", "description", "error"), ""),
        "id": "hot",
        "version": 1,
        "state": "paused",
        "enable": True,
        "actions": [],
        "sql": 'SELECT payload.t AS t FROM "a"',
        "from": ["a"],
        "made_by": "ann",
    }
    asked: list[tuple[str, Any]] = []

    def answer(route: Route) -> None:
        request = route.request
        if request.method != "GET":
            asked.append((request.method, request.post_data_json))
            rule.update(state="running", version=len(asked) + 1)
        resumed = {"rule": rule, "job": {"id": "1"}}
        route.fulfill(json=resumed if "/resume" in request.url else rule)

    page = dashboard.page
    for path in ("hot?*", "hot/resume?*"):
        page.route(f"**/api/v1/rules/{path}", answer)
    dashboard.open("rules/hot")
    expect(page.get_by_text("It has the rights of ann. To go on")).to_be_visible()
    page.get_by_role("button", name="Go on from the pause").click()
    expect(page.get_by_text("a job takes what came during the pause")).to_be_visible()
    expect(page.get_by_text("version 2", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Go on from now")).to_have_count(0)
    page.get_by_label("Description").fill("too warm")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("version 3", exact=True)).to_be_visible()
    expect(page.get_by_label("Description")).to_have_value("too warm")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
    assert [method for method, _ in asked] == ["POST", "PUT", "DELETE"]
    assert asked[0][1] == {"from": "pause"}
    assert asked[1][1]["version"] == 2
    assert asked[1][1]["description"] == "too warm"


def test_topics_are_a_tree_that_keys_move_through(dashboard: Dashboard) -> None:
    last = {"payload": "21", "payload_bytes": 2, "qos": 1, "received_at": "2026-01-01T00:00:00Z"}
    names = [f"plant/{line}/{what}" for line in (1, 2) for what in ("state", "temperature")]
    items = [{"topic_name": one, "last": last, "messages": 3, "rate": 0.0} for one in names]
    found = {"items": items, "next_cursor": None}
    page = dashboard.page
    page.route("**/api/v1/topics?*", lambda route: route.fulfill(json=found))
    dashboard.open("topics?filter=plant/%23")
    tree = page.get_by_role("tree", name="Topics")
    expect(tree.get_by_role("treeitem")).to_have_count(7)
    expect(tree.get_by_role("treeitem", name="temperature").first).to_contain_text("213")
    expect(page.get_by_text("4 topics", exact=True).first).to_be_visible()
    active = tree.locator(".active .level")
    tree.focus()
    page.keyboard.press("End")
    expect(active).to_have_text("temperature")
    page.keyboard.press("ArrowLeft")
    expect(active).to_have_text("2")
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem")).to_have_count(5)
    expect(tree.locator(".active")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(tree.get_by_role("treeitem")).to_have_count(7)
    page.keyboard.press("Home")
    expect(tree).to_have_attribute("aria-activedescendant", "row-0")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(active).to_have_text("state")
    page.keyboard.press("Enter")
    expect(page.locator(".detail pre")).to_have_text("21")
    expect(tree.locator("[aria-selected=true] .level")).to_have_text("state")
    assert "#/topics/plant%2F1%2Fstate?filter=plant" in page.url
    tree.get_by_role("treeitem", name="temperature").first.click()
    expect(page.get_by_role("heading", name="plant/1/temperature")).to_be_visible()


def test_a_job_that_failed_is_an_alarm_until_it_is_forgotten(
    dashboard: Dashboard, served: Served
) -> None:
    watch, jobs = served.api.services.alarms.watch, served.api.services.runs.jobs

    def work(_job: Job) -> dict[str, Any]:
        raise OperationalError("there is no table")

    job = jobs.start("dry_run", "default", "hot", work)
    await_condition(lambda: job.state == "failed", "it has failed")
    watch.tick()
    page = dashboard.page
    dashboard.open("alarms")
    alarms = page.get_by_role("region", name="Open alarms")
    row = alarms.get_by_role("row", name=f"dry run {job.id} has failed")
    expect(row).to_contain_text("warning")
    row.get_by_role("link").click()
    expect(page.get_by_role("alert")).to_contain_text("there is no table")
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("Choose a job")).to_be_visible()
    watch.tick()
    dashboard.open("alarms")
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()


def test_a_first_visit_has_a_tour_that_does_not_come_back(browser: Browser, served: Served) -> None:
    with page_of(browser, served, has_tour=True) as dashboard:
        page = dashboard.page
        page.goto(f"{dashboard.url}/dashboard/")
        tour = page.get_by_role("dialog", name="The system at a glance")
        expect(tour).to_be_focused()
        expect(tour).to_contain_text("Step 1 of 4")
        for theme in ("light", "dark"):
            dashboard.use_theme(theme)
            assert dashboard.run("contrast.js")["found"] == []
        assert dashboard.run("names.js") == []
        for title, heading in (("Your first message", "Topics"), ("Let something happen", "Rules")):
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog", name=title)).to_be_focused()
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        page.get_by_role("button", name="Back").click()
        expect(page.get_by_role("dialog", name="Your first message")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.reload()
        expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
        page.get_by_role("button", name="Tour").click()
        for name in ("Next", "Next", "Next", "Done"):
            page.get_by_role("dialog").get_by_role("button", name=name).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert page.evaluate("localStorage.getItem('mqlake.tour')") == "over"


def test_an_alarm_is_acknowledged_and_is_over(dashboard: Dashboard, served: Served) -> None:
    watch = served.api.services.alarms.watch
    served.api.hear("gateway-9")
    served.api.clock.advance(10)
    watch.tick()
    page = dashboard.page
    dashboard.open("alarms")
    counter = page.get_by_role("link", name="Alarms").locator(".counter")
    expect(counter).to_have_text("1 open")
    row = page.get_by_role("region", name="Open alarms").get_by_role("row", name="gateway-9")
    expect(row).to_contain_text("nothing was heard of it")
    row.get_by_role("button", name="Acknowledge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note for the others").fill("I have pulled its plug")
    page.keyboard.press("Enter")
    expect(row).to_contain_text("api-token")
    expect(row).to_contain_text("I have pulled its plug")
    expect(counter).to_be_hidden()
    row.get_by_role("button", name="Undo").click()
    expect(row.get_by_role("button", name="Acknowledge")).to_be_visible()
    assert dashboard.run("names.js") == []
    served.api.hear("gateway-9")
    watch.tick()
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    page.get_by_role("group").get_by_text("Alarms that are over").click()
    past = page.get_by_role("row", name="gateway-9")
    expect(past).to_contain_text("once")
