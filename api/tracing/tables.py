"""Queries about a message in the tables, as Spark SQL.

Text of a client is in here only as a literal that is built from its bytes.
"""

import json
from typing import Any, Final

from api.relations.views import CATALOG_SCHEMA, TOPIC_MATCHES
from api.rules import history
from api.spark.connect import Row, SparkConnect
from api.tracing.timeline import EVENTS_USED
from mqlake.records.rule_tables import rule_table
from mqlake.tables.catalogue import DEAD_LETTERS, DROPS, EVENTS, MESSAGES

MOST_CLIENTS: Final = 1_000
MOST_ROWS: Final = 5_000
_CLOCKS_MS: Final = 60_000
"""By how much the time in an identifier and that of its message may differ."""


class TraceTables:
    """Asks Spark; every method raises `SparkAway` when it does not answer.

    Args:
        connect: Opens sessions of Spark.
        tenant: Owner of the rows.
    """

    def __init__(self, connect: SparkConnect, tenant: str) -> None:
        self._connect = connect
        self._whose = tenant
        self._tenant = f"tenant = {history.text(tenant)}"

    def _rows(self, query: str) -> list[Row]:
        return self._connect.rows(query, tenant=self._whose)

    def message(self, message_id: str, at_ms: int) -> Row | None:
        """Return the row of a message.

        Args:
            message_id: 32 hexadecimal digits.
            at_ms: The time in it.
        """
        rows = self._rows(
            "SELECT topic, octet_length(payload) AS payload_bytes, qos, retain, client_id,"  # noqa: S608
            " username, origin, unix_millis(ts) AS at_ms, log_partition, log_offset"
            f" FROM {MESSAGES.name} WHERE {self._tenant} AND id = '{message_id}'"
            f" AND ts >= timestamp_millis({at_ms - _CLOCKS_MS:d})"
            f" AND ts <= timestamp_millis({at_ms + _CLOCKS_MS:d}) LIMIT 1"
        )
        return rows[0] if rows else None

    def events(
        self, topic: str, at_ms: int, client_id: str | None, message_id: str
    ) -> tuple[int, list[tuple[int, Row]]]:
        """Return events about a message and about clients that had a subscription for it.

        Of each client and filter the last events before the message and the first after it; of
        each of these clients the last times that it came and went before it; all that are about
        this message. It is one query: each costs Spark a few tenths of a second.

        Returns:
            The last offset of `mqlake.events` that the table has, -1 for none; offset and members
            of each event, in the order of the log.
        """
        before = f"ts <= timestamp_millis({at_ms:d})"
        clients = f"SELECT DISTINCT client_id FROM held ORDER BY client_id LIMIT {MOST_CLIENTS:d}"  # noqa: S608
        rows = self._rows(
            f"WITH held AS ({self._held(topic, client_id, before)})"  # noqa: S608
            f" SELECT log_offset, fields FROM held WHERE client_id IN ({clients})"
            f" UNION ALL ({self._coming(clients, before)})"
            f" UNION ALL ({self._told(message_id, at_ms)})"
            f" UNION ALL (SELECT max(log_offset), NULL FROM {EVENTS.name})"
        )
        ends = [row["log_offset"] for row in rows if row["fields"] is None]
        found = [
            (row["log_offset"], json.loads(row["fields"]))
            for row in rows
            if row["fields"] is not None
        ]
        return ends[0] if ends[0] is not None else -1, sorted(found, key=lambda one: one[0])

    def _held(self, topic: str, client_id: str | None, before: str) -> str:
        """Return the SELECT of subscriptions that match: of each the last and the next event."""
        plain = r"regexp_replace(filter, '^\\$share/[^/]*/', '')"
        matches = f"{CATALOG_SCHEMA}.{TOPIC_MATCHES}({history.text(topic)}, {plain})"
        if client_id is not None:
            matches = f"client_id = {history.text(client_id)}"
        subscribing = (
            f"SELECT *, {before} AS is_before FROM {EVENTS.name} WHERE {self._tenant}"  # noqa: S608
            f" AND event IN ('{EVENTS_USED[0]}', '{EVENTS_USED[1]}') AND {matches}"
        )
        last = (
            "row_number() OVER (PARTITION BY client_id, filter, event, is_before"
            " ORDER BY CASE WHEN is_before THEN -log_offset ELSE log_offset END)"
        )
        return (
            "SELECT log_offset, client_id, fields FROM"  # noqa: S608
            f" (SELECT *, {last} AS number FROM ({subscribing})) WHERE number = 1"
        )

    def _coming(self, clients: str, before: str) -> str:
        """Return the SELECT of the last times that clients came and went."""
        return (
            "SELECT log_offset, fields FROM (SELECT *, row_number() OVER"  # noqa: S608
            f" (PARTITION BY client_id, event ORDER BY log_offset DESC) AS number"
            f" FROM {EVENTS.name} WHERE {self._tenant} AND {before}"
            f" AND event IN ('{EVENTS_USED[2]}', '{EVENTS_USED[3]}')"
            f" AND client_id IN ({clients})) WHERE number = 1"
        )

    def _told(self, message_id: str, at_ms: int) -> str:
        """Return the SELECT of events about the message itself."""
        return (
            f"SELECT log_offset, fields FROM {EVENTS.name} WHERE {self._tenant}"  # noqa: S608
            " AND event IN ('message.delivered', 'message.acked')"
            f" AND ts >= timestamp_millis({at_ms - _CLOCKS_MS:d})"
            f" AND get_json_object(fields, '$.id') = '{message_id}' LIMIT {MOST_ROWS:d}"
        )

    def drops(self, topic: str, at_ms: int) -> list[Row]:
        """Return clients' drops of the topic since, the earliest first."""
        return self._rows(
            "SELECT client_id, reason, qos, count, gateway, unix_millis(ts) AS at_ms, log_offset"  # noqa: S608
            f" FROM {DROPS.name} WHERE {self._tenant}"
            f" AND (topic = {history.text(topic)} OR topic = '')"
            f" AND ts >= timestamp_millis({at_ms:d}) ORDER BY log_offset LIMIT {MOST_ROWS:d}"
        )

    def letters(self, log_topic: str, partition: int, offset: int) -> list[Row]:
        """Return the dead letters of a message."""
        return self._rows(
            "SELECT rule, rule_version, stage, action, error, index, source,"  # noqa: S608
            f" unix_millis(ts) AS at_ms FROM {DEAD_LETTERS.name} WHERE {self._tenant}"
            f" AND source = {history.text(log_topic)} AND log_partition = {partition:d}"
            f" AND log_offset = {offset:d} ORDER BY ts LIMIT {MOST_ROWS:d}"
        )

    def table_rows(self, table: str, position: str) -> list[Any]:
        """Return the identifiers of a rule table's rows that come of a message."""
        rows = self._rows(
            f"SELECT output_id FROM `{rule_table(self._whose, table)}`"  # noqa: S608
            f" WHERE {self._tenant}"
            f" AND contains(output_id, {history.text(position)}) LIMIT {MOST_ROWS:d}"
        )
        return [row["output_id"] for row in rows]
