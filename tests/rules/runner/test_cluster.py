"""A real broker refuses batches; actions get an outcome for each record."""

from collections.abc import AsyncIterator

import pytest

from mqlake.clock import SystemClock
from mqlake.log.admin import LogAdmin
from rules.actions.contract import Failure, NewRecord, refusal
from rules.runner.cluster import KafkaCluster
from rules.runner.target import ALONE, KafkaTarget
from tests.rules.runner.harness import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.anyio, pytest.mark.promise]


@pytest.fixture
async def target(stage: Stage) -> AsyncIterator[KafkaTarget]:
    cluster = KafkaCluster(stage.servers, "test", 60.0)
    target = KafkaTarget(cluster.open_writer(), cluster, SystemClock())
    yield target
    await target.close()


def records(log_topic: str, sizes: list[int]) -> list[NewRecord]:
    headers = [("output", b"r/1/i:0:1:0/0")]
    return [
        NewRecord(log_topic, b"k", b"%06d" % n + bytes(size - 6), headers)
        for n, size in enumerate(sizes)
    ]


def numbers(stage: Stage, log_topic: str) -> list[int]:
    return [int((one.value() or b"")[:6]) for one in stage.read(log_topic, lambda _: True)]


async def test_a_record_that_is_too_large_takes_none_of_its_batch_with_it(
    stage: Stage, target: KafkaTarget
) -> None:
    for log_topic, limit in (("narrow", 20_000), ("single", 1_000), ("usual", 1_048_588)):
        LogAdmin(stage.servers, 60.0).ensure(log_topic, {"max.message.bytes": str(limit)})
        sizes = [300] * 200
        sizes[100] = limit + 10_000
        problems = await target.append(records(log_topic, sizes))
        assert list(problems) == [100], log_topic
        assert refusal(problems[100]).failure is Failure.REFUSED
        assert numbers(stage, log_topic) == [n for n in range(200) if n != 100], log_topic
    # Only where a batch could be larger than the log topic takes is there another writer.
    assert target._log_topics["usual"].batch_bytes > 16_384
    assert target._log_topics["single"].batch_bytes == ALONE


async def test_a_record_without_a_key_takes_none_of_its_batch_with_it(
    stage: Stage, target: KafkaTarget
) -> None:
    LogAdmin(stage.servers, 60.0).ensure("compacted", {"cleanup.policy": "compact"})
    given = records("compacted", [300] * 5)
    given[2].key = None
    problems = await target.append(given)
    assert list(problems) == [2]
    assert "INVALID_RECORD" in str(problems[2])
    assert numbers(stage, "compacted") == [0, 1, 3, 4]


async def test_a_log_topic_that_is_not_there_is_told_as_before(target: KafkaTarget) -> None:
    problems = await target.append(records("nowhere", [300] * 3))
    assert sorted(problems) == [0, 1, 2]
    assert refusal(problems[0]).failure is Failure.REFUSED
