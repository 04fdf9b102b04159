"""What stands before what in the log."""

import pytest

from ingest.session.checkpoint import ORDER, Before, Kind, write


@pytest.mark.parametrize("before", Before)
def test_records_are_written_in_the_order_of_what_relies_on_what(before: Before) -> None:
    relies_on = {
        Kind.PROGRESS: {Kind.MEMBER},
        Kind.SESSION: {Kind.MEMBER, Kind.PROGRESS},
        Kind.MARKS: {Kind.PROGRESS, Kind.PART, Kind.SESSION},
    }
    order = ORDER[before]
    for number, kind in enumerate(order):
        assert not relies_on.get(kind, set()) & set(order[number + 1 :])
    written: list[Kind] = []
    writers = {kind: lambda kind=kind: written.append(kind) for kind in reversed(Kind)}
    assert write(before, writers)
    assert written == list(order)


def test_every_end_of_a_session_has_its_own_record_last() -> None:
    for before in (Before.CONNACK, Before.SUBACK, Before.RELEASE, Before.END):
        assert ORDER[before][-1] is Kind.SESSION
    assert ORDER[Before.MARKS][-1] is Kind.MARKS


def test_what_relies_on_a_record_that_the_log_does_not_take_is_not_written() -> None:
    written: list[Kind] = []
    writers = {
        Kind.PART: lambda: written.append(Kind.PART),
        Kind.PROGRESS: lambda: False,
        Kind.MARKS: lambda: written.append(Kind.MARKS),
    }
    assert not write(Before.MARKS, writers)
    assert written == [Kind.PART]


def test_there_need_not_be_all_kinds() -> None:
    written: list[str] = []
    assert write(Before.CONNACK, {Kind.SESSION: lambda: written.append("session")})
    assert written == ["session"]
