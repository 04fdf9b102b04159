from datetime import UTC, date, datetime
from pathlib import Path

from tests.gate.full_run import MOST_AGE, FullRun, cost_name


def test_the_last_full_run_is_not_long_ago() -> None:
    last = FullRun.read()
    age = datetime.now(tz=UTC).date() - last.day
    assert age <= MOST_AGE, (
        f"all tests last ran on {last.day}, of {last.commit}: run `bin/test --full`, "
        "and commit tests/gate/full_run.toml"
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "full_run.toml"
    costs = {"tests/a.py": 12.0, "tests/b.py::TestIt::test_it": 3.0}
    FullRun(date(2026, 1, 31), "abc1234", costs | {"tests/cheap.py": 0.2}).write(file)
    assert FullRun.read(file) == FullRun(date(2026, 1, 31), "abc1234", costs)


def test_a_test_of_the_campaign_has_a_cost_of_its_own() -> None:
    nodeid = "tests/a.py::TestIt::test_it[1-x::y]"
    assert cost_name(nodeid, is_campaign=True) == "tests/a.py::TestIt::test_it"
    assert cost_name(nodeid, is_campaign=False) == "tests/a.py"
