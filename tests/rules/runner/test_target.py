import asyncio
import itertools
from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.processes.log_disk import LogDisk
from mqlake.settings import LogDiskSettings
from rules.actions.contract import Failure, NewRecord, refusal
from rules.runner.target import ALONE, ASK_AGAIN_SECONDS, KafkaTarget
from tests.rules.runner.memory import BatchWriter, MemoryCluster
from tests.waiting import turns

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
    target = KafkaTarget(MemoryLogWriter(log), MemoryCluster(log), ManualClock())
    assert await target.append([]) == {}
    given = NewRecord("t", None, b"x", [("h", b"v")], 9)
    assert await target.append([*records(2), given]) == {}
    assert values(log) == [b"0", b"1", b"x"]
    record = log.records("t")[-1]
    assert (record.key, record.headers, record.timestamp_ms) == (None, [("h", b"v")], 9)
    await target.close()


async def test_what_went_wrong_is_told_by_index() -> None:
    log = a_log()
    target = KafkaTarget(MemoryLogWriter(log), MemoryCluster(log, {"t": 100}), ManualClock())
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
    target = KafkaTarget(
        MemoryLogWriter(log, max_queued_records=3), MemoryCluster(log), ManualClock()
    )
    log.hold_reports()
    first = asyncio.ensure_future(target.append(records(10)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(target.append(records(5, first=10)))
    await turns(20)
    assert not first.done()
    log.release_reports()
    assert (await first, await second) == ({}, {})
    assert values(log) == [b"%d" % number for number in range(15)]
    await target.close()


@pytest.mark.promise
async def test_while_the_log_is_full_records_wait_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.runner.target.WAIT_SECONDS", 0.001)
    file = tmp_path / "segment"
    file.write_bytes(b"x" * (2 << 20))
    log, now = a_log(), itertools.count()  # each look is a second later
    settings = LogDiskSettings(folder=tmp_path, min_free_bytes=0, max_bytes=1 << 20)
    disk = LogDisk(settings, monotonic=lambda: float(next(now)))
    target = KafkaTarget(MemoryLogWriter(log), MemoryCluster(log), ManualClock(), disk)
    parts = [asyncio.ensure_future(target.append(records(5, first=n))) for n in (0, 5)]
    await asyncio.wait(parts, timeout=0.02)
    assert values(log) == []
    file.unlink()
    assert await asyncio.gather(*parts) == [{}, {}]
    assert values(log) == [b"%d" % number for number in range(10)]
    await target.close()


def of_sizes(*sizes: int) -> list[NewRecord]:
    return [NewRecord("t", b"k", b"%03d" % n + bytes(s - 3), []) for n, s in enumerate(sizes)]


def numbers(log: MemoryLog) -> list[int]:
    return [int((value or b"")[:3]) for value in values(log)]


@pytest.mark.promise
async def test_a_record_that_is_too_large_takes_none_of_its_batch_with_it() -> None:
    for limit in (100_000, 20_000, 5_000, 1_000):
        log = a_log()
        cluster = MemoryCluster(log, {"t": limit})
        target = KafkaTarget(BatchWriter(cluster), cluster, ManualClock())
        given = of_sizes(*[300] * 100, limit + 1, *[300] * 100)
        assert list(await target.append(given)) == [100]
        assert numbers(log) == [number for number in range(201) if number != 100]
        assert (await target.append(of_sizes(*[300] * 100))) == {}
        assert cluster.asked == ["t"]
        assert max(cluster.opened) <= limit
        await target.close()


@pytest.mark.promise
async def test_calls_that_wait_for_what_a_log_topic_takes_stay_in_order() -> None:
    log = a_log()
    cluster = MemoryCluster(log, {"t": 1_000})
    target = KafkaTarget(BatchWriter(cluster), cluster, ManualClock())
    given = of_sizes(*[100] * 50)
    parts = [asyncio.ensure_future(target.append(given[n : n + 10])) for n in range(0, 50, 10)]
    assert await asyncio.gather(*parts) == [{}] * 5
    assert numbers(log) == list(range(50))
    assert cluster.asked == ["t"]
    await target.close()


async def test_a_cluster_that_does_not_tell_gets_each_record_by_itself() -> None:
    log = a_log()
    cluster = MemoryCluster(log, {"t": 1_000}, tells=False)
    target = KafkaTarget(BatchWriter(cluster), cluster, ManualClock())
    assert list(await target.append(of_sizes(600, 2_000, 600))) == [1]
    assert numbers(log) == [0, 2]
    assert cluster.opened == [ALONE]
    await target.close()


async def test_own_log_topics_are_not_asked_for() -> None:
    log = a_log()
    log.create("mqlake.inbound", 1)
    cluster = MemoryCluster(log)
    target = KafkaTarget(BatchWriter(cluster), cluster, ManualClock())
    assert await target.append([NewRecord("mqlake.inbound", b"k", b"v", [])]) == {}
    assert (cluster.asked, cluster.opened) == ([], [])
    await target.close()


async def test_a_log_topic_that_takes_less_than_it_did_loses_none_of_the_others() -> None:
    log = a_log()
    cluster = MemoryCluster(log)
    clock = ManualClock()
    target = KafkaTarget(BatchWriter(cluster), cluster, clock)
    assert await target.append(of_sizes(300)) == {}
    cluster.limits["t"] = 1_000
    assert list(await target.append(of_sizes(300, 300, 2_000, 300))) == [2]
    assert numbers(log) == [0, 0, 1, 3]
    assert cluster.opened == [ALONE]
    assert cluster.asked == ["t"], "it was asked for just now"
    clock.advance(ASK_AGAIN_SECONDS)
    assert list(await target.append(of_sizes(300, 300, 2_000, 300))) == [2]
    assert await target.append(of_sizes(300, 300, 300, 300)) == {}
    assert cluster.asked == ["t", "t"]
    await target.close()


async def test_an_invalid_record_takes_none_of_its_batch_with_it() -> None:
    log = a_log()
    cluster = MemoryCluster(log, keyed={"t"})
    target = KafkaTarget(BatchWriter(cluster), cluster, ManualClock())
    given = of_sizes(300, 300, 300, 300)
    given[1].key = None
    problems = await target.append(given)
    assert list(problems) == [1]
    assert refusal(problems[1]).failure is Failure.REFUSED
    assert numbers(log) == [0, 2, 3]
    await target.close()
