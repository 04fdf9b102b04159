"""Histories: as they are written they are read, and others are refused."""

import io
from pathlib import Path

import pytest

from resilience.errors import HistoryError
from resilience.history import Writer, decode_payload, encode_payload, read


def test_a_written_history_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        writer = Writer(stream, {"seed": 7}, lambda: 1.5)
        writer.write("p", "publish", "invoke", connection=1, id="p/1", retain=None)
    header, operations = read(path)
    assert header == {"history": 1, "seed": 7}
    expected = {"process": "p", "f": "publish", "type": "invoke", "time": 1_500_000}
    assert list(operations) == [{**expected, "connection": 1, "id": "p/1"}]


def test_a_line_cut_short_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text('{"history":1}\n{"process":"run","f":"drain","type":"ok","time":1}\n{"proc')
    _, operations = read(path)
    assert len(list(operations)) == 1


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text('{"history":1}\n{"proc\n{"process":"run","f":"drain","type":"ok","time":1}\n')
    _, operations = read(path)
    with pytest.raises(HistoryError, match="line 2 is not JSON"):
        list(operations)


@pytest.mark.parametrize("head", ["", "[]\n", "no\n", '{"history":2}\n', '{"seed":2}\n'])
def test_what_is_no_history_of_this_version_is_refused(tmp_path: Path, head: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(head)
    with pytest.raises(HistoryError, match="history"):
        read(path)


@pytest.mark.parametrize("size", [0, 5, 100, 1000])
def test_a_payload_tells_its_message_and_has_its_size(size: int) -> None:
    payload = encode_payload("pub/12", size)
    assert decode_payload(payload) == "pub/12"
    assert len(payload) >= size


def test_a_payload_that_was_touched_is_known() -> None:
    payload = encode_payload("pub/12", 40)
    for place in range(len(payload)):
        assert decode_payload(payload[:place]) is None
        changed = bytes([payload[place] ^ 1])
        assert decode_payload(payload[:place] + changed + payload[place + 1 :]) is None


def test_none_is_left_out_of_the_line() -> None:
    stream = io.StringIO()
    Writer(stream, {}, lambda: 0.0).write("p", "closed", "ok", connection=1, reason=None)
    assert "reason" not in stream.getvalue()
