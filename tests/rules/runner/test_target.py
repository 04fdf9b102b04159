import asyncio

import pytest

from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from rules.actions.contract import Failure, NewRecord, refusal
from rules.runner.target import KafkaTarget

pytestmark = pytest.mark.anyio


def a_log() -> MemoryLog:
    log = MemoryLog()
    log.create("t", 1)
    return log


def records(count: int, *, first: int = 0) -> list[NewRecord]:
    return [NewRecord("t", b"k", b"%d" % number, [], 7) for number in range(first, first + count)]


def values(log: MemoryLog) -> list[bytes | None]:
    return [record.value for record in log.records("t")]


async def test_records_are_appended_in_order_with_what_they_carry() -> None:
    log = a_log()
    target = KafkaTarget(MemoryLogWriter(log))
    assert await target.append([]) == {}
    given = NewRecord("t", None, b"x", [("h", b"v")], 9)
    assert await target.append([*records(2), given]) == {}
    assert values(log) == [b"0", b"1", b"x"]
    record = log.records("t")[-1]
    assert (record.key, record.headers, record.timestamp_ms) == (None, [("h", b"v")], 9)
    await target.close()


async def test_what_went_wrong_is_told_by_index() -> None:
    log = a_log()
    target = KafkaTarget(MemoryLogWriter(log, max_record_bytes=100))
    large = NewRecord("t", b"k", bytes(200), [])
    problems = await target.append([*records(1), large, *records(1, first=1)])
    assert list(problems) == [1]
    assert refusal(problems[1]).failure is Failure.REFUSED
    log.fail_next(LogError("nobody knows", definite=False))
    problems = await target.append(records(2, first=2))
    assert list(problems) == [0]
    assert refusal(problems[0]).failure is Failure.UNAVAILABLE
    later = refusal(LogError("too few replicas", definite=True, passing=True))
    assert later.failure is Failure.UNAVAILABLE
    await target.close()


async def test_a_full_queue_is_waited_out_and_order_is_kept() -> None:
    log = a_log()
    target = KafkaTarget(MemoryLogWriter(log, max_queued_records=3))
    log.hold_reports()
    first = asyncio.ensure_future(target.append(records(10)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(target.append(records(5, first=10)))
    for _ in range(3):
        await asyncio.sleep(0.01)
    assert not first.done()
    log.release_reports()
    assert (await first, await second) == ({}, {})
    assert values(log) == [b"%d" % number for number in range(15)]
    await target.close()
