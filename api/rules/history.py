"""The rows that rules are evaluated on, made of the tables that hold history, as Spark SQL.

Live, the engine builds the same columns from records of the log: see `rules.columns`. Text of a
user is in here only as a literal that is built from its bytes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mqlake.records.rules import EVENTS_PREFIX
from mqlake.tables.catalogue import DROPS, EVENTS, MESSAGES
from mqlake.topics.names import SEPARATOR
from rules.columns import ROW as ROW_COLUMNS
from rules.sql.confined import Confined, GivenRows

OFFSET_BITS: Final = 48

STORED: Final = "history_rows"
"""Name of the relation that a statement over one table has."""

TASKS: Final = 2
"""Tasks that evaluate history at once. There are slots for many more, and threads for all of them
would leave the router little of the processors."""

_PAYLOAD_JSON: Final = "try_parse_json(CAST({} AS STRING))"

COLUMNS: Final[dict[str, str]] = {
    "id": "id",
    "tenant": "tenant",
    "topic": "topic",
    "clientid": "client_id",
    "username": "username",
    "payload": "payload",
    "payload_json": _PAYLOAD_JSON.format("payload"),
    "qos": "CAST(qos AS INT)",
    "retain": "retain",
    "dup": "dup",
    "protocol_level": "CAST(protocol_level AS INT)",
    "publish_received_at": "unix_millis(ts)",
    "timestamp": "unix_millis(ts)",
    "peerhost": "CAST(NULL AS STRING)",
    "gateway": "substring_index(origin, '/', -1)",
    "site": "substring_index(origin, '/', 1)",
    "properties": "try_parse_json(properties)",
    "event": "CAST(NULL AS STRING)",
    "event_fields": "CAST(NULL AS VARIANT)",
    "log_partition": "log_partition",
    "log_offset": "log_offset",
}
"""Column of a rule's row -> expression over the columns of `messages`."""

_EVENT_COLUMNS: Final[dict[str, str]] = {
    **{column.name: f"CAST(NULL AS {column.type})" for column in ROW_COLUMNS},
    "tenant": "tenant",
    "topic": "topic",
    "clientid": "client_id",
    "timestamp": "unix_millis(ts)",
    "event": "event",
    "event_fields": "try_parse_json(fields)",
    "log_partition": "log_partition",
    "log_offset": "log_offset",
}
"""The same over the columns that `EVENTS_STORED` and `DROPS_STORED` select."""

_DROPPED: Final = "message.dropped"


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A table with history.

    Attributes:
        table: Its name.
        selected: Columns, as a list of SELECT over the table: `tenant`, `topic`, `ts`, the position
            in the log, and all that `columns` needs.
        columns: Column of a rule's row -> expression over these.
    """

    table: str
    selected: str
    columns: Mapping[str, str]

    @property
    def row(self) -> str:
        """The columns of a rule's row, for SELECT."""
        return ", ".join(f"{value} AS {name}" for name, value in self.columns.items())

    def rows(
        self, table_version: int, tenant: str, where: str, newest: int | None = None
    ) -> GivenRows:
        """Return a tenant's rows of the table at a version, read by few tasks.

        Args:
            table_version: The version.
            tenant: Whose they are.
            where: Condition that they fulfil.
            newest: Number of those to take, the newest; None: all.
        """
        # Right above the table: there Spark asks it first (`OwnRows.java`).
        mine = f"VERSION AS OF {table_version:d} WHERE tenant = {text(tenant)}"
        table = f"(SELECT {self.selected} FROM {self.table} {mine})"  # noqa: S608
        rows = f"SELECT /*+ COALESCE({TASKS}) */ * FROM {table} WHERE {where}"  # noqa: S608
        if newest is not None:
            rows = f"SELECT * FROM ({rows}) ORDER BY ts DESC LIMIT {newest:d}"  # noqa: S608
        return GivenRows(rows, (self.table,))

    def unguarded(
        self, table_version: int, tenant: str, position: int, expression: str
    ) -> Confined:
        """Return the query that evaluates a rule on one row: it fails with the error there."""
        row = f"SELECT {self.row} FROM {STORED}"  # noqa: S608
        query = f"SELECT {expression} AS outputs FROM ({row})"  # noqa: S608
        where = at_positions([position])
        return Confined(query, {STORED: self.rows(table_version, tenant, where)})


MESSAGES_STORED: Final = StoredHistory(MESSAGES.name, "*", COLUMNS)
EVENTS_STORED: Final = StoredHistory(
    EVENTS.name, f"*, concat('{EVENTS_PREFIX}', replace(event, '.', '_')) AS topic", _EVENT_COLUMNS
)
DROPS_STORED: Final = StoredHistory(
    DROPS.name,
    "ts, tenant, client_id, log_partition, log_offset, "
    f"'{EVENTS_PREFIX}{_DROPPED.replace('.', '_')}' AS topic, '{_DROPPED}' AS event, "
    "to_json(named_struct('ts', unix_millis(ts), 'tenant', tenant, 'client_id', client_id, "
    "'gateway', gateway, 'topic', topic, 'qos', qos, 'reason', reason, 'count', count)) AS fields",
    _EVENT_COLUMNS,
)


def stored_for(topic_filters: Sequence[str]) -> StoredHistory | None:
    """Return the table with the history of a rule's sources; None: it is in more than one."""
    if not topic_filters[0].startswith(EVENTS_PREFIX):
        return MESSAGES_STORED
    dropped = EVENTS_PREFIX + _DROPPED.replace(".", "_")
    if dropped not in topic_filters:
        return EVENTS_STORED
    return DROPS_STORED if set(topic_filters) == {dropped} else None


POSITION: Final = f"(CAST(log_partition AS BIGINT) * {1 << OFFSET_BITS} + log_offset)"
"""Position in the log as one number, see `read_position`."""


def text(value: str) -> str:
    """Return a literal of type STRING."""
    return f"CAST({binary(value.encode())} AS STRING)"


def binary(value: bytes) -> str:
    """Return a literal of type BINARY."""
    return f"X'{value.hex()}'"


def read_position(number: int) -> tuple[int, int]:
    """Return partition and offset."""
    return number >> OFFSET_BITS, number & ((1 << OFFSET_BITS) - 1)


def position(row: Mapping[str, int]) -> int:
    """Return the number for the position of a row, see `read_position`."""
    return (row["log_partition"] << OFFSET_BITS) + row["log_offset"]


def guarded(expression: str) -> str:
    r"""Return a rule's expression so that a row on which it fails ends no query.

    Type BINARY: null when it failed, empty without an output, else the outputs, JSON objects,
    separated by line feeds, of which JSON holds none. `try_to_binary` takes any error of its
    argument for null; the query must not compute parts of it elsewhere, see `SESSION_SETTINGS`.
    """
    return f"try_to_binary(coalesce(array_join({expression}, '\\n'), ''), 'utf-8')"


SESSION_SETTINGS: Final = {
    # Would compute parts that an expression has twice outside of `try_to_binary`.
    "spark.sql.subexpressionElimination.enabled": "false",
}


def between(from_ms: int | None, to_ms: int | None) -> list[str]:
    """Return conditions for a span of time; its end is not part of it."""
    conditions = []
    if from_ms is not None:
        conditions.append(f"ts >= timestamp_millis({from_ms:d})")
    if to_ms is not None:
        conditions.append(f"ts < timestamp_millis({to_ms:d})")
    return conditions


def of_tenant(tenant: str, positions: Iterable[int]) -> str:
    """Return the condition for some positions in the log, and for the tenant: see `at_positions`.

    A position that the log has used twice, of a log made again, may be another tenant's too.
    """
    return f"tenant = {text(tenant)} AND ({at_positions(positions)})"


def at_positions(positions: Iterable[int]) -> str:
    """Return the condition for some positions in the log."""
    places = [read_position(position) for position in positions]
    if not places:
        return "false"
    return " OR ".join(
        f"(log_partition = {partition:d} AND log_offset = {offset:d})"
        for partition, offset in places
    )


def matches(topic_filters: Iterable[str]) -> str:
    """Return the condition that one of some valid topic filters matches `topic`."""
    return " OR ".join(f"({_matches(one)})" for one in topic_filters)


def _matches(topic_filter: str) -> str:
    if topic_filter.startswith(EVENTS_PREFIX) or not set(topic_filter) & {"+", "#"}:
        return f"topic = {text(topic_filter)}"
    levels = topic_filter.split(SEPARATOR)
    fixed = next(at for at, level in enumerate(levels) if level in ("+", "#"))
    pattern = f"topic RLIKE {text(to_regex(topic_filter))}"
    if not fixed:
        return pattern
    # Lets Spark leave out files by their least and greatest topic; `/` is followed by `0`.
    parent = SEPARATOR.join(levels[:fixed])
    return f"topic >= {text(parent)} AND topic < {text(parent + '0')} AND {pattern}"


def to_regex(topic_filter: str) -> str:
    """Return the regular expression, in Java's and Python's syntax, of a valid topic filter."""
    levels = topic_filter.split(SEPARATOR)
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    if not levels:
        return r"(?s)\A[^$].*\z" if topic_filter == "#" else ""
    patterns = ["[^/]*" if level == "+" else re.escape(level) for level in levels]
    if levels[0] == "+":  # a leading `$` never meets a leading wildcard
        patterns[0] = "(?:[^/$][^/]*)?"
    return rf"(?s)\A{SEPARATOR.join(patterns)}{'(?:/.*)?' if is_open else ''}\z"
