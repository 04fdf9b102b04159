"""The commands for rules against the application, behind a real server; no engine answers."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cli.app import mqlake
from cli.requests.rules import print_result
from rules.documents import read_documents
from tests.api.conftest import Api, api
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others

EXAMPLES = Path(__file__).parents[2] / "conf" / "rules"
HOT = """\
id: hot
name: hot
sql: |-
  SELECT payload.t AS t
  FROM 'plant/+/temp'
  WHERE payload.t > 50
actions:
- function: republish
  args:
    topic: alarms/${t}
"""
COLD = "id: cold\nsql: SELECT * FROM 'plant/+/temp' WHERE payload.t < 0\n"


def run(api: Api, *arguments: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(
        mqlake, ["rules", command, "--data-dir", str(api.data_dir), *map(str, rest)]
    )


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.requests.rules._ENGINE_SECONDS", 0.0)


def lines(result: Result) -> list[str]:
    return [click.unstyle(line) for line in result.output.splitlines()]


def test_plan_and_apply_make_the_rules_what_the_files_say(served: Api, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "two.yaml").write_text(f"{HOT}---\n{COLD}")
    planned = run(served, "plan", str(folder))
    assert planned.exit_code == 2
    assert lines(planned)[0] == "+ cold is to be created"
    assert lines(planned)[-1] == "2 to add, 0 to change, 0 to delete"
    assert served.get("/rules")["items"] == []

    applied = run(served, "apply", str(folder))
    assert (applied.exit_code, lines(applied)[:2]) == (0, ["+ cold: starting", "+ hot: starting"])
    again = run(served, "apply", str(folder))
    assert (again.exit_code, lines(again)) == (0, ["no changes: the rules are as the files say"])
    assert run(served, "plan", str(folder)).exit_code == 0

    (folder / "two.yaml").write_text(HOT.replace("> 50", "> 60"))
    planned = run(served, "plan", str(folder))
    assert planned.exit_code == 2
    assert lines(planned)[0] == "~ hot is to be changed"
    assert "    -  WHERE payload.t > 50" in lines(planned)
    assert "    +  WHERE payload.t > 60" in lines(planned)
    assert "cold" not in planned.output
    pruned = run(served, "apply", str(folder), "--prune")
    assert lines(pruned)[:2] == ["- cold: deleted", "~ hot: starting"]
    assert [item["version"] for item in served.get("/rules")["items"]] == [2]


def test_export_writes_what_apply_reads(served: Api, tmp_path: Path) -> None:
    (tmp_path / "hot.yaml").write_text(HOT)
    run(served, "apply", str(tmp_path / "hot.yaml"))
    assert run(served, "export").output == HOT
    assert run(served, "get", "hot").output == HOT
    run(served, "export", "hot", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out" / "hot.yaml").read_text() == HOT
    assert run(served, "plan", str(tmp_path / "out")).exit_code == 0
    listed = run(served, "list")
    assert lines(listed)[1].split()[:3] == ["hot", "starting", "1"]
    assert json.loads(run(served, "list", "--json").output)[0]["id"] == "hot"
    assert run(served, "delete", "hot").output == "deleted hot\n"
    assert isinstance(run(served, "get", "hot").exception, Exception)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: a\n", "sql: Field required"),
        ("id: a\nsql: SELECT FROM 'x'\n", "rule a: "),
        ("id: a\nsql: SELECT * FROM 'x'\nactions: [{function: mail}]\n", "actions[0]"),
        ("id: a/b\nsql: SELECT * FROM 'x'\n", "id: "),
        ("id: a\nsql: SELECT * FROM 'x'\nmore: 1\n", "more: "),
        ("id: [\n", "is not YAML"),
        ("[1]\n", "expected a rule"),
        (f"{COLD}---\n{COLD}", "stands in"),
        ("id: !!python/object/apply:os.system ['false']\n", "is not YAML"),
    ],
)
def test_a_file_that_is_not_sound_is_named(
    served: Api, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "rule.yaml"
    path.write_text(text)
    for command in ("plan", "apply"):
        error = run(served, command, str(path)).exception
        assert str(path) in str(error)
        assert said in str(error)
    assert served.log.records == []


def test_what_the_system_has_is_known_to_plan(served: Api, tmp_path: Path) -> None:
    path = tmp_path / "rule.yaml"
    path.write_text("id: a\nsql: SELECT payload.x AS x FROM 'a' DECODE 'boiler'\n")
    error = str(run(served, "plan", str(path)).exception)
    assert f"{path}: rule a: there is no schema 'boiler'" in error
    schema = {"name": "boiler", "type": "avro", "source": '{"type": "int"}'}
    assert served.request("POST", "/schemas", json=schema).status_code == 201
    assert run(served, "plan", str(path)).exit_code == 2
    assert run(served, "apply", str(path)).exit_code == 0
    path.write_text("id: b\nsql: SELECT m.x FROM 'a' JOIN m ON m.id = topic(1)\n")
    assert "there is no reference table m" in str(run(served, "plan", str(path)).exception)


def test_the_examples_are_sound(served: Api) -> None:
    planned = run(served, "plan", str(EXAMPLES))
    assert planned.exit_code == 2
    assert "to add, 0 to change" in planned.output


def test_a_rule_is_tested_by_file_identifier_or_sql(
    served: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark makes of it is tested elsewhere; here it is what is asked."""
    asked: list[dict[str, Any]] = []
    found: dict[str, Any] = {"matched": True, "outputs": [{"t": 1}], "error": None, "reason": None}

    def post(_client: object, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/rule_test"
        asked.append(body)
        return found

    path = tmp_path / "hot.yaml"
    path.write_text(HOT)
    run(served, "apply", str(path))
    (document,) = read_documents(HOT, "")
    monkeypatch.setattr("mqlake.api_client.ApiClient.post", post)
    for rule in (str(path), "hot", document.sql):
        result = run(served, "test", rule, "--topic", "plant/a/temp", "--payload", '{"t":1}')
        assert (result.exit_code, result.output) == (0, '{"t": 1}\n')
    context = {"topic": "plant/a/temp", "payload": '{"t":1}'}
    assert asked == [{"sql": document.sql, "context": context}] * 3
    found |= {"matched": False, "outputs": [], "reason": {"detail": "qos is 0"}}
    result = run(served, "test", "hot", "--context", '{"qos": 0}')
    assert (result.exit_code, result.output) == (2, "no match: qos is 0\n")
    assert asked[-1]["context"] == {"qos": 0}
    found |= {"error": "division by zero"}
    missing = run(served, "test", str(tmp_path / "cold.yaml"))
    assert "there is no file" in str(missing.exception)
    assert "the rule fails: division by zero" in str(run(served, "test", "hot").exception)


def test_a_dry_run_of_a_stateful_rule_shows_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(("matched", "passed", "no_result", "failed", "outputs"), 1)
    difference = {"version": 1, "same": 2, "added": 3, "removed": 4, "samples": []}
    result = {
        **counts,
        "table_version": 2,
        "hours": [],
        "samples": [{"at": "2026-01-05T12:00:00Z", "output": {"n": 20}}],
        "errors": [],
        "difference": difference,
    }
    print_result({"result": result, "seconds": 1.0})
    printed = capsys.readouterr().out
    assert '2026-01-05T12:00:00Z {"n": 20}' in printed
    assert "2 same, 3 added, 4 removed" in printed
