"""What the audits find in tables that Spark has written, each break once, and nothing else."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from api.relations.audits import AUDITS, audit_select
from api.relations.catalog import VIEWS, made_by
from api.sql.checking import check
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables

pytestmark = [
    pytest.mark.campaign("tests/resilience proves the checkers by their double"),
    pytest.mark.spark,
]

NOON: Final = "2026-01-05 12:00:00"
PROCESS: Final = "0" * 12
EXPIRY: Final = '{"message_expiry_interval": 10}'

Rows = list[dict[str, Any]]
Found = dict[str, dict[str, Any]]


def message(number: int, topic: str = "t", **more: Any) -> dict[str, Any]:
    """Return a row of `messages`, accepted so many seconds after noon."""
    return {
        "id": f"{number:012x}{PROCESS}{number:08x}",
        "topic": topic,
        "payload": b"x",
        "qos": 1,
        "retain": False,
        "client_id": "p",
        "ts": f"2026-01-05 12:00:{number:02}",
        "log_partition": 0,
        "log_offset": number,
        **more,
    }


def event(number: int, name: str, gateway: str = "gateway-1", **fields: Any) -> dict[str, Any]:
    """Return a row of `events`, so many seconds after noon."""
    told = ",".join(
        f'"{key}":{str(value).lower() if isinstance(value, bool) else value}'
        for key, value in fields.items()
    )
    return {
        "ts": f"2026-01-05 12:00:{number:02}",
        "event": name,
        "client_id": "s",
        "gateway": gateway,
        "fields": "{" + told + "}",
        "log_partition": 0,
        "log_offset": number,
    }


def delivered(number: int, of: int, topic: str = "t") -> dict[str, Any]:
    made = f'"{of:012x}{PROCESS}{of:08x}"'
    at = int(datetime(2026, 1, 5, 12, 0, of, tzinfo=UTC).timestamp() * 1000)
    return event(number, "message.delivered", id=made, topic=f'"{topic}"', received_at=at)


def retained(offset: int, topic: str = "t") -> dict[str, Any]:
    return {"topic": topic, "payload": b"x", "log_partition": 0, "log_offset": offset}


def drop(reason: str, qos: int, count: int) -> dict[str, Any]:
    return {"reason": reason, "qos": qos, "count": count, "ts": NOON, "client_id": "s"}


def will(due: str | None) -> dict[str, Any]:
    return {"client_id": "s", "will_topic": "w", "will_at": due, "connected_at": NOON}


CONNECTED: Final = "client.connected"
GONE: Final = "client.disconnected"

BY_TENANT: Final[dict[str, dict[str, Rows]]] = {
    # Nothing is wrong here.
    "clean": {
        "messages": [
            message(1),
            message(2, retain=True),
            message(3, qos=2),
            message(4, "gone", retain=True, payload=b""),
            message(9, "soon", properties=EXPIRY),
        ],
        "retained": [retained(2)],
        "drops": [drop("expired", 1, 5), drop("queue_full", 0, 5), drop("not_authorized", 1, 1)],
        "sessions": [will(None)],
        "events": [
            event(1, CONNECTED, clean_start=True, session_present=False),
            delivered(2, 1),
            delivered(15, 9, "soon"),
            event(20, CONNECTED, "gateway-2", clean_start=False, session_present=True),
            event(21, GONE),
            event(30, GONE, "gateway-2"),
        ],
    },
    "lost": {"messages": [message(1)], "drops": [drop("queue_full", 1, 7), drop("unread", 0, 2)]},
    "phantom": {"messages": [message(1)], "events": [delivered(3, 2), delivered(4, 1, "other")]},
    "duplicate-qos2": {"messages": [message(1), message(1, log_offset=2)]},
    "order": {"messages": [message(2), message(1, log_offset=3), message(5)]},
    "retained": {
        "messages": [
            message(1, "lost", retain=True),
            message(2, "old", retain=True),
            message(3, "gone", retain=True, payload=b""),
        ],
        "retained": [retained(1, "old"), retained(1, "gone")],
    },
    "will": {"sessions": [will("2026-01-05 12:01:00")]},
    "session-present": {"events": [event(1, CONNECTED, clean_start=True, session_present=True)]},
    "expired": {
        "messages": [message(1, properties=EXPIRY)],
        "events": [delivered(5, 1), delivered(40, 1)],
    },
    "two-holders": {
        "events": [
            event(1, CONNECTED),
            event(10, CONNECTED, "gateway-2"),
            event(30, GONE),
            event(40, GONE, "gateway-2"),
        ],
    },
    # A gateway that died tells no end; a topic whose message may expire says nothing.
    "open": {
        "messages": [message(1, "e", retain=True, properties=EXPIRY)],
        "drops": [drop("no_member", 1, 3)],
        # Of a topic whose history does not reach back so far.
        "events": [
            event(1, CONNECTED),
            event(10, CONNECTED, "gateway-2"),
            delivered(20, 11, "deleted"),
        ],
    },
}

BROKEN: Final = {
    "lost": (1 + 7 + 2, 9),
    "phantom": (2, 2),
    "duplicate-qos2": (1, 1),
    "order": (3, 1),
    "retained": (3, 3),
    "will": (1, 1),
    "session-present": (1, 1),
    "expired": (2, 1),
    "two-holders": (2, 1),
}
"""Per audit, in the tenant of its name: cases that are decided, and those that break it."""


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"'{value}'"
    return str(value).lower()


@pytest.fixture(scope="module")
def found(spark: SparkSession, streaming_settings: LakeSettings) -> dict[str, Found]:
    create_tables(spark, streaming_settings)
    for view in VIEWS:
        for statement in made_by(f"mqlake.{view}", streaming_settings.data_dir / "tables"):
            spark.sql(statement)
    for table in ("messages", "retained", "sessions", "events", "drops"):
        rows = [
            {"tenant": f"audit-{tenant}", **row}
            for tenant, tables in BY_TENANT.items()
            for row in tables.get(table, ())
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        values = ", ".join(
            f"({', '.join(literal(row.get(name)) for name in names)})" for row in rows
        )
        columns = ", ".join(f"`{name}`" for name in names)
        spark.sql(f"INSERT INTO {table} ({columns}) VALUES {values}")
    by_tenant: dict[str, Found] = {tenant: {} for tenant in BY_TENANT}
    query = "SELECT * FROM mqlake.audit WHERE tenant LIKE 'audit-%'"
    for row in spark.sql(query).collect():
        by_tenant[row.tenant.removeprefix("audit-")][row.audit] = row.asDict()
    return by_tenant


def test_a_system_that_keeps_its_promises_is_not_blamed(found: dict[str, Found]) -> None:
    assert set(found["clean"]) == {audit.name for audit in AUDITS}
    for name, row in found["clean"].items():
        assert (name, row["broken"], row["unknown"]) == (name, 0, 0)
        assert row["checked"] > 0
        assert (row["witness"], row["first_at"]) == (None, None)


@pytest.mark.parametrize("name", [audit.name for audit in AUDITS])
def test_each_broken_promise_is_found_and_no_other(name: str, found: dict[str, Found]) -> None:
    row = found[name][name]
    assert (row["checked"], row["broken"]) == BROKEN[name]
    assert row["witness"]
    assert row["first_at"]
    assert [other for other, its in found[name].items() if its["broken"]] == [name]


def test_what_the_tables_do_not_decide_is_unknown(found: dict[str, Found]) -> None:
    unknown = {name: row["unknown"] for name, row in found["open"].items() if row["unknown"]}
    assert unknown == {"lost": 3, "phantom": 1, "retained": 1, "two-holders": 1}
    assert not [name for name, row in found["open"].items() if row["broken"]]


def test_the_witness_says_where_to_look(found: dict[str, Found]) -> None:
    assert '"kind":"lost"' in found["retained"]["retained"]["witness"]
    assert '"gateway":"gateway-1"' in found["two-holders"]["two-holders"]["witness"]


def test_the_api_lets_the_audit_through() -> None:
    text = audit_select(lambda name: name, datetime(2026, 1, 1, tzinfo=UTC))
    checked = check(" ".join(text.split()), "default")
    assert checked.given.keys() == {"messages", "retained", "sessions", "events", "drops"}
