"""The tutorial, typed as it stands, against a system, up to the alert that Prometheus raises."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.ports import free_ports
from launcher.testing.systems import LocalSystem, await_condition
from tests.integration.documents import shell_lines, typed_at

pytestmark = [
    pytest.mark.campaign("test_readme.py and tests/docs run the commands of other documents"),
    pytest.mark.system,
    pytest.mark.timeout(700),
]

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
OF_THE_TEST = "prometheus "


def commands(first: int, last: int) -> str:
    """Return what is typed in these steps."""
    text = TUTORIAL.read_text(encoding="utf-8")
    steps = text.partition(f"\n## {first}. ")[2].partition(f"\n## {last + 1}. ")[0]
    return "\n".join(one for one in shell_lines(steps) if not one.startswith(OF_THE_TEST))


def write_files(system: LocalSystem, folder: Path) -> None:
    """Write the files that the tutorial has, for this system's API."""
    text = TUTORIAL.read_text(encoding="utf-8")
    found = dict(re.findall(r"to `([\w.-]+)`:\n\n```yaml\n(.*?)```", text, re.DOTALL))
    assert set(found) == {"heat.yaml", "prometheus.yml", "heat-alert.yml"}
    for name, content in found.items():
        here = content.replace("127.0.0.1:8080", f"127.0.0.1:{system.api_port}")
        here = here.replace("data/api-token", str(system.data_dir / "api-token"))
        (folder / name).write_text(here, encoding="utf-8")


def typed(system: LocalSystem, folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script as a person would."""
    return subprocess.run(
        ["bash", "-euc", typed_at(system, script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def types(system: LocalSystem, folder: Path, script: str) -> str:
    """Run a script in which all works; return what it prints."""
    done = typed(system, folder, script)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Run Prometheus with the tutorial's settings; yield its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("prometheus is missing: apt install prometheus", pytrace=False)
    (port,) = free_ports(1)
    options = {
        "config.file": "prometheus.yml",
        "web.listen-address": f"127.0.0.1:{port}",
        "storage.tsdb.path": "prometheus",
    }
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *(f"--{name}={value}" for name, value in options.items())],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def asked(url: str) -> object:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None  # it has just been started


def test_the_tutorial_leads_to_an_alarm(system: LocalSystem, tmp_path: Path) -> None:
    write_files(system, tmp_path)

    def shows(script: str, wanted: str) -> bool:
        """Type it again until tables have what it is to show."""
        done = typed(system, tmp_path, script)
        return done.returncode == 0 and bool(re.search(wanted, done.stdout, re.MULTILINE))

    types(system, tmp_path, commands(1, 1))
    await_condition(lambda: shows(commands(2, 2), r"^ *seattle .*\d"), "the first query")
    assert "71.2" in types(system, tmp_path, commands(3, 4)), "the first rule"
    passed = r" matched, [1-9][0-9,]* passed,"
    await_condition(lambda: shows(commands(5, 5), passed), "the dry run")
    changes = " plan heat.yaml || test $? = 2"  # as the tutorial says
    first, _, later = commands(6, 6).replace(" plan heat.yaml", changes).partition("\nwait\n")
    printed = types(system, tmp_path, f"{first}\nwait")
    assert re.search(r"^\S+ alarm/heat/(seattle|san-francisco) ", printed, re.MULTILINE)
    city = r"(seattle|san-francisco) "
    kept = rf"^ *alarm/heat/{city}(.*\n)*.*^ *{city}"
    await_condition(lambda: shows(later, kept), "the retained alarm and a row of the table")

    with prometheus(tmp_path) as url:
        count = 'mqlake_action_outputs_done_total{rule="heat"}'.replace('"', "%22")
        await_condition(
            lambda: bool((asked(f"{url}/api/v1/query?query={count}") or {"result": 0})["result"]),  # type: ignore[index]
            "Prometheus has the rule's counter",
        )
        types(system, tmp_path, commands(7, 7))
        await_condition(
            lambda: '"firing"' in json.dumps(asked(f"{url}/api/v1/alerts")),
            "Prometheus raises the alert",
        )
    types(system, tmp_path, commands(8, 8))
