"""The first minute of README, run against a system."""

import re
import subprocess
from pathlib import Path

import pytest

from launcher.testing.systems import LocalSystem
from tests.integration.documents import shell_lines, typed_at

pytestmark = pytest.mark.system

README = Path(__file__).parents[2] / "README.md"


def first_minute() -> list[str]:
    text = README.read_text(encoding="utf-8")
    section = text.partition("## First minute")[2].partition("\n## ")[0]
    return shell_lines(section)


@pytest.mark.usefixtures("mosquitto_clients")
def test_first_minute_does_what_it_says(system: LocalSystem, tmp_path: Path) -> None:
    received = tmp_path / "received"
    script = "\n".join(first_minute())
    assert script.count("bin/mqlake ") >= 3
    for here, there in (("1883", system.mqtt_port), ("1884", system.mqtt_port + 1)):
        script = script.replace(f"-p {here}", f"-p {there}")
    script = typed_at(system, script)
    # A person types slower than a script: the second line when the first has subscribed.
    script = script.replace(
        " -v &", f" -v -d -C 1 > '{received}' &\nuntil grep -q SUBACK '{received}'; do :; done"
    ).replace("mosquitto_sub", "stdbuf -oL mosquitto_sub")
    done = subprocess.run(
        ["bash", "-euc", script + "\nwait"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "plant/7/temperature 21.5" in received.read_text(encoding="utf-8")
    assert "gateway-2" in done.stdout
    assert re.search(r" matched, [1-9][0-9,]* passed,", done.stdout), "the dry run shows hits"
