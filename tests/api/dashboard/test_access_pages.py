"""Pages about who may come in, and who has changed what, in a browser."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from api.relations.views import view_columns
from mqlake.tables.catalogue import AUDIT_LOG
from tests.api.dashboard.conftest import PAGES, Served, page_of
from tests.api.test_access import bearer
from tests.api.test_api import TOKEN
from tests.cases import case
from tests.integration.dashboard.browser import NARROW, WIDE, Dashboard, fact, open_page

pytestmark = pytest.mark.programs

PASSWORD = "correct horse"
FOR_ADMINISTRATORS = ("access", "audit")
NAVIGATIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "administrator": ({"role": "admin"}, PAGES),
    "all": ({"role": "viewer"}, tuple(one for one in PAGES if one not in FOR_ADMINISTRATORS)),
    "some-tenants": (
        {"role": "editor", "tenants": ["default"]},
        (
            *("topics", "clients", "rules", "sql", "retained", "trace", "references"),
            *("schemas", "jobs", "alarms"),
        ),
    ),
    "some-topics": (
        {"role": "viewer", "topic_filters": ["plant/#"]},
        ("topics", "rules", "sql", "retained", "trace", "jobs"),
    ),
}
"""Pages by account, which is also the name of it."""


def make_account(dashboard: Dashboard, name: str, **more: Any) -> None:
    """Make an account as the administrator, by the API."""
    body = {"name": name, "role": "viewer", "password": PASSWORD, **more}
    url = f"{dashboard.url}/api/v1/accounts"
    answer = dashboard.page.request.post(url, data=body, headers=bearer(TOKEN))
    assert answer.ok, answer.text()


def accounts(dashboard: Dashboard) -> dict[str, Any]:
    answer = dashboard.page.request.get(f"{dashboard.url}/api/v1/accounts", headers=bearer(TOKEN))
    return {one["name"]: one for one in answer.json()["items"]}


def test_who_is_wrong_is_told_and_an_account_gets_what_its_role_may(
    browser: Browser, served: Served
) -> None:
    with (
        browser.new_context(viewport=WIDE) as context,
        open_page(context, served.system) as dashboard,
    ):
        make_account(dashboard, "eve")
        page = dashboard.page
        page.goto(f"{dashboard.url}/dashboard/#/rules")
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        assert dashboard.run("names.js") == []
        for theme in ("light", "dark"):
            dashboard.use_theme(theme)
            assert dashboard.run("contrast.js")["found"] == []
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not one that counts")
        page.get_by_label("With an account").check()
        page.get_by_label("User name").fill("eve")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="New rule")).to_have_count(0)
        # The session ends elsewhere: the page says so instead of standing still.
        url = f"{dashboard.url}/api/v1/accounts/eve"
        assert page.request.delete(url, headers=bearer(TOKEN)).ok
        expect(page.get_by_text("Your session is over")).to_be_visible()


def test_the_navigation_has_the_pages_that_a_login_may_use(
    dashboard: Dashboard, browser: Browser, served: Served
) -> None:
    for name, (account, pages) in NAVIGATIONS.items():
        make_account(dashboard, name, **account)
        login = {"username": name, "password": PASSWORD}
        with case(name), page_of(browser, served, login=login) as theirs:
            page = theirs.page
            page.goto(f"{theirs.url}/dashboard/#/balancer")
            links = page.get_by_role("navigation", name="Pages").get_by_role("link")
            expect(links).to_have_count(len(pages))
            assert links.evaluate_all("all => all.map((one) => one.dataset.page)") == list(pages)
            # Who names another page in the address comes to the first one.
            shown = "balancer" if "balancer" in pages else pages[0]
            expect(page.locator("nav a[aria-current=page]")).to_have_attribute("data-page", shown)
            for place in pages:
                theirs.open(place)


def test_a_key_is_made_rotated_and_revoked_and_shown_once(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("access")
    expect(page.get_by_text("There is no key. Make one below")).to_be_visible()
    page.get_by_text("Make a key", exact=True).click()
    page.get_by_label("What it is for").fill("weather station")
    page.get_by_label("Role").select_option("editor")
    page.get_by_label("Topic filters").fill("plant/#\nlab/+/t\n")
    page.get_by_label("Expires").select_option("90")
    page.get_by_role("button", name="Make the key").click()
    box = page.get_by_label("The new key", exact=True)
    expect(box).to_be_focused()
    first = box.input_value()
    assert re.fullmatch(r"mqk_[0-9a-f]{12}_\S{40,}", first)
    session = page.request.get(f"{dashboard.url}/api/v1/session", headers=bearer(first)).json()
    assert (session["role"], session["topic_filters"]) == ("editor", ["plant/#", "lab/+/t"])
    assert session["expires_at"] is not None
    row = page.get_by_role("row", name="weather station")
    expect(row).to_contain_text("topics plant/#, lab/+/t")
    page.get_by_role("button", name="I have kept it").click()
    assert first not in page.content()

    old = first.split("_")[1]
    page.get_by_role("button", name=f"Rotate {old}").click()
    page.get_by_role("dialog").get_by_role("button", name="Make it").click()
    second = page.get_by_label(f"The new key in place of {old}").input_value()
    assert second.split("_")[1] != old
    expect(row).to_have_count(2)
    page.get_by_role("button", name=f"Revoke {old}").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(1)
    url = f"{dashboard.url}/api/v1/session"
    # The cookie stands for somebody else: a key that is revoked must not count beside it either.
    assert page.request.get(url, headers=bearer(first)).status == 401
    kept = page.request.get(url, headers=bearer(second)).json()
    assert (kept["role"], kept["topic_filters"]) == ("editor", ["plant/#", "lab/+/t"])


def test_what_the_api_refuses_is_said_beside_the_form(dashboard: Dashboard) -> None:
    page = dashboard.page
    dashboard.open("access")
    page.get_by_text("Make a key", exact=True).click()
    page.get_by_label("What it is for").fill("all")
    page.get_by_label("Role").select_option("admin")
    page.get_by_label("Topic filters").fill("plant/#")
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("form").get_by_role("alert")).to_contain_text("admin")
    expect(page.get_by_role("button", name="Make the key")).to_be_enabled()


def test_an_account_is_made_changed_and_deleted(dashboard: Dashboard, browser: Browser) -> None:
    page = dashboard.page
    dashboard.open("access")
    page.get_by_role("tab", name="Accounts").click()
    page.get_by_text("Make an account", exact=True).click()
    page.get_by_label("User name").fill("ann")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Tenants").fill("acme, default")
    page.get_by_role("button", name="Make the account").click()
    row = page.get_by_role("row", name="ann")
    expect(row).to_contain_text("tenants acme, default")
    page.get_by_role("button", name="ann", exact=True).click()
    panel = page.get_by_role("region", name="ann")
    expect(panel.get_by_label("Role")).to_be_focused()
    panel.get_by_label("Role").select_option("editor")
    panel.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("editor")
    found = accounts(dashboard)["ann"]
    assert (found["role"], found["tenants"]) == ("editor", ["acme", "default"])
    page.get_by_role("button", name="ann", exact=True).click()
    panel.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert "ann" not in accounts(dashboard)


def test_an_account_for_no_topic_does_not_get_all_by_a_change(dashboard: Dashboard) -> None:
    make_account(dashboard, "nix", topic_filters=[])
    page = dashboard.page
    dashboard.open("access")
    page.get_by_role("tab", name="Accounts").click()
    expect(page.get_by_role("row", name="nix")).to_contain_text("no topic")
    page.get_by_role("button", name="nix", exact=True).click()
    panel = page.get_by_role("region", name="nix")
    panel.get_by_label("Role").select_option("editor")
    panel.get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="nix")).to_contain_text("editor")
    assert accounts(dashboard)["nix"]["topic_filters"] == []


def test_a_session_is_ended_and_its_page_says_so(
    dashboard: Dashboard, browser: Browser, served: Served
) -> None:
    make_account(dashboard, "bob")
    login = {"username": "bob", "password": PASSWORD}
    page = dashboard.page
    with page_of(browser, served, login=login) as theirs:
        theirs.open("rules")
        expect(theirs.page.get_by_role("link", name="Keys and accounts")).to_have_count(0)
        expect(theirs.page.get_by_role("link", name="Audit")).to_have_count(0)
        dashboard.open("access")
        page.get_by_role("tab", name="Sessions").click()
        row = page.get_by_role("row", name="bob")
        row.get_by_role("button", name="End the session").click()
        page.get_by_role("dialog").get_by_role("button", name="End it").click()
        expect(row).to_have_count(0)
        expect(page.get_by_role("cell", name="this one")).to_be_visible()
        expect(theirs.page.get_by_text("Your session is over")).to_be_visible()


def test_a_connection_that_is_not_open_yet_is_ended_without_a_warning(dashboard: Dashboard) -> None:
    dashboard.open("rules")
    page = dashboard.page
    with page.expect_websocket() as begun:
        page.evaluate(
            "async () => {"
            " const { Live } = await import('/dashboard/core/live.js');"
            " const live = new Live();"
            " live.follow({ stream: 'metrics' }, () => {}, new AbortController().signal);"
            " live.close(); }"
        )
    if not begun.value.is_closed():
        begun.value.wait_for_event("close")


def test_the_audit_shows_what_was_changed_and_asks_by_text_alone(dashboard: Dashboard) -> None:
    page = dashboard.page
    asked: list[str] = []
    columns = ["ts", "caller", "operation", "target", "status", "asked", "before", "after"]
    row = ["2026-01-01T00:00:00Z", "ann", "PUT /rules/{id}", "/rules/hot", 200]
    change = ['{"sql":"b"}', '{"sql":"a"}', '{"sql":"b"}']
    refused = ["2026-01-01T00:00:00Z", "bob", "DELETE /keys/{id}", "/keys/1", 403, None, None, None]

    def answer(route: Route) -> None:
        asked.append((route.request.post_data_json or {})["query"])
        rows = [[*row, *change], refused] if len(asked) == 1 else []
        found = {"columns": [{"name": name, "type": "string"} for name in columns], "rows": rows}
        route.fulfill(json={**found, "row_count": len(rows), "truncated": bool(rows)})

    page.route("**/api/v1/sql?*", answer)
    dashboard.open("audit")
    expect(page.get_by_role("row", name="bob")).to_contain_text("403")
    page.get_by_role("button").filter(has_text=re.compile("2026|00:00")).first.click()
    expect(fact(page, "Path")).to_have_text("/rules/hot")
    expect(page.get_by_label("Before", exact=True)).to_contain_text('"sql": "a"')
    expect(page.get_by_label("After", exact=True)).to_contain_text('"sql": "b"')
    assert dashboard.run("names.js") == []
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("button", name="More")).to_be_hidden()
    assert asked[1].endswith("OFFSET 2")
    known = {one.name for one in view_columns(AUDIT_LOG)}
    wanted = asked[0].removeprefix("SELECT ").partition(" FROM")[0]
    assert {*wanted.replace("`", "").split(", "), *columns} <= known
    assert asked[0].partition(" ORDER BY")[0] == asked[1].partition(" ORDER BY")[0]
    page.get_by_label("Caller").fill("o'neill\\")
    page.get_by_label("Only what was refused").check()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Nothing was changed in this time")).to_be_visible()
    assert r"caller = 'o\'neill\\' AND status >= 400" in asked[2]
    page.get_by_label("Path contains").fill("keys/1")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("button", name="Show")).to_be_enabled()
    assert "contains(target, 'keys/1')" in asked[3]
