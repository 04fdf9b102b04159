"""Queries over a long history: 2,000,000 messages of ten days, asked through the API."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from bench.load.prepared import PastMessage, await_messages, write_messages
from bench.results.figures import Figures, figure
from bench.systems.system import Bench
from mqlake.api_client import ApiClient

MESSAGES: Final = 2_000_000
DAYS: Final = 10
TOPICS: Final = 5_000
WARM: Final = 3
"""Questions before those that count: Spark compiles plans that it has seen often."""
TIMES: Final = 7
_DAY_MS: Final = 86_400_000
_PREFIX: Final = "bench-sql/"
_TIMEOUT_SECONDS: Final = 120.0


def measure_sql_point(bench: Bench) -> list[Figures]:
    """One message of 2,000,000, by topic and time, from question to the whole answer."""

    def query(number: int, begin_ms: int) -> str:
        # Each asks for another one: an answer must not come from a cache.
        at = begin_ms + number * 7_919_000
        topic = f"{_PREFIX}plant/{number * 37 % TOPICS}"
        return (
            "SELECT ts, payload:t::double AS t FROM messages "  # noqa: S608
            f"WHERE topic = '{topic}' AND ts >= timestamp_millis({at}) ORDER BY ts LIMIT 1"
        )

    return _measure(bench, f"SQL point query, {MESSAGES:,} messages, warm", query)


def measure_sql_day(bench: Bench) -> list[Figures]:
    """Count and mean by hour over one of ten days of 2,000,000 messages."""

    def query(number: int, begin_ms: int) -> str:
        day = begin_ms + number % (DAYS - 1) * _DAY_MS
        return (
            "SELECT date_trunc('HOUR', ts) AS hour, count(*) AS messages, "  # noqa: S608
            "avg(payload:t::double) AS mean FROM messages "
            f"WHERE topic_matches(topic, '{_PREFIX}#') AND ts >= timestamp_millis({day}) "
            f"AND ts < timestamp_millis({day + _DAY_MS}) GROUP BY ALL ORDER BY hour"
        )

    return _measure(bench, f"SQL aggregate of a day of {MESSAGES:,} messages, warm", query)


def _measure(bench: Bench, name: str, query: Callable[[int, int], str]) -> list[Figures]:
    if bench.own is None:
        bench.note("a history is only written into a system of the bench's own")
        return []
    client = ApiClient(bench.data_dir)
    begin_ms = _prepare(bench, client)
    bench.await_quiet()
    results: list[Figures] = []
    for number in range(WARM + TIMES):
        began_at = time.monotonic()
        rows = _rows(client, query(number, begin_ms))
        seconds = time.monotonic() - began_at
        assert rows
        if number >= WARM:
            results.append({figure(name, "s"): seconds})
    return results


def _prepare(bench: Bench, client: ApiClient) -> int:
    """Write the history if it is not there; return when it begins."""
    held = "SELECT count(*), unix_millis(min(ts)) FROM messages "
    where = f"WHERE topic_matches(topic, '{_PREFIX}#')"
    ((count, first),) = _rows(client, held + where)
    if count >= MESSAGES:
        return int(first)
    began_at = time.monotonic()
    begin_ms = int(time.time() * 1000) - DAYS * _DAY_MS
    last = write_messages(bench.state.bootstrap_servers, _history(begin_ms))
    await_messages(bench.data_dir, last)
    seconds = time.monotonic() - began_at
    bench.note(f"prepared: {MESSAGES:,} messages of {DAYS} days in the table in {seconds:.0f} s")
    return begin_ms


def _history(begin_ms: int) -> Iterator[PastMessage]:
    filling = secrets.token_hex(16)
    for number in range(MESSAGES):
        payload = b'{"t":%d.5,"s":"%s"}' % (number % 80, filling.encode())
        at_ms = begin_ms + number * DAYS * _DAY_MS // MESSAGES
        yield PastMessage(f"{_PREFIX}plant/{number * 7 % TOPICS}", payload, at_ms)


def _rows(client: ApiClient, query: str) -> list[list[Any]]:
    body = {"query": query, "timeout_seconds": _TIMEOUT_SECONDS}
    with client.stream("/sql", body, timeout_seconds=_TIMEOUT_SECONDS + 30.0) as answer:
        rows: list[list[Any]] = json.load(answer)["rows"]
        return rows
