"""Messages of the past, by topic, from the table `messages`: the source for a long gap.

The log gives all records of a range; the table gives matching rows. They come back as the records
of `mqlake.inbound` that they were, so that both are handled alike.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from ingest.gateway.lake.exchange import MAX_PAGE_BYTES, HistoryPage
from ingest.gateway.lake.table import TableReader, text_literal
from mqlake.records.messages import (
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_PROPERTIES,
    HEADER_USERNAME,
    LogRecord,
    message_key,
    mqtt_header,
)
from mqlake.records.versions import HEADER_MQTT, Headers
from mqlake.tables.catalogue import MESSAGES
from mqlake.topics.matching import TopicFilterTrie

MAX_WILDCARD_CONDITIONS: Final = 500
"""Wildcard filters that the query itself tells apart; more are matched afterwards."""
_MAX_PREFIXES: Final = 8
"""Wildcard filters of which each has a condition that leaves out files; more share patterns."""
_FILTERS_IN_PATTERN: Final = 100

_COLUMNS: Final = (
    "log_partition, log_offset, CAST(ts AS BIGINT) AS ts, tenant, topic, payload, qos, retain, dup,"
    " id, client_id, username, protocol_level, properties, origin"
)


def read_messages(
    reader: TableReader,
    tenant: str,
    ranges: Mapping[int, tuple[int, int]],
    topic_filters: Collection[str] | None,
    limit: int,
    not_before_ms: int | None,
    max_bytes: int = MAX_PAGE_BYTES,
    offsets: Collection[int] | None = None,
) -> HistoryPage:
    """Return messages at the version that the reader is at; `LakeReader.messages` says which.

    Args:
        reader: Reader of the table `messages`.
        tenant: Owner of the messages.
        ranges: Partition -> (start, end), start below end; at least one.
        topic_filters: Valid filters without `$share/<name>/`, at least one; None: any topic.
        limit: Most rows that the table gives at a time.
        not_before_ms: Leaves out messages accepted before, UTC epoch.
        max_bytes: Bytes of payloads; the message that reaches it is the last.
        offsets: None but these, in whichever partition; at least one.

    Raises:
        TableError: The table cannot be read.
    """
    query = _query(tenant, ranges, topic_filters, limit, not_before_ms, offsets)
    rows: list[tuple[Any, ...]] = []
    left = max_bytes
    for row in _rows(reader, query):
        rows.append(row)
        left -= len(row[5] or b"")
        if left <= 0:
            break
    next_offsets = _next_offsets(reader, ranges)
    has_more = len(rows) == limit or left <= 0
    if has_more:
        # Rows come partition by partition: the later ones are still to be read.
        partition, offset = rows[-1][:2]
        for later, (start, _) in ranges.items():
            if later > partition:
                next_offsets[later] = start
        next_offsets[partition] = offset + 1
    if topic_filters is None:
        return HistoryPage([_record(row) for row in rows], next_offsets, has_more)
    return HistoryPage(_matching(rows, topic_filters), next_offsets, has_more)


def _query(
    tenant: str,
    ranges: Mapping[int, tuple[int, int]],
    topic_filters: Collection[str] | None,
    limit: int,
    not_before_ms: int | None,
    offsets: Collection[int] | None,
) -> str:
    conditions = [
        f"tenant = {text_literal(tenant)}",
        "TRUE" if topic_filters is None else topics_condition(topic_filters),
        _any(
            f"(log_partition = {partition} AND log_offset >= {start} AND log_offset < {end})"
            for partition, (start, end) in ranges.items()
        ),
    ]
    if offsets is not None:
        conditions.append(f"log_offset IN ({', '.join(map(str, offsets))})")
    if not_before_ms is not None:
        conditions.append(f"ts >= to_timestamp_millis({not_before_ms})")
    return (
        f"SELECT {_COLUMNS} FROM {MESSAGES.name} WHERE {' AND '.join(conditions)}"  # noqa: S608
        f" ORDER BY log_partition, log_offset LIMIT {limit}"
    )


def _matching(rows: list[tuple[Any, ...]], topic_filters: Collection[str]) -> list[LogRecord]:
    """Leave out rows that the query's condition let through; `mqlake.topics.matching` decides."""
    filters: TopicFilterTrie[None] = TopicFilterTrie()
    for topic_filter in topic_filters:
        filters.insert(topic_filter, None)
    known: dict[str, bool] = {}
    records: list[LogRecord] = []
    for row in rows:
        topic_name = row[4]
        matches = known.get(topic_name)
        if matches is None:
            matches = known[topic_name] = bool(filters.match(topic_name))
        if matches:
            records.append(_record(row))
    return records


def _next_offsets(reader: TableReader, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return where to go on in the log: after the last offset that the table has."""
    beyond = _any(
        f"(log_partition = {partition} AND log_offset >= {start})"
        for partition, (start, _) in ranges.items()
    )
    last = dict(
        _rows(
            reader,
            "SELECT log_partition, max(log_offset)"  # noqa: S608
            f" FROM {MESSAGES.name} WHERE {beyond} GROUP BY log_partition",
        )
    )
    return {
        partition: min(last.get(partition, start - 1) + 1, end)
        for partition, (start, end) in ranges.items()
    }


def _rows(reader: TableReader, sql: str) -> Iterator[tuple[Any, ...]]:
    for batch in reader.rows(sql):
        yield from batch


def topics_condition(topic_filters: Iterable[str]) -> str:
    """Return SQL that is true of every topic that one of the filters matches.

    It may be true of others: with many wildcard filters it is no condition at all.
    """
    exact: list[str] = []
    wildcard: list[str] = []
    for topic_filter in topic_filters:
        (wildcard if "+" in topic_filter or "#" in topic_filter else exact).append(topic_filter)
    if len(wildcard) > MAX_WILDCARD_CONDITIONS:
        return "TRUE"
    if len(wildcard) <= _MAX_PREFIXES:
        alternatives = [_wildcard_condition(topic_filter) for topic_filter in wildcard]
    else:
        alternatives = [
            _matches(wildcard[start : start + _FILTERS_IN_PATTERN])
            for start in range(0, len(wildcard), _FILTERS_IN_PATTERN)
        ]
    if exact:
        alternatives.append(f"topic IN ({', '.join(map(text_literal, exact))})")
    return _any(alternatives)


def _wildcard_condition(topic_filter: str) -> str:
    literal: list[str] = []
    for level in topic_filter.split("/"):
        if level in {"+", "#"}:
            break
        literal.append(level)
    if not literal:
        return _matches([topic_filter])
    # Names below a level lie between "/" and the next character: statistics of files tell.
    above = "/".join(literal)
    below = f"topic >= {text_literal(above + '/')} AND topic < {text_literal(above + '0')}"
    if topic_filter == f"{above}/#":
        return f"(topic = {text_literal(above)} OR ({below}))"
    # A `#` after `+` never stands for its own level alone, so all names are below.
    return f"({below} AND {_matches([topic_filter])})"


def _matches(topic_filters: list[str]) -> str:
    patterns = "|".join(map(_pattern, topic_filters))
    whole = rf"(?s)^(?:{patterns})\z"
    return f"topic ~ {text_literal(whole)}"


def _pattern(topic_filter: str) -> str:
    """Return a filter as a regular expression.

    `a/+/#` matches `a/b` too (4.7.1.2). A leading `$` never meets a leading wildcard.
    [MQTT5-4.7.2-1]
    """
    if topic_filter == "#":
        return "(?:[^$].*)?"
    levels = topic_filter.split("/")
    tail = "(?:/.*)?" if levels[-1] == "#" else ""
    if tail:
        levels.pop()
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in levels]
    if levels[0] == "+":
        parts[0] = "(?:[^$/][^/]*)?"
    return "/".join(parts) + tail


def _any(conditions: Iterable[str]) -> str:
    return f"({' OR '.join(conditions)})"


def _record(row: tuple[Any, ...]) -> LogRecord:
    """Make the record again from its row; a header that it had not is null there."""
    (
        partition,
        offset,
        ts,
        tenant,
        topic_name,
        payload,
        qos,
        retain,
        dup,
        message_id,
        client_id,
        username,
        protocol_level,
        properties,
        origin,
    ) = row
    headers: Headers = []
    if protocol_level is not None and qos is not None:
        headers.append((HEADER_MQTT, mqtt_header(protocol_level, qos, retain=retain, dup=dup)))
    if message_id is not None:
        headers.append((HEADER_ID, bytes.fromhex(message_id)))
    for name, text in (
        (HEADER_CLIENT_ID, client_id),
        (HEADER_ORIGIN, origin),
        (HEADER_USERNAME, username),
        (HEADER_PROPERTIES, properties),
    ):
        if text is not None:
            headers.append((name, text.encode()))
    return LogRecord(
        partition, offset, ts // 1000, message_key(tenant, topic_name), payload, headers
    )
