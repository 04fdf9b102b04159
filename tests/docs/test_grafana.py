"""The dashboard that `bin/mqlake grafana` prints is one that Grafana reads as it is meant."""

import json
from typing import Any

from click.testing import CliRunner
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from cli.system.grafana import command


def printed() -> dict[str, Any]:
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_what_is_printed_is_read_back_as_it_is() -> None:
    plugins.register_default_plugins()
    read = Dashboard.from_json(printed())
    assert json.loads(JSONEncoder().encode(read)) == printed()


def test_panels_have_numbers_of_their_own_and_each_series_a_letter() -> None:
    panels = printed()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 40
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert letters == ["A", "B", "C"][: len(letters)], panel["title"]
        assert letters or panel["type"] == "row"


def test_expressions_have_nothing_left_to_fill_in() -> None:
    for panel in printed()["panels"]:
        for target in panel.get("targets", ()):
            assert "@" not in target["expr"]
            assert "[]" not in target["expr"]


def test_curves_show_whose_they_are() -> None:
    curves = [panel for panel in printed()["panels"] if panel["type"] == "timeseries"]
    assert all(panel["options"]["legend"]["showLegend"] for panel in curves)
