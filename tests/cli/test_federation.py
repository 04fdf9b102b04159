"""`bin/mqlake federation status` of a federator beside a log."""

import json
from pathlib import Path

from click.testing import CliRunner

from cli.processes.federation import command
from mqlake.processes.heartbeat import write_heartbeat
from tests.api.test_federation import figures


def test_status_shows_links_of_the_system_in_a_data_directory(tmp_path: Path) -> None:
    said = figures()
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "federation.json"
    write_heartbeat(path, "federation-1", healthy=True, detail="1 of 2 there", figures=said)
    arguments = ["status", "--data-dir", str(tmp_path)]
    shown = CliRunner().invoke(command, arguments)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0] == "federation-1: 1 of 2 there"
    rows = [line.split()[:3] for line in lines if "mqtt://" in line]
    assert rows == [["2", "yes", "1"], ["3", "no", "1"]]
    below = lines[lines.index("site        state    links to          where") + 1 :]
    assert [line.split()[:3] for line in below] == [["1", "self", "2"], ["2", "linked", "1"]]
    as_json = CliRunner().invoke(command, [*arguments, "--json"])
    assert json.loads(as_json.output)["links"] == said["links"]


def test_status_without_a_federator_says_so(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, ["status", "--data-dir", str(tmp_path)])
    assert shown.exit_code != 0
    assert "no federator runs" in str(shown.exception)
