import asyncio
from typing import TYPE_CHECKING

import pytest

from mqlake.errors import LogError
from mqlake.log.contract import BEGINNING
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter

if TYPE_CHECKING:
    from mqlake.records.messages import LogRecord


def test_held_appends_are_neither_reported_nor_readable_until_released() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.create("t", 1)
        writer = MemoryLogWriter(log)
        log.hold_reports()
        appended = asyncio.ensure_future(writer.append_durably("t", b"k", b"v", []))
        await asyncio.sleep(0)
        with pytest.raises(LogError, match="1 records not appended"):
            await writer.flush(0.001)
        assert not appended.done()
        assert log.records("t") == []
        log.release_reports()
        assert await appended == (0, 0)

    asyncio.run(scenario())


def test_a_definite_fault_keeps_the_record_out_and_another_may_leave_it_in() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.create("t", 1)
        writer = MemoryLogWriter(log)
        log.fail_next(LogError("disk is full", definite=True))
        log.fail_next(LogError("no answer in time", definite=False))
        with pytest.raises(LogError, match="disk is full"):
            await writer.append_durably("t", b"k", b"1", [])
        with pytest.raises(LogError, match="no answer in time"):
            await writer.append_durably("t", b"k", b"2", [])
        await writer.append_durably("t", b"k", b"3", [])
        assert [record.value for record in log.records("t")] == [b"2", b"3"]

    asyncio.run(scenario())


def test_closing_while_the_log_is_slow_reports_what_was_left() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.create("t", 1)
        writer = MemoryLogWriter(log)
        log.hold_reports()
        errors: list[LogError | None] = []
        writer.append("t", b"k", b"v", [], lambda _partition, _offset, error: errors.append(error))
        await writer.close(timeout_seconds=0.001)
        assert [str(error) for error in errors] == ["the log writer was closed"]

    asyncio.run(scenario())


def test_a_reader_that_retention_has_overtaken_is_told() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.create("t", 1)
        writer = MemoryLogWriter(log)
        for value in (b"0", b"1", b"2"):
            await writer.append_durably("t", b"k", value, [])
        log.remove_before("t", 0, 2)
        reader = MemoryLogReader(log)
        records: list[LogRecord] = []
        errors: list[LogError] = []
        assert await reader.start("t", {0: 1}, records.extend, errors.append) == {0: 1}
        while not records:  # noqa: ASYNC110 - turns of the loop, no time passes
            await asyncio.sleep(0)
        assert [record.offset for record in records] == [2]
        assert len(errors) == 1
        await reader.close()
        fresh = MemoryLogReader(log)
        assert await fresh.start("t", {0: BEGINNING}, records.extend, errors.append) == {0: 2}

    asyncio.run(scenario())
