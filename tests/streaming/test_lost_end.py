"""Checkpoints that remember more than the log has; without Spark."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.lost_end import LEFT_FILE, LogGap, note_gaps, noted_gaps
from mqlake.records.messages import EVENTS, INBOUND
from rules.actions.contract import NewRecord
from streaming.log.checkpoints import (
    committed,
    ends_of,
    planned,
    settled,
    write_positions,
    write_settled,
)
from streaming.reading.lost_end import REASON, pass_over_lost_end, pass_over_what_is_told

GAP = LogGap(INBOUND, 0, 100, 1000)
OWN = ("router", "rules")
"""Queries of the router."""


def _pass_over(folder: Path, told: list[NewRecord]) -> dict[str, int]:
    """Do what the router does, then what the lake does."""
    pass_over_lost_end(folder, OWN, told.extend, ManualClock())
    assert noted_gaps(folder) == []
    return pass_over_what_is_told(folder, OWN)


def _checkpoint(folder: Path, batches: dict[int, dict[str, int]], *, done: bool = True) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    for batch, offsets in batches.items():
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({INBOUND: offsets}), "17"]
        (folder / "offsets" / str(batch)).write_text("\n".join(lines))
        if done or batch < max(batches):
            (folder / "commits" / str(batch)).write_text("v1\n{}")
    return folder


def test_a_query_goes_on_behind_the_gap_and_tells_what_it_had_read(tmp_path: Path) -> None:
    history = _checkpoint(tmp_path / "history", {3: {"0": 90, "1": 50}, 4: {"0": 150, "1": 60}})
    run = _checkpoint(tmp_path / "stateful" / "run", {0: {"0": 120, "1": 60}}, done=False)
    note_gaps(tmp_path, [GAP])
    told: list[NewRecord] = []
    assert not any(_pass_over(tmp_path, told).values())
    assert planned(history) == {INBOUND: {0: 1000, 1: 60}}
    assert ends_of(history, 3) == {INBOUND: {0: 90, 1: 50}}
    assert planned(run) == {INBOUND: {0: 1000, 1: 60}}
    lines = (history / "offsets" / "4").read_text().splitlines()
    assert (lines[0], lines[3]) == ("v1", "17")
    (record,) = told
    assert record.log_topic == EVENTS
    event = json.loads(record.value or b"")
    assert (event["reason"], event["count"], event["topic"]) == (REASON, 50, INBOUND)
    assert "offsets 100 to 149 of partition 0" in event["detail"]
    assert "history" in event["detail"]
    assert noted_gaps(tmp_path, LEFT_FILE) == []


def test_a_gap_that_nobody_stood_in_is_not_told(tmp_path: Path) -> None:
    router = _checkpoint(tmp_path / "router", {0: {"0": 100}})
    write_positions(router, {INBOUND: {0: 150}})
    note_gaps(tmp_path, [GAP])
    told: list[NewRecord] = []
    _pass_over(tmp_path, told)
    assert told == []
    assert committed(router) == planned(router) == {INBOUND: {0: 1000}}


def test_what_is_settled_goes_on_behind_the_gap_and_the_lake_follows(tmp_path: Path) -> None:
    """The router tells for all; then the lake, which may start later, moves its own."""
    router = tmp_path / "router"
    write_settled(router, {INBOUND: {0: 120, 1: 7}})
    history = _checkpoint(tmp_path / "history", {3: {"0": 110}})
    note_gaps(tmp_path, [GAP])
    told: list[NewRecord] = []
    pass_over_lost_end(tmp_path, OWN, told.extend, ManualClock())
    assert committed(router) == settled(router) == {INBOUND: {0: 1000, 1: 7}}
    assert planned(history) == {INBOUND: {0: 110}}, "the lake does that itself"
    assert noted_gaps(tmp_path) == []
    assert [json.loads(one.value or b"")["count"] for one in told] == [20], "once, for all of them"
    pass_over_what_is_told(tmp_path, OWN)
    assert planned(history) == {INBOUND: {0: 1000}}


def test_a_query_before_a_gap_may_take_it_with_one_batch(tmp_path: Path) -> None:
    behind = _checkpoint(tmp_path / "state", {0: {"0": 99, "1": 7}})
    note_gaps(tmp_path, [GAP])
    told: list[NewRecord] = []
    assert _pass_over(tmp_path, told) == {"state": 900}
    assert planned(behind) == {INBOUND: {0: 99, 1: 7}}
    assert told == []
    assert _pass_over(tmp_path, told) == {}


def test_what_the_log_does_not_take_is_told_at_the_next_start(tmp_path: Path) -> None:
    history = _checkpoint(tmp_path / "history", {4: {"0": 150}})
    note_gaps(tmp_path, [GAP])

    def refuse(_records: Sequence[NewRecord]) -> None:
        raise LogError("no answer", definite=False)

    with pytest.raises(LogError):
        pass_over_lost_end(tmp_path, OWN, refuse, ManualClock())
    assert planned(history) == {INBOUND: {0: 150}}
    assert noted_gaps(tmp_path) == [GAP]
