import asyncio

import pytest

from api.live.reader import MAX_SAID, Reader, Told

pytestmark = pytest.mark.anyio


async def test_who_takes_no_answers_is_not_heard() -> None:
    reader = Reader(lambda: True, lambda: False, 60)
    for _ in range(MAX_SAID):
        await reader.wait_until_taken()
        reader.say(Told("", "error", {}))
    waiting = asyncio.create_task(reader.wait_until_taken())
    await asyncio.sleep(0)
    assert not waiting.done()
    batch = await anext(reader.batches())
    assert len(batch) == MAX_SAID
    async with asyncio.timeout(60):
        await waiting
