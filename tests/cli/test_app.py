import subprocess
import sys

import pytest
from click.testing import CliRunner

from cli.app import main, mqlake

pytestmark = pytest.mark.programs


def test_help_lists_every_command_without_importing_any() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from cli.app import mqlake\n"
        "print(CliRunner().invoke(mqlake, ['--help']).output)\n"
        "print([name for name in sys.modules if name.startswith('cli.')])\n"
    )
    command = [sys.executable, "-P", "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("up", "down", "status", "gateway", "router", "lake", "api"):
        assert f"\n  {name} " in output
    assert output.strip().endswith("['cli.app']")


@pytest.mark.parametrize("name", mqlake.list_commands(None))  # type: ignore[arg-type]
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(mqlake, [name, "--help"])
    assert result.exit_code == 0, result.output
    own_parser = name == "resilience"  # it runs without the rest of mqlake, too
    assert f"{name} {'[-h]' if own_parser else '[OPTIONS]'}" in result.output


def test_unknown_command_is_refused_by_name() -> None:
    result = CliRunner().invoke(mqlake, ["upp"])
    assert result.exit_code == 2
    assert "No such command 'upp'" in result.output


def test_gateway_command_never_imports_pyspark() -> None:
    modules = "sys, cli.processes.gateway, ingest.gateway.process.app"
    script = f"import {modules}; print('pyspark' in sys.modules)"
    command = [sys.executable, "-P", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_expected_failure_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setattr(sys, "argv", ["mqlake", "status", "--data-dir", str(tmp_path)])
    assert main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("mqlake: no system runs on ")
    assert errors.count("\n") == 1
