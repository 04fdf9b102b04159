"""Who waits for a record of a key hears when the log has it, or a later one."""

import asyncio
from typing import Any, cast

import pytest

from ingest.gateway.base.ending import Ending
from ingest.gateway.log.keyed_writer import RETRY_SECONDS, KeyedWriter
from mqlake.errors import LogError
from mqlake.log.contract import LogFull, LogReader, LogWriter

pytestmark = pytest.mark.anyio

KEY, OTHER = b"key", b"other"
TIMED_OUT = LogError("timed out", definite=False)


class Log:
    """Takes records and answers when it is told to."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.refuses: LogError | None = None

    def append(self, *record: Any, partition: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.reports.append(record[4])

    def answer(self, number: int, error: LogError | None = None) -> None:
        self.reports[number](0, 0, error)


class Waiter:
    def __init__(self) -> None:
        self.log = Log()
        self.heard: list[int] = []
        self.written = 0
        ending = Ending(asyncio.Event(), cast("LogReader", None))
        log = cast("LogWriter", self.log)
        self.writer = KeyedWriter(
            log, "topic", ending, lambda report: report(), asyncio.get_running_loop()
        )

    def write(self, key: bytes = KEY) -> bool:
        number, self.written = self.written, self.written + 1
        return self.writer.append_until_taken(key, b"", [], 0, lambda: self.heard.append(number))


async def test_who_waits_hears_of_the_own_record_and_not_of_later_ones() -> None:
    one = Waiter()
    for key in (KEY, OTHER, KEY):
        one.write(key)
    one.log.answer(1)
    one.log.answer(0)
    assert one.heard == [1, 0]
    one.writer.when_taken(KEY, lambda: one.heard.append(10))
    assert one.heard == [1, 0], "the last record is on its way"
    one.log.answer(2)
    assert one.heard == [1, 0, 2, 10]
    one.writer.when_taken(KEY, lambda: one.heard.append(11))
    assert one.heard[-1] == 11


@pytest.mark.parametrize("again", [False, True])
async def test_a_record_that_failed_is_there_with_the_next_one(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, later = Waiter(), list[Any]()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, do: later.append((seconds, do)))
    one.write()
    if again:
        one.write()
    one.log.answer(0, TIMED_OUT)
    assert one.heard == []
    for seconds, do in later:
        assert seconds == RETRY_SECONDS
        do()
    assert len(one.log.reports) == 2
    one.log.answer(1)
    assert one.heard == ([0, 1] if again else [0])
    assert one.writer.is_saved


@pytest.mark.parametrize("error", [LogFull("full"), LogError("too large", definite=True)])
async def test_who_waits_hears_nothing_of_a_record_that_the_log_refuses(error: LogError) -> None:
    one = Waiter()
    one.log.refuses = error
    assert one.write() is isinstance(error, LogFull), "it comes again"
    assert one.heard == []
    one.log.refuses = None
    one.write()
    one.log.answer(0)
    assert one.heard == [0, 1]


async def test_who_waits_for_all_hears_when_the_log_has_the_last_of_each() -> None:
    one = Waiter()
    for key in (KEY, OTHER, KEY):
        one.write(key)
    one.writer.when_all_taken(b"k", lambda: one.heard.append(10))
    one.writer.when_all_taken(b"none", lambda: one.heard.append(11))
    assert one.heard == [11]
    one.write()
    one.log.answer(1)
    one.log.answer(0)
    one.log.answer(2, TIMED_OUT)
    assert 10 not in one.heard
    one.log.answer(3)
    assert one.heard[-2:] == [10, 3]


async def test_nobody_waits_for_a_record_that_does_not_count() -> None:
    one = Waiter()
    one.write()
    one.log.answer(0, TIMED_OUT)
    one.writer.when_all_taken(KEY, lambda: one.heard.append(10))
    one.writer.forget(KEY)
    assert 10 in one.heard
    assert one.writer.is_saved
    one.writer.when_all_taken(KEY, lambda: one.heard.append(11))
    assert 11 in one.heard
