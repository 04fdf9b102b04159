"""What is installed is what the lock files name, bit by bit.

Whether it has known holes only services on the internet can tell, see CONTRIBUTING.md.
"""

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

CONF = Path(__file__).parents[2] / "conf"
LOCKS = sorted(CONF.glob("requirements*.lock"))
PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[a-z,-]+\])?==(?P<version>[^ ;\\]+)(?P<rest>.*)", re.DOTALL
)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
INSTALLERS = {"pip", "setuptools", "wheel"}
"""Come with Python."""


def requirements(lock: Path) -> list[str]:
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda one: one.name)
def test_each_package_of_a_lock_is_one_version_with_its_hashes(lock: Path) -> None:
    found = requirements(lock)
    assert found
    for line in found:
        pinned = PINNED.fullmatch(line)
        assert pinned is not None, line
        assert HASH.search(pinned["rest"]), line


def test_nothing_is_installed_that_no_lock_names() -> None:
    locked: set[tuple[str, str]] = set()
    for line in (line for lock in LOCKS for line in requirements(lock)):
        pinned = PINNED.fullmatch(line)
        assert pinned is not None
        locked.add((normal(pinned["name"]), pinned["version"]))
    installed = {
        (normal(one.metadata["Name"]), one.version) for one in importlib.metadata.distributions()
    }
    assert len(installed) > 50, "else this looks at the wrong place"
    assert {one for one in installed - locked if one[0] not in INSTALLERS} == set()


def test_each_package_of_npm_has_its_hash() -> None:
    lock = json.loads((CONF / "npm" / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert packages
    for name, one in packages.items():
        assert one["integrity"].startswith("sha512-"), name
