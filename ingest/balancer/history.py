"""Makes the file of expected loads from the history of a system, by the SQL of its API."""

from __future__ import annotations

import asyncio
import csv
import json
import logging
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from ingest.balancer.probe import PROBE_PREFIX
from mqlake.api_client import ApiClient
from mqlake.durable import write_durably
from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ingest.balancer.settings import HistorySettings
    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

QUERY_SECONDS: Final = 300.0
SOON_SECONDS: Final = 600.0
"""When there is no history yet, and after the first file; after each more twice as long: of a new
system the history soon says more. An old one has a file when the control plane starts."""
AGAIN_SECONDS: Final = 10.0
"""After a failure, the system may just start; twice as long after each more, up to the above."""

PROBES: Final = f"{PROBE_PREFIX}%"
"""Clients that are not counted: a node has 120,000 a week, each with a topic of its own. They would
crowd out all others."""

CLIENTS: Final = """
SELECT client_id, count(*) AS messages FROM messages
WHERE ts > now() - INTERVAL {days} DAYS AND client_id NOT LIKE '{probes}'
GROUP BY client_id ORDER BY messages DESC, client_id LIMIT {rows}
"""
TOPICS: Final = """
SELECT topic, count(*) AS messages FROM messages
WHERE ts > now() - INTERVAL {days} DAYS
  AND (client_id IS NULL OR client_id NOT LIKE '{probes}')
GROUP BY topic ORDER BY messages DESC, topic LIMIT {rows}
"""
SUBSCRIPTIONS: Final = """
SELECT client_id, filter FROM subscriptions
UNION
SELECT client_id, filter FROM (
  SELECT client_id, filter, max_by(event, struct(ts, log_offset)) AS event FROM events
  WHERE ts > now() - INTERVAL {days} DAYS
    AND event IN ('session.subscribed', 'session.unsubscribed')
    AND client_id NOT LIKE '{probes}'
  GROUP BY client_id, filter)
WHERE event = 'session.subscribed'
ORDER BY client_id, filter LIMIT {rows}
"""
"""Sessions that end with their connections have rows in `events` alone."""


@dataclass(slots=True)
class HistoryState:
    """For people."""

    problem: str = ""
    """Why the file could not be made; empty: it could, or it is not time."""


class BalancerHistory:
    """Makes the file when it is missing or old.

    Args:
        settings: Settings of the history.
        tenants: Whose clients.
        file: To be made.
        clock: Its UTC time is compared with the file's.
    """

    def __init__(
        self, settings: HistorySettings, tenants: Sequence[str], file: Path, clock: Clock
    ) -> None:
        self._settings = settings
        self._tenants = tenants
        self._file = file
        self._clock = clock
        self._again_seconds = AGAIN_SECONDS
        self._rest_seconds = settings.every_seconds if file.exists() else SOON_SECONDS / 2
        """How old the file may become."""
        self.state = HistoryState()

    async def run(self) -> None:
        """Make it again and again, until cancelled."""
        while True:
            pause = self.due_seconds()
            if pause <= 0:
                pause = await self.make()
            await asyncio.sleep(pause)

    def due_seconds(self) -> float:
        """Return in how many seconds the file is old; also one that another process has written."""
        try:
            written_at = self._file.stat().st_mtime
        except OSError:
            return 0.0
        age = self._clock.now_ms() / 1000 - written_at
        return self._rest_seconds - max(0.0, age)

    async def make(self) -> float:
        """Make it now; return the seconds until the next time."""
        try:
            lines = await asyncio.to_thread(self._write)
        except (OperationalError, OSError, ValueError, KeyError) as exc:
            if self.state.problem != str(exc):
                fields = {"file": str(self._file), "reason": str(exc)}
                logger.warning("expected loads not made", extra={"fields": fields})
            self.state.problem = str(exc)
            pause = min(self._again_seconds, self._settings.every_seconds)
            self._again_seconds = min(2 * self._again_seconds, SOON_SECONDS)
            return pause
        self.state.problem = ""
        self._again_seconds = AGAIN_SECONDS
        fields = {"file": str(self._file), "lines": str(lines)}
        logger.info("expected loads made", extra={"fields": fields})
        if not lines:
            return min(SOON_SECONDS, self._settings.every_seconds)
        self._rest_seconds = min(2 * self._rest_seconds, self._settings.every_seconds)
        return self._rest_seconds

    def _write(self) -> int:
        """Return how many lines it has; a file without any is not written."""
        text = StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(("tenant", "client_id", "rate", "topic"))
        lines = 0
        for tenant in self._tenants:
            for line in self._ask(tenant):
                writer.writerow((tenant, *line))
                lines += 1
        if lines:
            write_durably(self._file, text.getvalue().encode())
        return lines

    def _ask(self, tenant: str) -> Iterator[tuple[str, str, str]]:
        """Yield client identifier, rate and topic of each line."""
        assert self._settings.data_dir is not None
        client = ApiClient(self._settings.data_dir)
        seconds = self._settings.days * 86_400
        for name, messages in self._rows(client, tenant, CLIENTS):
            yield name, f"{float(messages) / seconds:.6g}", ""
        for topic, messages in self._rows(client, tenant, TOPICS):
            yield "", f"{float(messages) / seconds:.6g}", topic
        for name, topic_filter in self._rows(client, tenant, SUBSCRIPTIONS):
            yield name, "", topic_filter

    def _rows(self, client: ApiClient, tenant: str, query: str) -> list[Any]:
        limits = {"days": self._settings.days, "rows": self._settings.rows, "probes": PROBES}
        body = {
            "query": query.format(**limits),
            "format": "json",
            "limit": self._settings.rows,
            "timeout_seconds": QUERY_SECONDS,
        }
        wait = QUERY_SECONDS + 30.0
        with client.stream("/sql", body, timeout_seconds=wait, tenant=tenant) as answer:
            rows: list[Any] = json.load(answer)["rows"]
        return rows
