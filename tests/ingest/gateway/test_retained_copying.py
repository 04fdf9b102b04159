"""How a copy of retained messages gets complete."""

import asyncio
from collections.abc import Collection

import pytest

from ingest.gateway.lake.exchange import ROWS_IN_FRAME
from ingest.gateway.lake.reader import RowsConsumer
from ingest.gateway.log.ends import Ends
from ingest.gateway.retained.copying import COPIED_AT_ONCE, Copying
from ingest.gateway.retained.retained import Retained
from ingest.gateway.store.database import Database
from ingest.gateway.store.retained import RetainedRow
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLogReader, MemoryRangeReader
from tests.ingest.gateway.harness import new_log

pytestmark = pytest.mark.anyio


def a_row(number: int) -> RetainedRow:
    return RetainedRow("default", f"a/{number}", b"1", 1, None, "c", 1, None, 0, number)


class Lake:
    """A table with two frames of rows, read at once."""

    rows = tuple(map(a_row, range(2 * ROWS_IN_FRAME)))

    async def retained(self, _: Collection[int], on_rows: RowsConsumer) -> dict[int, int]:
        for at in range(0, len(self.rows), ROWS_IN_FRAME):
            await on_rows(list(self.rows[at : at + ROWS_IN_FRAME]))
        return {0: len(self.rows)}


async def test_clients_get_turns_while_rows_are_copied() -> None:
    retained = Retained(Database(None), 1, ManualClock())
    log = new_log()
    copying = Copying(
        retained,
        MemoryRangeReader(log),
        Ends(MemoryLogReader(log)),
        Lake(),  # type: ignore[arg-type]
    )
    await copying.begin([0], 1)
    retained.hold(0)
    load = asyncio.create_task(copying.load({0: 0}))
    turns, counts = 0, set()
    while not load.done():
        await asyncio.sleep(0)
        turns += 1
        counts.add(retained.usage(None)[0])
    assert not load.result()
    assert turns >= 2 * ROWS_IN_FRAME / COPIED_AT_ONCE
    assert counts >= set(range(COPIED_AT_ONCE, 2 * ROWS_IN_FRAME, COPIED_AT_ONCE))
