"""What the wheel of each distribution carries, and that it works without the others."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from collections.abc import Mapping
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
    "mqlake-codec": "ingest/protocol/",
    "mqlake-faults": "resilience/",
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
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return a folder for each distribution, with its wheel unpacked."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, root in FOLDERS.items():
        (wheel,) = WheelBuilder(str(root)).build(directory=str(folder))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / name)
    return {name: folder / name for name in FOLDERS}


def run(
    folders: list[Path], *arguments: str, packages: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Python where only these folders are installed, and the packages that are not ours."""
    path = [*map(str, folders), *([sysconfig.get_path("purelib")] if packages else [])]
    return subprocess.run(
        # Without -S a file in site-packages would add this checkout.
        [sys.executable, "-S", "-P", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)},
        cwd=folders[0],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def modules(name: str) -> list[str]:
    files = [Path(path) for path in content(name) if path.endswith(".py")]
    named = (".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)
    return sorted(one for one in named if not one.endswith("__main__"))


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


def test_each_has_its_license(installed: Mapping[str, Path]) -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for folder in installed.values():
        (file,) = folder.glob("*.dist-info/*/LICENSE")
        assert file.read_text(encoding="utf-8") == text


def test_the_codec_works_with_the_standard_library_alone(installed: Mapping[str, Path]) -> None:
    script = (
        f"import importlib\nfor name in {modules('mqlake-codec')}: importlib.import_module(name)"
    )
    ran = run([installed["mqlake-codec"]], "-c", script, packages=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_fault_tool_works_without_the_product(installed: Mapping[str, Path]) -> None:
    folders = [installed["mqlake-codec"], installed["mqlake-faults"]]
    script = (
        f"import importlib\nfor name in {modules('mqlake-faults')}: importlib.import_module(name)"
    )
    ran = run(folders, "-c", script)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = run(folders, "-m", "resilience", "list")
    assert ran.returncode == 0, ran.stderr
    assert "3-kill" in ran.stdout


def test_the_product_says_what_to_install_for_fault_tests(installed: Mapping[str, Path]) -> None:
    product = [installed["mqlake-codec"], installed["mqlake"]]
    ran = run(product, "-m", "cli", "resilience", "list")
    assert ran.returncode == 1
    assert ran.stderr == "mqlake: the fault tool is not installed: pip install mqlake-faults\n"
    ran = run([*product, installed["mqlake-faults"]], "-m", "cli", "resilience", "list")
    assert ran.returncode == 0, ran.stderr
    assert "3-kill" in ran.stdout
