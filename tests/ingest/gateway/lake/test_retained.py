import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ingest.gateway.lake import retained
from ingest.gateway.lake.exchange import (
    BYTES_IN_FRAME,
    END,
    ERROR,
    RETAINED_OPERATION,
    ROWS,
    ROWS_IN_FRAME,
)
from ingest.gateway.lake.worker import Worker
from ingest.gateway.store.database import Database
from ingest.gateway.store.retained import RetainedRow, RetainedStore
from mqlake.clock import ManualClock
from mqlake.tables.catalogue import RETAINED
from tests.ingest.gateway.lake.tables import append


def a_row(topic: str, **more: Any) -> dict[str, Any]:
    return {
        "tenant": "default",
        "topic": topic,
        "payload": b"1",
        "qos": 1,
        "id": "00" * 16,
        "client_id": "c1",
        "ts": 1_700_000_000_123_000,
        "log_partition": 2,
        "log_offset": 7,
        **more,
    }


def snapshot(data_dir: Path) -> tuple[list[RetainedRow], dict[int, int]]:
    found: list[RetainedRow] = []
    *frames, (kind, offsets) = Worker(data_dir).answer(RETAINED_OPERATION, ([0, 1, 2, 3],))
    assert kind == END
    for kind, rows in frames:
        assert kind == ROWS
        assert 0 < len(rows) <= ROWS_IN_FRAME
        found.extend(rows)
    return found, offsets


def refusal(data_dir: Path) -> str:
    *_, (kind, text) = Worker(data_dir).answer(RETAINED_OPERATION, ([0, 1, 2, 3],))
    assert kind == ERROR
    assert isinstance(text, str)
    return text


def test_rows_come_as_the_store_takes_them(tmp_path: Path) -> None:
    append(
        tmp_path,
        RETAINED,
        [
            a_row("a", properties='{"content_type":"ü"}', expires_at=1_700_000_060_123_000),
            a_row("b/ü", payload=b"\0\xff", client_id=None),
        ],
        next_offsets={0: 5, 2: 8},
    )
    rows, offsets = snapshot(tmp_path)
    assert offsets == {0: 5, 2: 8}
    first, second = sorted(rows)
    assert first == RetainedRow(
        tenant="default",
        topic_name="a",
        payload=b"1",
        qos=1,
        properties='{"content_type":"ü"}'.encode(),
        client_id="c1",
        received_at_ms=1_700_000_000_123,
        expires_at_ms=1_700_000_060_123,
        shard=2,
        rank=7,
    )
    assert second[1:6] == ("b/ü", b"\0\xff", 1, None, "")
    assert second.expires_at_ms is None
    store = RetainedStore(Database(None), ManualClock())
    assert store.load(rows) == 2


def test_rows_come_in_sorted_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "SORTED_ROWS", 3)
    monkeypatch.setattr(retained, "SORTED_BYTES", 100)
    topics = "d", "b", "ü", "a", "f", "e", "c"
    rows = [a_row(topic, payload=b"x" * (100 if topic == "a" else 1)) for topic in topics]
    rows[1]["log_partition"] = 3
    append(tmp_path, RETAINED, rows)
    names = "".join(row.topic_name for row in snapshot(tmp_path)[0])
    assert names == "dübacef"


def test_no_table_is_an_empty_snapshot_that_knows_no_offsets(tmp_path: Path) -> None:
    assert snapshot(tmp_path) == ([], {})
    (tmp_path / "tables" / "retained" / "_delta_log").mkdir(parents=True)
    assert snapshot(tmp_path) == ([], {})


def test_offsets_are_those_of_the_newest_commit_that_says_any(tmp_path: Path) -> None:
    append(tmp_path, RETAINED, [a_row("a")])
    assert snapshot(tmp_path)[1] == {}
    append(tmp_path, RETAINED, [a_row("b")], next_offsets={0: 5})
    append(tmp_path, RETAINED, [a_row("c")], next_offsets={0: 6})
    append(tmp_path, RETAINED, [], metadata='"by hand"')
    append(tmp_path, RETAINED, [], metadata="not JSON")
    append(tmp_path, RETAINED, [], metadata='{"next_offsets": {"a": 1}}')
    table = DeltaTable(str(tmp_path / "tables" / "retained"))
    table.optimize.compact()
    for _ in range(20):
        append(tmp_path, RETAINED, [])
    rows, offsets = snapshot(tmp_path)
    assert sorted(row.topic_name for row in rows) == ["a", "b", "c"]
    assert offsets == {0: 6}


def test_many_rows_come_in_pieces(tmp_path: Path) -> None:
    count = 2 * ROWS_IN_FRAME + 1
    append(tmp_path, RETAINED, [a_row(f"t/{number}") for number in range(count)])
    rows, _ = snapshot(tmp_path)
    assert {row.topic_name for row in rows} == {f"t/{number}" for number in range(count)}


def test_large_payloads_come_one_by_one(tmp_path: Path) -> None:
    large = bytes(BYTES_IN_FRAME)
    append(tmp_path, RETAINED, [a_row("a", payload=large), a_row("b", payload=large)])
    *frames, _ = Worker(tmp_path).answer(RETAINED_OPERATION, ([0, 1, 2, 3],))
    assert [len(rows) for _, rows in frames] == [1, 1]


def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, RETAINED, [a_row("a")])
    for file in (tmp_path / "tables" / "retained").glob("*.parquet"):
        file.unlink()
    assert re.match("table retained .* cannot be read", refusal(tmp_path))
    (tmp_path / "tables" / "retained" / "_delta_log" / f"{0:020}.json").write_text("{")
    assert re.match("table retained .* cannot be read", refusal(tmp_path))
    assert "\n" not in refusal(tmp_path)
    shutil.rmtree(tmp_path / "tables")
    assert snapshot(tmp_path) == ([], {})


def test_only_rows_of_the_shards_asked_for_come(tmp_path: Path) -> None:
    append(
        tmp_path,
        RETAINED,
        [a_row(f"a/{shard}", log_partition=shard) for shard in range(4)],
        next_offsets=dict.fromkeys(range(4), 8),
    )
    *frames, (kind, _) = Worker(tmp_path).answer(RETAINED_OPERATION, ([1, 3],))
    assert kind == END
    assert [row.topic_name for _, rows in frames for row in rows] == ["a/1", "a/3"]
