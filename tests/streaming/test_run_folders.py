"""When the checkpoint of a run says that it has done what it was to do; no Spark."""

import os
import time
from pathlib import Path

import pytest

from mqlake.records.messages import INBOUND
from mqlake.records.rules import LeftUnread, OffsetRange, Span
from rules.language.compiler import compile_rule
from rules.language.plan import encode_plan
from streaming.jobs.stateful import QUIET_SECONDS, RunCheckpoints, checkpoints
from streaming.rules.plans import StatefulRun
from streaming.rules.run_marks import failure, is_ended, left_unread
from streaming.settings.lake import LakeSettings
from tests.streaming.written_checkpoints import note_done, note_end


def a_run(time_argument: str, *, ended: bool = True, ends: tuple[int, ...] = (9, 7)) -> StatefulRun:
    sql = f"SELECT count(*) AS n FROM \"a\" GROUP BY tumble({time_argument}, '1 minute')"
    plan = compile_rule(sql).plan
    assert plan is not None
    range_ = OffsetRange((5, 5), ends if ended else None)
    span = Span(
        1,
        ("a",),
        None,
        (),
        None,
        {INBOUND: range_},
        plan=encode_plan(plan),
        change=3,
        ended_at_ms=1000 if ended else None,
    )
    return StatefulRun("default", "r", span)


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(data_dir=tmp_path)


def note(
    settings: LakeSettings, run: StatefulRun, batch: int, first: int, watermark: int = 0
) -> Path:
    """Write what Spark notes of a finished batch."""
    folder = checkpoints(settings) / run.name
    ends = {INBOUND: {"0": first, "1": 8}}
    note_end(folder, batch, ends, watermark, other_source="17")
    return note_done(folder, batch)


def test_windows_by_receipt_are_waited_for(settings: LakeSettings) -> None:
    run, folders = a_run("timestamp"), RunCheckpoints(settings)
    assert not folders.has_done(run)
    note(settings, run, 0, 8, 2000)
    assert not folders.has_done(run), "a record is to come"
    note(settings, run, 1, 9, 999)
    assert not folders.has_done(run), "a window is to come"
    note(settings, run, 2, 9, 1000)
    assert folders.has_done(run)
    assert not folders.has_done(a_run("timestamp", ended=False))


def test_a_run_that_counts_for_no_record_has_nothing_to_wait_for(
    settings: LakeSettings,
) -> None:
    assert RunCheckpoints(settings).has_done(a_run("timestamp", ends=(5, 5)))


def test_what_the_last_message_completes_is_waited_for(settings: LakeSettings) -> None:
    run, folders = a_run("payload.ts"), RunCheckpoints(settings)
    commit = note(settings, run, 4, 9)
    assert not folders.has_done(run)
    old = time.time() - 2 * QUIET_SECONDS
    os.utime(commit, (old, old))
    assert folders.has_done(run), "nothing more comes"
    os.utime(commit)
    note(settings, run, 5, 9)
    assert folders.has_done(run)


def test_what_is_left_of_a_run_is_known_and_stays_noted(settings: LakeSettings) -> None:
    run, folders = a_run("timestamp", ends=(9, 7, 3)), RunCheckpoints(settings)
    assert folders.unread(run) == {INBOUND: {0: (5, 9), 1: (5, 7), 2: (0, 3)}}
    seen = [folders.reached(run)]
    note(settings, run, 0, 7, 500)
    seen.append(folders.reached(run))
    assert folders.unread(run) == {INBOUND: {0: (7, 9), 2: (0, 3)}}
    note(settings, run, 1, 7, 900)
    seen.append(folders.reached(run))
    assert seen[0] != seen[1] != seen[2]
    # What comes behind its end is no progress of it.
    ended = a_run("timestamp")
    note(settings, ended, 2, 10, 2000)
    reached = folders.reached(ended)
    note(settings, ended, 3, 12, 3000)
    assert folders.reached(ended) == reached
    left = LeftUnread(1, 3, 99, "why", folders.unread(run))
    folders.end(run.name, left)
    assert left_unread(settings.data_dir, run.name) == left
    assert left.count == 3


def test_how_often_a_run_was_begun_without_getting_further_is_known(
    settings: LakeSettings,
) -> None:
    run, folders = a_run("payload.ts"), RunCheckpoints(settings)
    assert [folders.note_try(run) for _ in range(3)] == [1, 2, 3]
    note(settings, run, 0, 7)
    assert [folders.note_try(run) for _ in range(2)] == [1, 2]
    folders.forget_tries(run.name)
    folders.forget_tries(run.name)
    assert folders.note_try(run) == 1


def test_what_ended_leaves_a_mark_until_nobody_knows_it(settings: LakeSettings) -> None:
    run, folders = a_run("timestamp"), RunCheckpoints(settings)
    note(settings, run, 0, 9)
    assert not is_ended(settings.data_dir, run.name)
    folders.end(run.name, None)
    assert is_ended(settings.data_dir, run.name)
    assert left_unread(settings.data_dir, run.name) is None
    assert [path.name for path in (checkpoints(settings) / run.name).iterdir()] == ["ended"]
    folders.forget({run.name})
    assert folders.is_ended(run.name)
    assert failure(settings.data_dir, run.name) is None
    folders.fail(run.name, "why")
    assert failure(settings.data_dir, run.name) == "why"
    folders.forget(set())
    assert not folders.is_ended(run.name)
