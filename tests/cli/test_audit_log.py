"""Commands that ask no API tell the audit log what they have changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.log.appending import LogAppender
from cli.app import mqlake
from mqlake.records.messages import EVENTS
from tests.api.test_api import write_state

Told = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found: Told = []

    def append(log: LogAppender, topic: str, key: bytes, value: bytes, **_: Any) -> int:
        found.append((log.servers, topic, json.loads(value)))
        return 0

    monkeypatch.setattr(LogAppender, "append", append)
    return found


def run(*arguments: str | Path, stdin: str = "") -> str:
    done = CliRunner().invoke(mqlake, [*map(str, arguments)], input=stdin)
    assert done.exit_code == 0, done.output
    return done.output


def test_users_are_told_without_their_passwords(tmp_path: Path, told: Told) -> None:
    file, at = tmp_path / "users", ("--data-dir", tmp_path)
    run("user", "add", "ann", "--file", file, *at, stdin="open sesame")
    assert told == [], "no system is there: gateways tell when they read the file"
    write_state(tmp_path, healthy=True)
    run("user", "add", "ann", "--file", file, *at, stdin="open sesame 2")
    run("user", "remove", "ann", "--file", file, *at)
    assert [(servers, topic) for servers, topic, _ in told] == [("127.0.0.1:9092", EVENTS)] * 2
    assert [one["operation"] for *_, one in told] == ["user add", "user remove"]
    assert [one["asked"] for *_, one in told] == [{"name": "ann", "file": str(file)}] * 2
    assert all(one["caller"].startswith("shell:") for *_, one in told)
    assert "sesame" not in json.dumps([one for *_, one in told])


def test_a_gateway_that_is_retired_is_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    async def retire(*_: Any) -> None:
        assert told == [], "not before it is done"

    monkeypatch.setattr("cli.processes.gateway._retire", retire)
    run("gateway", "retire", "gateway-9", "--log-servers", "kafka:9092")
    ((servers, _, row),) = told
    assert (servers, row["operation"], row["asked"]) == (
        "kafka:9092",
        "gateway retire",
        {"name": "gateway-9"},
    )


def test_a_log_that_is_prepared_is_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlake.log.admin.ensure_log_topics", lambda *_, **__: None)
    run("log", "prepare", "kafka:9092", "--durability", "D3", "--partitions", "6")
    ((servers, _, row),) = told
    assert (servers, row["operation"], row["tenants"]) == ("kafka:9092", "log prepare", [])
    assert row["asked"] == {"durability": "D3", "partitions": 6, "session_shards": 16}


def test_a_log_that_has_grown_is_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def grow(_watch: Any, _admin: Any, _say: Any, _tell: Any, *wanted: Any) -> None:
        assert told == [], "not before it is done"
        asked.extend(wanted)

    for name in ("growth_watch.GrowthWatch", "admin.LogAdmin"):
        monkeypatch.setattr(f"mqlake.log.{name}", lambda _servers: None)
    monkeypatch.setattr("mqlake.log.grow.grow", grow)
    run("log", "grow", "--log-servers", "kafka:9092", "--partitions", "8", "--timeout", "9")
    assert asked == [8, 9.0]
    ((servers, _, row),) = told
    assert (servers, row["operation"], row["asked"]) == (
        "kafka:9092",
        "log grow",
        {"partitions": 8},
    )
