"""What the wheel of each distribution carries, and that it works without the others."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hatchling.builders.wheel import WheelBuilder

pytestmark = pytest.mark.programs

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = {
    "mqlake": ROOT,
    **{
        f"mqlake-{file.parent.name}": file.parent
        for file in sorted((ROOT / "distributions").glob("*/pyproject.toml"))
    },
}
OWN: Final = {
    "mqlake-codec": ("ingest/protocol/",),
    "mqlake-faults": ("resilience/",),
    "mqlake-federator": ("ingest/federation/brokers/", "bench/federation.py"),
}
"""Which files are each one's: of the product all others."""


def project(name: str) -> dict[str, Any]:
    text = (FOLDERS[name] / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def content(name: str) -> dict[str, str]:
    """Return the files of a wheel: where each is installed, and where it is from."""
    files = WheelBuilder(str(FOLDERS[name])).recurse_included_files()
    return {
        file.distribution_path: Path(os.path.realpath(file.path)).relative_to(ROOT).as_posix()
        for file in files
    }


def sources() -> set[str]:
    """Return all that the packages of the checkout consist of, but for the laboratory."""
    packages = [file.parent for file in ROOT.glob("*/__init__.py") if file.parent.name != "lab"]
    return {
        file.relative_to(ROOT).as_posix()
        for package in packages
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {
        name: Path(next(WheelBuilder(str(root)).build(directory=str(folder))))
        for name, root in FOLDERS.items()
    }


Install = Callable[..., Path]


@pytest.fixture
def install(wheels: Mapping[str, Path], tmp_path: Path) -> Install:
    """Return what installs distributions in a folder of their own."""

    def into(*names: str) -> Path:
        for name in names:
            with zipfile.ZipFile(wheels[name]) as archive:
                archive.extractall(tmp_path)
        return tmp_path

    return into


def run(folder: Path, *arguments: str, packages: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python where only this folder is installed, and the packages that are not ours."""
    path = [str(folder), *([sysconfig.get_path("purelib")] if packages else [])]
    return subprocess.run(
        # Without -S a file in site-packages would add this checkout.
        [sys.executable, "-S", "-P", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def modules(name: str) -> list[str]:
    files = [Path(path) for path in content(name) if path.endswith(".py")]
    named = (".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)
    return sorted(one for one in named if not one.endswith("__main__"))


def import_all(name: str) -> str:
    return f"import importlib, sys\nfor name in {modules(name)}: importlib.import_module(name)\n"


def test_each_source_is_in_one_wheel_and_lies_there_as_here() -> None:
    found = {name: content(name) for name in FOLDERS}
    assert FOLDERS.keys() == {"mqlake", *OWN}
    times = Counter(path for files in found.values() for path in files)
    assert {path for path, count in times.items() if count > 1} == set()
    assert set(times) == sources()
    for name, files in found.items():
        assert [(there, here) for there, here in files.items() if there != here] == []
        if name in OWN:
            assert {path for path in files if not path.startswith(OWN[name])} == set()


def test_all_are_of_one_version_and_want_each_other_in_it() -> None:
    version = project("mqlake")["version"]
    for name in FOLDERS:
        described = project(name)
        assert described["version"] == version
        more = described.get("optional-dependencies", {})
        wanted = [*described["dependencies"], *(one for extra in more.values() for one in extra)]
        for one in wanted:
            if (required := re.match(r"[A-Za-z0-9-]+", one)) and required[0] in FOLDERS:
                assert one == f"{required[0]}=={version}"


def test_each_has_its_license(install: Install) -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for name in FOLDERS:
        version = project(name)["version"]
        (file,) = install(name).glob(f"{name.replace('-', '_')}-{version}.dist-info/*/LICENSE")
        assert file.read_text(encoding="utf-8") == text


def test_the_codec_works_with_the_standard_library_alone(install: Install) -> None:
    ran = run(install("mqlake-codec"), "-c", import_all("mqlake-codec"), packages=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_fault_tool_works_without_the_product(install: Install) -> None:
    folder = install("mqlake-codec", "mqlake-faults")
    ran = run(folder, "-c", import_all("mqlake-faults"))
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = run(folder, "-m", "resilience", "list")
    assert ran.returncode == 0, ran.stderr
    assert "3-kill" in ran.stdout


def test_the_product_says_what_to_install_for_fault_tests(install: Install) -> None:
    command = ["-m", "cli", "resilience", "list"]
    ran = run(install("mqlake-codec", "mqlake"), *command)
    assert ran.returncode == 1
    assert ran.stderr == "mqlake: the fault tool is not installed: pip install mqlake-faults\n"
    ran = run(install("mqlake-faults"), *command)
    assert ran.returncode == 0, ran.stderr
    assert "3-kill" in ran.stdout


def test_the_federator_of_brokers_needs_the_product_and_no_client_of_kafka(
    install: Install,
) -> None:
    folder = install("mqlake-codec", "mqlake")
    for command in ("federation", "federation bench"):
        ran = run(folder, "-m", "cli", *command.split())
        assert ran.returncode == 1
        wanted = "the federator of brokers is not installed: pip install mqlake-federator"
        assert ran.stderr == f"mqlake: {wanted}\n"
    install("mqlake-federator")
    script = import_all("mqlake-federator") + "assert 'confluent_kafka' not in sys.modules"
    ran = run(folder, "-c", script)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = run(folder, "-m", "ingest.federation.brokers", "--config", "nothing.toml")
    assert ran.returncode == 1
    assert "nothing.toml" in ran.stderr
