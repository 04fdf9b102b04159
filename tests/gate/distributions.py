"""Distributions whose tests run when they or what they use have changed.

A distribution is proven when a run of all of its tests has passed with the content that there is
now: its sources, its tests, all that these import, and the data named here. A gate leaves out the
tests of a proven one. What such a run opens and is not of this content makes it prove nothing.
"""

import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Final

import grimp
import pytest

from tests.gate.changed import PACKAGES, module_of
from tests.gate.classes import ROOT
from tests.gate.outcome import Outcome

RECORD: Final = Path(__file__).with_name("proven.toml")
_HEAD: Final = """\
# Content of each distribution with which all of its tests have passed: written by `bin/test
# --distribution NAME` and `bin/test --full`. A gate leaves these tests out while the content is the
# same, but for the files named here, of which the machine of that run had to skip tests.
"""
_VERSIONS: Final = "conf/requirements-dev.lock"
"""Of all packages that tests run with."""
_FINE: Final = ("passed", "skipped")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is of a distribution, in paths of the checkout.

    Attributes:
        sources: Files, and folders with all that is in them.
        tests: The folder of its tests.
        data: What they read beside.
    """

    name: str
    sources: tuple[str, ...]
    tests: str
    data: tuple[str, ...] = ()

    def files_of_tests(self) -> list[Path]:
        """Return the files of its tests."""
        return sorted((ROOT / self.tests).rglob("test_*.py"))


DISTRIBUTIONS: Final = {
    one.name: one
    for one in (
        Distribution("codec", ("ingest/protocol",), "tests/ingest/protocol", ("tests/wire",)),
        Distribution("faults", ("resilience",), "tests/resilience"),
        Distribution(
            "federator",
            ("ingest/federation/brokers", "bench/federation.py"),
            "tests/ingest/federation/brokers",
            ("docs/federation.md",),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Proof:
    """That all tests of a distribution have passed; `proof_of` alone makes one of a run.

    Attributes:
        content: Hash of all that they use.
        skipped: Files of which tests were skipped, which prove nothing.
    """

    content: str
    day: date
    commit: str
    skipped: tuple[str, ...] = ()


class NotProvenError(Exception):
    """A run that proves nothing; the message says why."""


def proof_of(
    distribution: Distribution,
    code: int,
    outcome: Outcome,
    contents: tuple[str, str],
    opened: Collection[Path],
    day: date,
    commit: str,
) -> Proof:
    """Return what a run of all tests of a distribution proves.

    Args:
        code: Of pytest.
        outcome: Of the run.
        contents: Hash before the run, and after it.
        opened: Files of the checkout that the run has read.

    Raises:
        NotProvenError: It does not prove that they pass.
    """
    counts = outcome.counts
    others = [word for word, count in counts.items() if count and word not in _FINE]
    if code != pytest.ExitCode.OK or others or outcome.failures or not counts.get("passed"):
        raise NotProvenError(f"it has not passed: exit code {code}, {counts}")
    if contents[0] != contents[1]:
        raise NotProvenError("files have changed while it ran")
    if unknown := sorted(set(opened) - used(distribution)):
        names = ", ".join(file.relative_to(ROOT).as_posix() for file in unknown[:_MOST_NAMED])
        raise NotProvenError(f"{len(unknown)} files that are read are not of its content: {names}")
    skipped = {(ROOT / path).resolve() for path, _, _ in outcome.skipped}
    if strange := skipped - set(distribution.files_of_tests()):
        raise NotProvenError(f"nobody knows of which file tests were skipped in {strange}")
    paths = sorted(file.relative_to(ROOT).as_posix() for file in skipped)
    return Proof(contents[1], day, commit, tuple(paths))


def proven_files(
    proofs: Mapping[str, Proof], content: Callable[[Distribution], str]
) -> dict[str, list[Path]]:
    """Return the files of tests that need not run, by distribution."""
    found = {}
    for name, distribution in DISTRIBUTIONS.items():
        proof = proofs.get(name)
        if proof is not None and proof.content == content(distribution):
            skipped = {ROOT / path for path in proof.skipped}
            found[name] = [one for one in distribution.files_of_tests() if one not in skipped]
    return found


def content_of(distribution: Distribution) -> str:
    """Return the hash of all that the tests of a distribution use, as it is now."""
    return hash_of(used(distribution))


def hash_of(files: Iterable[Path], read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    """Return a hash of the names and contents of files, of Python's version, and pytest's settings.

    Of `pyproject.toml` nothing else matters to a test that does not read it.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    others = [*sys.version_info[:2], settings["tool"]["pytest"]]
    whole = hashlib.sha256(json.dumps(others, sort_keys=True).encode())
    for file in sorted(files):
        name = file.relative_to(ROOT).as_posix()
        whole.update(f"{name} {hashlib.sha256(read(file)).hexdigest()}\n".encode())
    return whole.hexdigest()


def used(distribution: Distribution) -> set[Path]:
    """Return all files that the tests of a distribution use."""
    named = (*distribution.sources, distribution.tests, *distribution.data, _VERSIONS)
    files = {file for path in named for file in _all_of(ROOT / path)}
    above = [parent / "conftest.py" for parent in (ROOT / distribution.tests).parents]
    files |= {file for file in above if file.is_file() and file.is_relative_to(ROOT)}
    modules = {module_of(file.relative_to(ROOT)) for file in files if file.suffix == ".py"}
    for module in _imported(modules):
        files |= _files_of(module)
    return files


def read_proofs(file: Path = RECORD) -> dict[str, Proof]:
    """Read the record; nothing is proven without one."""
    if not file.is_file():
        return {}
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Proof(one["content"], one["day"], one["commit"], tuple(one["skipped"]))
        for name, one in found.items()
    }


def record(name: str, proof: Proof, file: Path = RECORD) -> None:
    """Replace what is on record of one distribution."""
    proofs = read_proofs(file) | {name: proof}
    parts = [_HEAD]
    for one, known in sorted(proofs.items()):
        skipped = "".join(f'\n    "{path}",' for path in known.skipped)
        parts.append(
            f'\n[{one}]\ncontent = "{known.content}"\nday = {known.day}\n'
            f'commit = "{known.commit}"\nskipped = [{skipped}{chr(10) if skipped else ""}]\n'
        )
    file.write_text("".join(parts), encoding="utf-8")


def _all_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _imported(modules: Iterable[str]) -> set[str]:
    """Return modules and all that these import, by themselves or by what they import."""
    graph = _graph()
    found = {name for name in modules if name in graph.modules}
    edge = list(found)
    while edge:
        near = graph.find_modules_directly_imported_by(edge.pop()) - found
        found |= near
        edge += near
    return found


def _files_of(module: str) -> set[Path]:
    """Return the file of a module, and of the packages that are imported before it."""
    parts = module.split(".")
    folders = [ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [folder / "__init__.py" for folder in folders] + [folders[-1].with_suffix(".py")]
    return {file for file in files if file.is_file()}


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)
