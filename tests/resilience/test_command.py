"""The command line, and that the package stands without the rest of mqlake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.system.resilience import command
from resilience.command import main
from resilience.double.proof import history
from resilience.history import Writer

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]

_ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        known = sys.stdlib_module_names | {"resilience", "paho"}
        allowed = ("mqlake", "mqlake.errors", "mqlake.topics.names", "ingest", "ingest.protocol")
        if name.partition(".")[0] not in known and not name.startswith(allowed[-1]):
            if name not in allowed:
                raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Refuse())
import resilience.drivers.raw, resilience.drivers.paho
from resilience.command import main
sys.exit(main(["list"]))
"""


def write(path: Path, *defects: str) -> Path:
    recorder = history(2, defects, groups=("flow",), share=1.0)
    with path.open("w", encoding="utf-8") as stream:
        Writer(stream, {"promises": {}}, lambda: 0.0)
        stream.writelines(json.dumps(operation) + "\n" for operation in recorder.operations)
    return path


def test_it_stands_with_the_standard_library_paho_and_the_codec() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "mosquitto" in done.stdout


def test_the_exit_code_of_check_tells_whether_a_promise_was_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(write(tmp_path / "good.jsonl"))]) == 0
    assert main(["check", "--json", str(write(tmp_path / "bad.jsonl", "drop"))]) == 1
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    lost = next(row for row in shown["verdicts"] if row["name"] == "lost")
    assert lost["violations"]
    assert {"line", "process", "f"} <= set(lost["witness"][0])


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "2", "--target", "nobody"]) == 1
    assert "no target 'nobody'" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1
    assert "result.json" in capsys.readouterr().err


def test_prove_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--clean-runs", "4", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "NOT FOUND" not in shown
    assert "4 clean runs" in shown


def test_mqlake_passes_its_arguments_on() -> None:
    shown = CliRunner().invoke(command, ["--help"])
    assert shown.exit_code == 0
