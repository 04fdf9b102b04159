"""Pages about jobs, traces, reference tables and schemas, in a browser."""

import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from api.jobs.jobs import Job, Jobs
from api.tracing.views import Trace
from launcher.testing.systems import await_condition
from mqlake.records.references import decode_reference_request
from tests.api.dashboard.conftest import Served
from tests.api.test_references import answer
from tests.api.test_schemas import AVRO, OTHER
from tests.integration.dashboard.browser import NARROW, Dashboard, fact

pytestmark = pytest.mark.programs

MESSAGE = "00032a6f8c7e00ab3f0003e7c1d2a5b4"


def fits(dashboard: Dashboard) -> None:
    """Everything has a name, can be read, and finds room on a narrow screen."""
    assert dashboard.run("names.js") == []
    for theme in ("light", "dark"):
        dashboard.use_theme(theme)
        assert dashboard.run("contrast.js")["found"] == []
    page = dashboard.page
    wide = page.viewport_size
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
    assert wide is not None
    page.set_viewport_size(wide)


def confirm(page: Page, yes: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=yes).click()


def test_a_job_is_followed_ended_and_forgotten(dashboard: Dashboard, served: Served) -> None:
    jobs: Jobs = served.api.services.runs.jobs
    go = threading.Event()

    def work(job: Job) -> dict[str, Any]:
        job.advance(0.5, "reading part 3")
        assert go.wait(60)
        job.check()
        return {"matched": 7}

    page = dashboard.page
    dashboard.open("jobs")
    expect(page.get_by_text("There is no job.")).to_be_visible()
    done, ended = (jobs.start("dry_run", "default", "hot", work) for _ in range(2))
    page.get_by_role("button", name=ended.id).click()
    expect(fact(page, "Doing")).to_have_text("reading part 3")
    expect(fact(page, "Done")).to_have_text("50 %")
    fits(dashboard)
    page.get_by_role("button", name="End it").click()
    confirm(page, "End it")
    await_condition(ended.cancelling.is_set, "it is asked to end")
    go.set()
    expect(fact(page, "State")).to_have_text("cancelled")
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("Choose a job")).to_be_visible()
    expect(page.get_by_role("button", name=ended.id)).to_have_count(0)
    page.get_by_role("button", name=done.id).click()
    expect(page.get_by_label("Result", exact=True)).to_contain_text('"matched": 7')
    expect(page.get_by_role("button", name="Go on")).to_have_count(0)


def test_a_replay_begins_and_is_told_where_its_query_is_wrong(
    dashboard: Dashboard, served: Served
) -> None:
    page = dashboard.page
    dashboard.open("jobs")
    query = page.get_by_role("textbox", name="Messages to replay")
    query.fill("SELECT * FROM\nsecrets")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("button", name="Line 2, column 1")).to_be_visible()
    query.fill("SELECT * FROM messages")
    page.get_by_label("Time between messages").select_option("10")
    page.get_by_label("Messages a second").fill("500")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(fact(page, "Kind")).to_have_text("replay")
    (job,) = (one for one in served.api.services.runs.jobs.all() if one.kind == "replay")
    asked = job.request or {}
    assert (asked["prefix"], asked["speed"], asked["rate"]) == ("replay/", 10, 500)
    assert page.url.endswith(f"#/jobs/{job.id}")


def test_a_trace_says_what_became_of_a_message(dashboard: Dashboard) -> None:
    page = dashboard.page
    at = "2026-01-01T00:00:00Z"
    accepted: dict[str, Any] = {
        "topic_name": "plant/1",
        "at": at,
        "origin": "local/gateway-1",
        "qos": 1,
    }
    accepted |= {"client_id": "sensor", "username": None, "retain": False, "payload_bytes": 2}
    accepted |= {"partition": 2, "offset": 40, "found_in": "log"}
    subscriber: dict[str, Any] = {
        "client_id": "panel",
        "topic_filter": "plant/#",
        "qos": 1,
        "at": at,
    }
    subscriber |= {"gateway": "gateway-2", "presence": "connected", "basis": "recorded"}
    action = {"action": "0/republish", "outcome": "done", "basis": "recorded", "detail": "sent"}
    output: dict[str, Any] = {"output_id": "hot/1/2:40", "row": {"t": 20}, "at": at}
    output["actions"] = [{**action, "message_id": MESSAGE}]
    rule = {"rule_id": "hot", "version": 1, "basis": "recorded", "detail": "1 output"}
    found = {
        "message_id": MESSAGE,
        "tenant": "default",
        "summary": "delivered to 1 of 2 subscribers",
        "accepted": accepted,
        "routed": [{"gateway": "gateway-2", "basis": "recorded", "offset": 7}],
        "subscribers": [
            {**subscriber, "outcome": "acked", "reason": None, "detail": "PUBACK came"},
            {**subscriber, "client_id": "full", "outcome": "dropped", "reason": "queue_full"}
            | {"detail": "its queue was full"},
        ],
        "rules": [{**rule, "outputs": [output], "dead_letters": []}],
        "recording": {"delivered": True, "acked": False},
        "not_known": ["who read the topic in the history"],
    }
    shown = Trace.model_validate(found).model_dump(mode="json")
    page.route(f"**/api/v1/messages/{MESSAGE}/trace?*", lambda route: route.fulfill(json=shown))
    dashboard.open("trace")
    expect(page.get_by_text("A trace begins with the identifier")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("abc")
    page.get_by_role("button", name="Trace").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()  # the browser says why
    page.get_by_label("Message", exact=True).fill(MESSAGE)
    page.get_by_role("button", name="Trace").click()
    expect(page.get_by_text("delivered to 1 of 2 subscribers")).to_be_visible()
    expect(page.get_by_role("link", name="plant/1")).to_be_visible()
    expect(page.get_by_role("row", name="full")).to_contain_text("dropped: queue full")
    expect(page.get_by_role("row", name="hot/1/2:40")).to_contain_text("0/republish done sent")
    expect(page.get_by_text("No running rule reads $events/message_acked:")).to_be_visible()
    expect(page.get_by_text("who read the topic in the history")).to_be_visible()
    fits(dashboard)
    assert page.url.endswith(f"#/trace/{MESSAGE}")


def test_a_message_that_is_not_there_is_said(dashboard: Dashboard) -> None:
    page = dashboard.page
    problem = {"status": 404, "detail": f"there is no message {MESSAGE}"}
    page.route(
        f"**/api/v1/messages/{MESSAGE}/trace?*",
        lambda route: route.fulfill(status=404, json=problem),
    )
    dashboard.open(f"trace/{MESSAGE}")
    expect(page.get_by_role("alert")).to_contain_text(f"There is no message {MESSAGE}")


def test_a_reference_table_is_uploaded_read_and_deleted(
    dashboard: Dashboard, served: Served, tmp_path: Path
) -> None:
    page = dashboard.page
    rows = {"version": 0, "items": [{"id": "m1", "limit": 7}], "next_cursor": None}
    page.route("**/api/v1/references/machines/rows?*", lambda route: route.fulfill(json=rows))
    file = tmp_path / "machines.csv"
    dashboard.open("references")
    expect(page.get_by_text("There is no reference table. Upload")).to_be_visible()
    page.get_by_label("Identifier").fill("machines")
    file.write_text("id,limit\nm1,7,8\n")
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 2")
    file.write_text("id,limit\nm1,7\n")
    page.get_by_label("File").set_input_files(file)
    page.get_by_label("What it is").fill("limits")
    page.get_by_role("button", name="Upload").click()
    expect(fact(page, "State")).to_have_text("writing")
    columns = (("id", "STRING"), ("limit", "BIGINT"))
    answer(served.api, number=1, version=0, columns=columns, key=("id",), rows=1, at=5_000)
    expect(fact(page, "State")).to_have_text("ready")
    expect(page.get_by_role("region", name="Rows").get_by_role("row").nth(1)).to_have_text("m17")
    fits(dashboard)
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page, "Delete")
    expect(page.get_by_text("Choose a reference table")).to_be_visible()
    asked = decode_reference_request(served.api.log.records[-1].value or b"")
    assert (asked.kind, asked.reference) == ("delete", "machines")


def test_a_schema_is_registered_changed_and_deleted(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("schemas")
    expect(page.get_by_role("row", name="sparkplug_b")).to_contain_text("built in")
    registration = page.get_by_role("region", name="Register a schema")
    registration.get_by_label("Name").fill("boiler")
    registration.get_by_label("Text").fill("{")
    registration.get_by_role("button", name="Register").click()
    expect(registration.get_by_role("alert")).to_be_visible()
    registration.get_by_label("Text").fill(AVRO)
    registration.get_by_role("button", name="Register").click()
    panel = page.get_by_role("region", name="boiler")
    expect(panel).to_contain_text("no rule decodes by it")
    panel.get_by_label("Text", exact=True).fill(OTHER)
    panel.get_by_role("button", name="Save as a new version").click()
    expect(fact(page, "Version")).to_have_text("2")
    panel.get_by_label("Show version").select_option("1")
    expect(panel.get_by_label("Text of version 1")).to_contain_text('"name": "t"')
    fits(dashboard)
    panel.get_by_role("button", name="Delete").click()
    confirm(page, "Delete")
    expect(page.get_by_role("button", name="boiler", exact=True)).to_have_count(0)
    expect(page.get_by_text("Choose a schema")).to_be_visible()
