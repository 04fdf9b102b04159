from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.gate import __main__ as gate
from tests.gate import distributions
from tests.gate.classes import ROOT, files_of_tests
from tests.gate.distributions import (
    DISTRIBUTIONS,
    Distribution,
    NotProvenError,
    Proof,
    content_of,
    hash_of,
    proof_of,
    proven_files,
    read_proofs,
    record,
    used,
)
from tests.gate.outcome import Failure, Outcome
from tests.gate.reads import source_of

TODAY = date(2026, 1, 31)
CODEC = DISTRIBUTIONS["codec"]
PROOF = Proof("abc", TODAY, "1234567", ("tests/ingest/protocol/test_fuzz.py",))
FAILURE = Failure("tests/ingest/protocol/test_fuzz.py::test_it", "no", may_be_noise=True, load=1.0)


@cache
def used_by(name: str) -> frozenset[str]:
    return frozenset(file.relative_to(ROOT).as_posix() for file in used(DISTRIBUTIONS[name]))


def outcome(**changes: Any) -> Outcome:
    found: dict[str, Any] = {
        "counts": {"passed": 3},
        "skipped": [],
        "failures": [],
        "costs": {},
        "longest": [],
        "starts": {},
        "pace": 1.0,
    }
    return Outcome(**{**found, **changes})


def prove(
    code: int = 0,
    contents: tuple[str, str] = ("abc", "abc"),
    opened: tuple[str, ...] = (),
    **changes: Any,
) -> Proof:
    files = [ROOT / path for path in opened]
    return proof_of(CODEC, code, outcome(**changes), contents, files, TODAY, "1234567")


def test_a_distribution_uses_itself_what_it_imports_and_the_data_of_its_tests() -> None:
    codec, faults, federator = map(used_by, ("codec", "faults", "federator"))
    assert {
        "ingest/protocol/decoder.py",
        "ingest/__init__.py",
        "tests/ingest/protocol/test_decoder.py",
        "tests/ingest/protocol/conftest.py",
        "tests/ingest/wire.py",
        "tests/wire/publish-5.0.json",
        "tests/conftest.py",
        "conf/requirements-dev.lock",
    } <= codec
    assert "ingest/protocol/decoder.py" in faults
    assert "resilience/scenarios/crash.toml" in faults
    assert {
        "ingest/federation/envelope.py",
        "mqlake/topics/matching.py",
        "docs/federation.md",
    } <= federator
    for name, found in (("codec", codec), ("faults", faults), ("federator", federator)):
        others = ("api/", "streaming/", "ingest/gateway/", "rules/", "launcher/parts.py")
        assert [path for path in found if path.startswith(others)] == [], name


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_one_byte_of_any_file_that_it_uses_makes_its_tests_run(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    files = used(distribution)
    contents = {file: file.read_bytes() for file in files}
    proofs = {name: Proof(hash_of(files, contents.__getitem__), TODAY, "1234567")}

    def runs(changed: Mapping[Path, bytes]) -> bool:
        def content(other: Distribution) -> str:
            return hash_of(changed, changed.__getitem__) if other is distribution else ""

        return name not in proven_files(proofs, content)

    assert not runs(contents)
    for file in files:
        assert runs({**contents, file: contents[file] + b" "}), file
    assert runs({file: contents[file] for file in files - {min(files)}})
    assert runs({**contents, ROOT / "resilience" / "new.py": b""})


def test_a_gate_leaves_out_what_is_proven_but_for_files_with_skipped_tests() -> None:
    left_out = proven_files({"codec": PROOF}, lambda one: "abc")
    assert left_out.keys() == {"codec"}
    fuzz = ROOT / PROOF.skipped[0]
    assert {*left_out["codec"], fuzz} == {*CODEC.files_of_tests()}
    assert fuzz not in left_out["codec"]
    assert proven_files({"codec": PROOF}, lambda one: "abd") == {}
    assert proven_files({}, lambda one: "abc") == {}


def test_each_has_tests_and_shares_none() -> None:
    files = [file for one in DISTRIBUTIONS.values() for file in one.files_of_tests()]
    assert len(files) == len(set(files))
    assert set(files) <= set(files_of_tests())
    assert all(one.files_of_tests() for one in DISTRIBUTIONS.values())
    folders = {file.parent.name for file in (ROOT / "distributions").glob("*/pyproject.toml")}
    assert folders == DISTRIBUTIONS.keys()


def test_a_run_that_passed_is_a_proof_of_the_content_it_had() -> None:
    assert prove(opened=("ingest/protocol/decoder.py",)) == Proof("abc", TODAY, "1234567")
    skipped = [(str(ROOT / PROOF.skipped[0]), 12, "no such thing here")]
    assert prove(counts={"passed": 3, "skipped": 1}, skipped=skipped) == PROOF


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda: prove(code=1), "has not passed"),
        (lambda: prove(code=5), "has not passed"),
        (lambda: prove(counts={}), "has not passed"),
        (lambda: prove(counts={"skipped": 3}), "has not passed"),
        (lambda: prove(counts={"passed": 3, "failed": 1}), "has not passed"),
        (lambda: prove(counts={"passed": 3, "error": 1}), "has not passed"),
        (lambda: prove(counts={"passed": 3, "deselected": 1}), "has not passed"),
        (lambda: prove(counts={"passed": 3, "xfailed": 1}), "has not passed"),
        (lambda: prove(failures=[FAILURE]), "has not passed"),
        (lambda: prove(contents=("abc", "abd")), "changed while it ran"),
        (lambda: prove(opened=("api/app.py",)), "not of its content: api/app.py"),
        (lambda: prove(skipped=[(str(ROOT / "tests/cases.py"), 1, "no")]), "nobody knows"),
    ],
)
def test_no_other_run_is_a_proof(run: Callable[[], Proof], why: str) -> None:
    with pytest.raises(NotProvenError, match=why):
        run()


class JudgedGate(gate.Gate):
    """Has a run of pytest come to what it is given, without one."""

    def __init__(self, folder: Path, code: int, outcome: Outcome) -> None:
        super().__init__(folder, is_full=True, limit_minutes=None)
        self._code, self._outcome = code, outcome

    def _pytest(self, stage: str, workers: int, tests: Sequence[Path | str], *options: str) -> int:
        file = self._folder / f"{stage}.json"
        self._outcome.write(file)
        self._plan = replace(self._plan, earlier=[*self._plan.earlier, str(file)])
        return self._code


@pytest.mark.parametrize(
    ("code", "found", "is_proven"),
    [
        (0, outcome(), True),
        (
            0,
            outcome(counts={"passed": 3, "skipped": 1}, skipped=[("tests/cases.py", 1, "")]),
            False,
        ),
        (1, outcome(counts={"passed": 3, "failed": 1}, failures=[FAILURE] * 4), False),
        (2, outcome(), False),
    ],
)
def test_only_a_run_that_passed_comes_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, found: Outcome, is_proven: bool
) -> None:
    file = tmp_path / "proven.toml"
    monkeypatch.setattr(gate, "record", partial(record, file=file))
    monkeypatch.setattr(gate, "_git", lambda *arguments: "1234567")
    # A second run of what may be noise, which passes, makes a gate pass and proves nothing.
    monkeypatch.setattr(JudgedGate, "_passes_alone", lambda self: True)
    assert JudgedGate(tmp_path, code, found).distribution("codec") == (code in {0, 1})
    proofs = read_proofs(file)
    assert set(proofs) == ({"codec"} if is_proven else set())
    if is_proven:
        assert proofs["codec"].content == content_of(CODEC)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "proven.toml"
    assert read_proofs(file) == {}
    record("codec", PROOF, file)
    record("faults", Proof("def", TODAY, "1234567"), file)
    record("codec", Proof("abd", TODAY, "1234567", PROOF.skipped), file)
    assert read_proofs(file) == {
        "codec": Proof("abd", TODAY, "1234567", PROOF.skipped),
        "faults": Proof("def", TODAY, "1234567"),
    }


def test_what_is_on_record_is_of_distributions_that_there_are() -> None:
    assert read_proofs().keys() <= DISTRIBUTIONS.keys()
    assert content_of(CODEC) == content_of(CODEC)


def test_what_is_compiled_counts_as_its_source() -> None:
    codec = ROOT / "ingest" / "protocol"
    compiled = codec / "__pycache__" / "decoder.cpython-311.pyc"
    assert source_of(str(compiled)) == codec / "decoder.py"
    assert source_of("ingest/protocol/decoder.py") == codec / "decoder.py"
    for other in ("/etc/hosts", str(ROOT / ".runtime" / "lock"), "ingest/protocol", "nothing.py"):
        assert source_of(other) is None
    assert distributions.RECORD.parent == ROOT / "tests" / "gate"
