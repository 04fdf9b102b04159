"""How far a query has certainly come, by its batches."""

import json
from pathlib import Path

from mqlake.records.messages import EVENTS, INBOUND
from streaming.log.checkpoints import committed
from streaming.log.sources import EARLIEST, starting_offsets
from tests.streaming.written_checkpoints import note_done, note_end


def batch(folder: Path, number: int, ends: dict[str, dict[str, int]], *, done: bool = True) -> None:
    note_end(folder, number, ends)
    if done:
        note_done(folder, number)


def test_what_is_certainly_done_is_the_last_batch_that_was_committed(tmp_path: Path) -> None:
    assert committed(tmp_path) is None
    batch(tmp_path, 9, {INBOUND: {"0": 1}})
    batch(tmp_path, 10, {INBOUND: {"0": 5, "1": 6}, EVENTS: {"0": 7}})
    batch(tmp_path, 11, {INBOUND: {"0": 50}}, done=False)
    assert committed(tmp_path) == {INBOUND: {0: 5, 1: 6}, EVENTS: {0: 7}}
    (tmp_path / "offsets" / "10").write_text("torn")
    assert committed(tmp_path) == {INBOUND: {0: 1}}


def test_offsets_are_written_as_the_connector_reads_them() -> None:
    assert json.loads(
        starting_offsets({INBOUND: {0: 10, 1: 20, 2: 30}}, {INBOUND: 2, EVENTS: 1})
    ) == {INBOUND: {"0": 10, "1": 20}, EVENTS: {"0": EARLIEST}}
