"""What systems of tests leave out that nobody asks of them."""

from typing import Final

_SELDOM: Final = {"MQLAKE_LAKE_HISTORY_INTERVAL_SECONDS": "10"}

NO_STATE_TABLES: Final = {"MQLAKE_LAKE_STATE_INTERVAL_SECONDS": "3600", **_SELDOM}
"""Environment of a system whose tables of sessions, retained messages and events nobody reads.

The first batch into them takes 25 s of a processor, while Java has compiled nothing of it.
"""

FEW_TABLE_BATCHES: Final = {
    "MQLAKE_LAKE_STATE_INTERVAL_SECONDS": "20",
    **_SELDOM,
}
"""Environment of a system that lives for many tests, of which few wait for a table.

A batch costs as much for one record as for a thousand: seconds of a processor, and half a second.
"""

NO_HISTORY: Final = {"MQLAKE_LAKE_HISTORY_INTERVAL_SECONDS": "3600"}
"""Environment of an engine whose messages nobody looks for in the table: no append every 2 s."""
