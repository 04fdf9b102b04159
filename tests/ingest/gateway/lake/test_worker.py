from io import BytesIO
from pathlib import Path

from ingest.gateway.lake.exchange import (
    END,
    LENGTH,
    MESSAGES_OPERATION,
    RETAINED_OPERATION,
    HistoryPage,
    decode_frame,
    encode_frame,
)
from ingest.gateway.lake.worker import Worker, serve

REQUEST = encode_frame((RETAINED_OPERATION, ([0, 1, 2, 3],)))


class Closed(BytesIO):
    def flush(self) -> None:
        raise BrokenPipeError


def answers_to(worker: Worker, requests: bytes) -> list[object]:
    out = BytesIO()
    serve(worker, BytesIO(requests), out)
    out.seek(0)
    found = []
    while length := out.read(LENGTH.size):
        found.append(decode_frame(out.read(*LENGTH.unpack(length))))
    return found


def test_requests_are_answered_in_turn_until_there_are_no_more(tmp_path: Path) -> None:
    asked = encode_frame((MESSAGES_OPERATION, ("default", {0: (3, 9)}, ["#"], 10, None)))
    assert answers_to(Worker(tmp_path), REQUEST + asked) == [
        (END, {}),
        (END, HistoryPage([], {0: 3}, has_more=False)),
    ]
    assert answers_to(Worker(tmp_path), b"") == []
    assert answers_to(Worker(tmp_path), REQUEST[:2]) == []


def test_it_ends_when_nobody_reads_its_answers(tmp_path: Path) -> None:
    serve(Worker(tmp_path), BytesIO(REQUEST + REQUEST), Closed())
