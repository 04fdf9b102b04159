"""Dead letters of actions: an output is given up once, whatever the log takes of it."""

import asyncio

import pytest

from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.records.messages import DEAD_LETTERS
from mqlake.records.outputs import decode_dead_letter
from rules.runner.dead_letters import DeadLetters
from rules.runner.failures import FailureEvents
from rules.runner.target import KafkaTarget
from tests.rules.runner.memory import MemoryCluster
from tests.rules.test_templates import work_for

pytestmark = pytest.mark.anyio


async def test_a_row_that_its_dead_letter_has_no_room_for_is_left_out() -> None:
    log = MemoryLog()
    log.create(DEAD_LETTERS, 1)
    clock = ManualClock()
    writer = MemoryLogWriter(log, max_record_bytes=1_000)
    target = KafkaTarget(writer, MemoryCluster(log), clock)
    letters = DeadLetters(target, FailureEvents(lambda _: False, clock))
    async with asyncio.timeout(30):
        await letters.append(work_for({"text": "x" * 900}), "http", "answer 400")
        await letters.append(work_for({"text": "x" * 1_000}), "http", "answer 400")
    small, large = (
        decode_dead_letter(one.key or b"", one.value, one.headers)
        for one in log.records(DEAD_LETTERS)
    )
    assert (len(small.value) > 900, small.error) == (True, "answer 400")
    assert large.value == b""
    assert large.error.startswith("answer 400; the row of 1011 bytes is left out: ")
    assert large.position == small.position
    await target.close()
