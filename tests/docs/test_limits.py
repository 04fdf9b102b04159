"""Numbers that the pages about the API tell are those of the code."""

from pathlib import Path
from typing import Any

from api.jobs.pace import DEFAULT_RATE
from api.live.readers import MAX_READERS, MAX_READERS_OF_ONE, MAX_READERS_OF_TENANT
from api.live.stream import MAX_QUEUED, MAX_QUEUED_BYTES
from api.live.topics import MAX_KEPT_BYTES, MAX_TOPICS
from api.replay.order import CLIENT_RATE
from api.routes.messages import live, topics
from api.routes.messages.publish import MAX_BULK
from api.routes.queries.sql import DEFAULT_ROWS, DEFAULT_SECONDS
from api.settings import ApiSettings
from api.sql.costs import (
    MOST_DECIMALS,
    MOST_PERCENTILES,
    MOST_POSITION,
    MOST_SETS,
    MOST_STARS,
    MOST_WINDOWS,
)
from api.web.pages import DEFAULT_LIMIT, MAX_LIMIT
from mqlake.records.rule_tables import MOST_COLUMNS
from rules.references import MAX_BYTES

DOCS = Path(__file__).parents[2] / "docs"
MIB = 1024**2


def default(setting: str) -> Any:
    return ApiSettings.model_fields[setting].default


TOLD = [
    ("api.md", f"`?limit=` (1 to {MAX_LIMIT:,}, {DEFAULT_LIMIT} without)"),
    ("api.md", f"{default('requests_per_second'):g} requests a second of each key"),
    ("api.md", f"{default('request_burst'):,.0f} at once (`requests_per_second`"),
    ("api.md", f"Bodies up to {default('max_body_bytes') // MIB} MiB (`max_body_bytes`)"),
    ("api.md", f"[reference tables](references.md) up to {MAX_BYTES // MIB} MiB"),
    ("api.md", f'takes `{{"messages": [...]}}`, up to {MAX_BULK:,}:'),
    ("api.md", f"It remembers {MAX_TOPICS:,} topics, with payloads up to"),
    ("api.md", f"payloads up to {MAX_KEPT_BYTES // 1024} KiB; `forgotten`"),
    ("api.md", f"`max_rate` (1 to {live.MAX_RATE:,} a second, {live.DEFAULT_RATE} without)"),
    ("api.md", f"({MAX_QUEUED:,} messages or {MAX_QUEUED_BYTES // MIB} MiB wait for it)"),
    ("api.md", f"carries up to {live.MAX_STREAMS} streams. {MAX_READERS} connections"),
    ("api.md", f"may read live streams, {MAX_READERS_OF_ONE} of one caller"),
    ("api.md", f"{MAX_READERS_OF_TENANT} of callers for one tenant"),
    ("replay.md", f"messages a second at most: {DEFAULT_RATE:,}, to one client {CLIENT_RATE}"),
    ("tables.md", f"the `*` of all subqueries make at most {MOST_STARS} times as many columns"),
    ("tables.md", f"a row is in at most {MOST_WINDOWS} windows (`window`)"),
    ("tables.md", f"rows are grouped by at most {MOST_SETS} sets"),
    ("tables.md", f"up to 10,000 and {MOST_PERCENTILES} of them in a query"),
    ("tables.md", f"`array_insert` at {MOST_POSITION:,} from either end"),
    ("tables.md", f"`format_number` to {MOST_DECIMALS} decimals"),
    ("tables.md", f"A table has at most {MOST_COLUMNS:,} columns"),
    (
        "tables.md",
        f"`limit` ({DEFAULT_ROWS:,} over REST), `timeout_seconds` ({DEFAULT_SECONDS:g})",
    ),
]


def test_a_number_is_that_of_the_code() -> None:
    missing = [f"docs/{page}: {told}" for page, told in TOLD if told not in text_of(page)]
    assert not missing, "\n".join(missing)


def text_of(page: str) -> str:
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def test_the_route_tells_how_many_topics_it_remembers() -> None:
    assert f"remembers {MAX_TOPICS:,} topics" in (topics.get_topics.__doc__ or "")
