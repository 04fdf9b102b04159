"""What stands before what in the log."""

import pytest

from ingest.session.client.checkpoint import ORDER, Before, CheckpointKind, write


@pytest.mark.parametrize("before", Before)
def test_records_are_written_in_the_order_of_what_relies_on_what(before: Before) -> None:
    relies_on = {
        CheckpointKind.PROGRESS: {CheckpointKind.MEMBER},
        CheckpointKind.SESSION: {CheckpointKind.MEMBER, CheckpointKind.PROGRESS},
        CheckpointKind.MARKS: {
            CheckpointKind.PROGRESS,
            CheckpointKind.MEMBERSHIP,
            CheckpointKind.SESSION,
        },
    }
    order = ORDER[before]
    for number, kind in enumerate(order):
        assert not relies_on.get(kind, set()) & set(order[number + 1 :])
    written: list[CheckpointKind] = []
    writers = {kind: lambda kind=kind: written.append(kind) for kind in reversed(CheckpointKind)}
    assert write(before, writers)
    assert written == list(order)


def test_every_end_of_a_session_has_its_own_record_last() -> None:
    for before in (Before.CONNACK, Before.SUBACK, Before.RELEASE, Before.END):
        assert ORDER[before][-1] is CheckpointKind.SESSION
    assert ORDER[Before.MARKS][-1] is CheckpointKind.MARKS


def test_what_relies_on_a_record_that_the_log_does_not_take_is_not_written() -> None:
    written: list[CheckpointKind] = []
    writers = {
        CheckpointKind.MEMBERSHIP: lambda: written.append(CheckpointKind.MEMBERSHIP),
        CheckpointKind.PROGRESS: lambda: False,
        CheckpointKind.MARKS: lambda: written.append(CheckpointKind.MARKS),
    }
    assert not write(Before.MARKS, writers)
    assert written == [CheckpointKind.MEMBERSHIP]


def test_there_need_not_be_all_kinds() -> None:
    written: list[str] = []
    assert write(Before.CONNACK, {CheckpointKind.SESSION: lambda: written.append("session")})
    assert written == ["session"]
