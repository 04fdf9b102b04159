from collections.abc import AsyncIterator

import pytest

from mqlake.log.lost_end import SKIPPED
from mqlake.log.memory import MemoryLog, MemoryRangeReader
from mqlake.records.messages import INBOUND, OUTPUTS, SKIPPED_KEY, LogRecord
from rules.runner.outputs_log import find_published, read_outputs_range

pytestmark = pytest.mark.anyio


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    for log_topic in (OUTPUTS, INBOUND):
        log.create(log_topic, 2)
    for number in range(20):
        key = b"wanted" if number % 2 else b"other"
        log.store(OUTPUTS, key, b"x" * 10, [], 0, number // 10)
    return log


@pytest.fixture
async def ranges(log: MemoryLog) -> AsyncIterator[MemoryRangeReader]:
    reader = MemoryRangeReader(log)
    yield reader
    await reader.close()


def is_wanted(record: LogRecord) -> bool:
    return record.key == b"wanted"


async def test_a_range_has_what_is_wanted_and_where_to_read_on(
    ranges: MemoryRangeReader,
) -> None:
    found = await read_outputs_range(
        ranges, OUTPUTS, {0: 2, 1: 5}, {0: 8, 1: 5}, is_wanted, max_records=100, max_bytes=1000
    )
    assert [(one.partition, one.offset) for one in found.records] == [(0, 3), (0, 5), (0, 7)]
    assert (found.positions, found.lost) == ({0: 8, 1: 5}, [])


@pytest.mark.parametrize(("max_records", "max_bytes"), [(2, 1000), (100, 15)])
async def test_reading_ends_when_there_is_enough(
    ranges: MemoryRangeReader, max_records: int, max_bytes: int
) -> None:
    found = await read_outputs_range(
        ranges,
        OUTPUTS,
        {0: 0},
        {0: 10},
        is_wanted,
        max_records=max_records,
        max_bytes=max_bytes,
    )
    assert [one.offset for one in found.records] == [1, 3]
    assert found.positions == {0: 4}
    rest = await read_outputs_range(
        ranges, OUTPUTS, found.positions, {0: 10}, is_wanted, max_records=9, max_bytes=999
    )
    assert [one.offset for one in rest.records] == [5, 7, 9]


@pytest.mark.parametrize("max_records", [1, 100])
async def test_what_the_log_no_longer_holds_is_told(
    log: MemoryLog, ranges: MemoryRangeReader, max_records: int
) -> None:
    log.remove_before(OUTPUTS, 0, 4)
    found = await read_outputs_range(
        ranges, OUTPUTS, {0: 1}, {0: 10}, is_wanted, max_records=max_records, max_bytes=999
    )
    assert found.lost == [(0, 1, 4)]
    assert found.records[0].offset == 5
    log.remove_before(OUTPUTS, 1, 10)
    gone = await read_outputs_range(
        ranges, OUTPUTS, {1: 3}, {1: 10}, is_wanted, max_records=9, max_bytes=999
    )
    assert (gone.records, gone.positions, gone.lost) == ([], {1: 10}, [(1, 3, 10)])


@pytest.mark.parametrize("at", [7, 10])
async def test_offsets_that_the_log_left_out_are_not_lost(
    log: MemoryLog, ranges: MemoryRangeReader, at: int
) -> None:
    log.skip_offset(OUTPUTS, 0, SKIPPED)
    log.store(OUTPUTS, SKIPPED_KEY, None, [], 0, 0)
    log.store(OUTPUTS, b"wanted", b"x", [], 0, 0)
    end = 10 + SKIPPED + 2
    found = await read_outputs_range(
        ranges,
        OUTPUTS,
        {0: at},
        {0: end},
        lambda one: one.key != b"other",
        max_records=9,
        max_bytes=999,
    )
    assert [one.offset for one in found.records if one.offset >= 10] == [end - 1]
    assert (found.positions, found.lost) == ({0: end}, [])


async def test_what_rules_have_published_is_found(
    log: MemoryLog, ranges: MemoryRangeReader
) -> None:
    for number in range(6):
        headers = [("output", b"r/%d" % number)]
        if number != 3:
            headers.append(("chain", b"r"))
        log.store(INBOUND, b"k", b"", headers, 0, number % 2)
    found = await find_published(ranges, {0: 1}, {0: 3, 1: 2})
    assert found == {b"r/2", b"r/4", b"r/1"}
