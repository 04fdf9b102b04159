"""The page of federation in a browser: a neighbour that is there, one that is away, and none."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mqlake.processes.heartbeat import write_heartbeat
from tests.api.dashboard.conftest import page_of, served_api
from tests.api.test_federation import figures
from tests.integration.dashboard.browser import NARROW, running_browser

pytestmark = pytest.mark.programs


def test_who_is_away_is_shown_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "run" / "federation.json"
    path.parent.mkdir()
    said = figures()
    said["links"][0]["wants"] += 5
    # The sites have loops of their own, which cannot run beside the browser's.
    with (
        running_browser() as browser,
        served_api(tmp_path) as served,
        page_of(browser, served) as dashboard,
    ):
        page = dashboard.page
        dashboard.open("federation")
        expect(page.locator("main")).to_contain_text("mqlake up --federation")
        write_heartbeat(path, "federation-1", healthy=True, detail="1 of 2 there", figures=said)
        # So that it stays fresh however long the test takes.
        beat = json.loads(path.read_text())
        beat["written_at"] += 3600
        path.write_text(json.dumps(beat))
        rows = page.get_by_role("region", name="Links").get_by_role("row")
        expect(rows.nth(1)).to_contain_text("there")
        expect(rows.nth(1)).to_contain_text("f/# and 5 more")
        expect(rows.nth(1).get_by_role("cell").nth(6)).to_have_text(re.compile(r"^[\d.,]+ (Ki)?B$"))
        expect(rows.nth(2)).to_contain_text("away")
        expect(rows.nth(2)).to_contain_text(said["links"][1]["reason"])
        known = page.get_by_role("region", name="Map").get_by_role("row")
        expect(known.nth(1)).to_contain_text("this site")
        expect(known.nth(2)).to_contain_text("linked")
        drawing = page.get_by_role("img", name="2 sites, 1 link between them")
        expect(drawing).to_be_visible()
        expect(drawing.locator("line")).to_have_count(1)
        for theme in ("light", "dark"):
            dashboard.use_theme(theme)
            assert dashboard.run("contrast.js")["found"] == []
        assert dashboard.run("names.js") == []
        page.set_viewport_size(NARROW)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
        served.api.services.alarms.watch.tick()
        dashboard.open("alarms")
        expect(page.locator("main")).to_contain_text("site 3 is away")
