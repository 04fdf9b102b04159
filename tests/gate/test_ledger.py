from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tests.gate.ledger import LEDGER, MOST_AGE, Entry, add_to_ledger, overdue, read_ledger

TODAY = date(2026, 3, 20)
ENTRY = Entry(TODAY, "tests/a.py::test_it[a b]", 3.5, "TimeoutError: 10 s", "a bound of 10 s")


def test_nothing_in_the_ledger_is_overdue() -> None:
    text = LEDGER.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| 2")]
    entries = read_ledger(text)
    assert len(entries) == len(rows), "a row has another form than `bin/test` gives it"
    assert not overdue(entries, datetime.now(tz=UTC).date())


def test_an_entry_is_read_as_it_was_added(tmp_path: Path) -> None:
    ledger = tmp_path / "flaky.md"
    ledger.write_text(LEDGER.read_text(encoding="utf-8").split("| --- |")[0], encoding="utf-8")
    strange = Entry(TODAY, "tests/a.py::test_it[a|b]", 0.2, "it said `a | b`")
    add_to_ledger([ENTRY, strange], ledger)
    read = read_ledger(ledger.read_text(encoding="utf-8"))
    assert read == [ENTRY, Entry(TODAY, "tests/a.py::test_it[a/b]", 0.2, "it said 'a / b'")]


def test_an_entry_is_overdue_after_two_weeks() -> None:
    assert overdue([ENTRY], TODAY + MOST_AGE) == []
    (sentence,) = overdue([ENTRY], TODAY + MOST_AGE + timedelta(days=1))
    assert ENTRY.test in sentence


def test_a_test_may_not_be_there_twice_without_a_cause() -> None:
    bare = Entry(TODAY, ENTRY.test, 1.0, "no")
    assert overdue([ENTRY, bare], TODAY) == []
    assert overdue([bare, Entry(TODAY, "tests/b.py::test_it", 1.0, "no")], TODAY) == []
    (sentence,) = overdue([bare, bare], TODAY)
    assert "2 times" in sentence
