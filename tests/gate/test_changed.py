from pathlib import PurePosixPath

from tests.gate.changed import as_many_as, concerned
from tests.gate.classes import ROOT, files_of_tests

DECODER = ROOT / "tests/ingest/protocol/test_decoder.py"


def test_who_imports_what_has_changed_is_run_the_nearest_first() -> None:
    found = concerned(["ingest/protocol/decoder.py"])
    gateway = ROOT / "tests/ingest/gateway/test_connection.py"
    assert found.index(DECODER) < found.index(gateway)
    assert ROOT / "tests/api/sql/test_checking.py" not in found


def test_a_test_is_concerned_by_itself_alone() -> None:
    assert concerned([DECODER.relative_to(ROOT).as_posix()])[0] == DECODER


def test_fixtures_concern_the_tests_below_their_folder() -> None:
    found = concerned(["tests/mqlake/log/conftest.py"])
    assert set((ROOT / "tests/mqlake/log").glob("test_*.py")) <= set(found)
    assert DECODER not in found


def test_what_is_no_module_concerns_who_names_it_and_the_folder_of_its_name() -> None:
    found = concerned(["docs/audit.md"])
    assert ROOT / "tests/docs/test_prose.py" in found
    assert DECODER not in found
    assert ROOT / "tests/bench/test_figures.py" not in concerned(["docs/x/nothing.md"])


def test_a_file_that_is_gone_concerns_nobody() -> None:
    assert concerned(["ingest/protocol/never_there.py"]) == []


def test_no_more_are_run_than_the_budget_allows_and_no_systems() -> None:
    names = ["tests/ingest/protocol/test_decoder.py", "tests/integration/test_up.py"]
    names += ["tests/mqlake/test_topics.py", "tests/mqlake/test_matching.py"]
    files = [ROOT / name for name in names]
    taken, others = as_many_as(files, {names[0]: 8.0, names[2]: 3.0}, 10)
    relative = [PurePosixPath(file.relative_to(ROOT)).as_posix() for file in taken]
    assert relative == [names[0], names[3]]
    assert others == [files[1], files[2]]


def test_tests_of_the_laboratory_run_when_a_change_concerns_them_alone() -> None:
    experiments = ROOT / "tests" / "lab" / "test_experiments.py"
    assert experiments in concerned(["ingest/balancer/placement.py"])
    assert experiments not in files_of_tests()
