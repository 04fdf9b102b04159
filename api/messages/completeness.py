"""Up to when tables have all that was accepted, as the lake says in its heartbeat.

What it says stays true: a table that was complete up to a time is so ever after. So it counts also
when the lake has died since, and for a reader that asks before it reads a table.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mqlake.processes.heartbeat import read_heartbeat
from mqlake.tables.catalogue import DEAD_LETTERS, LATE, MESSAGES, RULE_TABLE_PREFIX, TABLES

HEADER: Final = "mqlake-complete-until"
DESCRIPTION: Final = (
    "time up to which every accepted message is in the tables that the answer is from; null: not "
    "known, as after a start of the lake, until it has caught up"
)
OPENAPI: Final[dict[str, Any]] = {
    HEADER: {
        "schema": {"type": "string", "format": "date-time"},
        "description": DESCRIPTION.replace("null: not", "absent: not"),
    }
}
_QUERIES: Final = {
    **{table.name: "state" for table in TABLES},
    MESSAGES.name: "history",
    DEAD_LETTERS.name: "outputs",
    LATE.name: "outputs",
}
"""Table -> the streaming query that writes it."""


class Completeness:
    """Reads it again each time; safe to use from any thread.

    Args:
        data_dir: Data directory of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._heartbeat = data_dir / "run" / "lake.json"

    def until(self, tables: Iterable[str]) -> datetime | None:
        """Return up to when all of these are complete, by the lake's clock.

        Args:
            tables: Names of which those of the lake count; others follow no messages.

        Returns:
            None when it is not known, or none of them is of the lake.
        """
        queries = {query for name in tables if (query := _query_of(name)) is not None}
        beat = read_heartbeat(self._heartbeat) if queries else None
        figures = {} if beat is None else beat.figures.get("queries", {})
        times = [figures.get(query, {}).get("complete_until_ms") for query in queries]
        if not times or None in times:
            return None
        return datetime.fromtimestamp(min(times) / 1000, tz=UTC)


def headers(until: datetime | None) -> dict[str, str]:
    """Return the header of an answer; none when it is not known."""
    return {} if until is None else {HEADER: written(until)}


def written(until: datetime) -> str:
    """Return a time as answers have it."""
    return until.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _query_of(table: str) -> str | None:
    return "outputs" if table.startswith(RULE_TABLE_PREFIX) else _QUERIES.get(table)
