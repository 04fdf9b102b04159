"""Commands for a log of one's own, without one."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.app import mqlake
from mqlake.log.security import LogServers


def test_a_log_that_asks_is_reached_as_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log-security.toml"
    path.write_text("", encoding="utf-8")
    asked: list[Any] = []

    def keepings(servers: Any, *_: Any) -> dict[str, Any]:
        asked.append(servers)
        return {}

    monkeypatch.setattr("mqlake.log.admin.keepings", keepings)
    command = ["log", "durability", "kafka:9092", "--json"]
    assert CliRunner().invoke(mqlake, command).exit_code == 0
    assert CliRunner().invoke(mqlake, [*command, "--security-file", str(path)]).exit_code == 0
    assert asked == ["kafka:9092"] * 2
    assert [type(one) for one in asked] == [LogServers] * 2
    assert [one.security_file for one in asked] == [None, path]
    missing = [*command, "--security-file", str(tmp_path / "none")]
    assert "does not exist" in CliRunner().invoke(mqlake, missing).output


def test_the_log_that_grows_is_that_of_the_system_unless_servers_are_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        mqlake, ["log", "grow", "--data-dir", str(tmp_path), "--partitions", "8"]
    )
    assert result.exit_code == 1
    assert f"no system runs on {tmp_path}" in str(result.exception or result.output)
