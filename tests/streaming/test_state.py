"""The state tables after batches of the log: each batch may come again, in part or whole."""

import base64
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from api.sql.checking import check
from mqlake.clock import ManualClock
from mqlake.records.audit import AUDIT_EVENT, AuditRecord, encode_audit
from mqlake.records.messages import (
    EVENTS,
    INBOUND,
    RULES,
    SESSIONS,
    Barrier,
    Message,
    barrier_key,
    encode_properties,
    message_headers,
    message_key,
)
from mqlake.records.rules import Activation, ActivationState, encode_activation
from mqlake.records.versions import NEWEST_READ
from mqlake.tables.catalogue import EVENTS as EVENTS_TABLE
from mqlake.tables.catalogue import MESSAGES, RETAINED, TABLES
from streaming.engine.spark import small_session
from streaming.settings.lake import LakeSettings
from streaming.tables import state as state_module
from streaming.tables.maintenance import EXPIRE_SECONDS, OPTIMIZE_SECONDS, Maintenance, small_files
from streaming.tables.retained import committed_offsets
from streaming.tables.state import (
    MOST_REST_SECONDS,
    NOTE_SECONDS,
    REST,
    StateClosedError,
    StateWriter,
)
from streaming.tables.tables import create_tables, table_path
from tests.streaming.written_checkpoints import note_end

pytestmark = pytest.mark.spark

KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
NOW_MS = 1_700_000_000_000


class Log:
    """Records as the Kafka source gives them, and the batches that the state makes of them."""

    def __init__(self, spark: SparkSession, settings: LakeSettings, checkpoint: Path) -> None:
        self.spark = small_session(spark)
        self.settings = settings
        self.checkpoint = checkpoint
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.clock = ManualClock(now_ms=NOW_MS)
        self.rests: list[float] = []
        self.state = self.restarted()
        self._ends = {(INBOUND, 0): 0, (INBOUND, 1): 0, (SESSIONS, 0): 0, (EVENTS, 0): 0}
        self._ends[RULES, 0] = 0
        self._pending: list[tuple[Any, ...]] = []
        self._batches: list[list[tuple[Any, ...]]] = []

    def restarted(self) -> StateWriter:
        """Return the state as a new process has it."""
        return StateWriter(self.settings, self.checkpoint, self.clock, self.rests.append)

    def append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        *,
        partition: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        offset = self._ends[log_topic, partition]
        self._ends[log_topic, partition] = offset + 1
        timestamp = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
        self._pending.append((key, value, log_topic, partition, offset, timestamp, headers or []))

    def skip(self, log_topic: str, records: int) -> None:
        """Have so many that concern nobody here."""
        self._ends[log_topic, 0] += records

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = True,
        partition: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        message = Message(
            "default",
            topic,
            payload,
            1,
            retain,
            bytes(16),
            "publisher",
            0,
            "local/gateway-1",
            username="alice",
            properties=properties,
        )
        key = message_key("default", topic)
        headers = message_headers(message)
        self.append(INBOUND, key, payload, partition=partition, headers=headers)

    def say(self, kind: str, client_id: str, value: dict[str, Any] | None) -> None:
        """Write a session (`s`) or its progress (`p`)."""
        encoded = None if value is None else json.dumps({"v": 1} | value).encode()
        self.append(SESSIONS, f"{kind}/default/{client_id}".encode(), encoded)

    def tell(self, event: str, **fields: Any) -> None:
        record = {"v": 1, "event": event, "ts": NOW_MS, "tenant": "default", "client_id": "c"}
        self.append(EVENTS, b"default/c", json.dumps(record | {"gateway": "g1"} | fields).encode())

    def apply(self) -> None:
        """Make a batch of what was written, as Spark does: first its end, then its records."""
        ends: dict[str, dict[str, int]] = {}
        for (log_topic, partition), end in self._ends.items():
            ends.setdefault(log_topic, {})[str(partition)] = end
        batch_id = len(self._batches)
        note_end(self.checkpoint, batch_id, ends)
        self._batches.append(self._pending)
        self._pending = []
        self.repeat(batch_id)

    def repeat(self, batch_id: int) -> None:
        """Apply a batch once more, as after a crash."""
        records = self._batches[batch_id]
        self.state(self.spark.createDataFrame(records, KAFKA), batch_id)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(query).collect()]

    def retained(self) -> dict[str, bytes]:
        rows = self.rows("SELECT topic, payload FROM retained WHERE tenant = 'default'")
        return {topic: bytes(payload) for topic, payload in rows}

    def committed(self) -> dict[int, int]:
        return committed_offsets(self.settings.data_dir.absolute() / "tables" / "retained")


@pytest.fixture
def log(spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path) -> Iterator[Log]:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    for table in TABLES:  # the catalog may know them in the folder of another test
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    create_tables(spark, settings)
    yield Log(spark, settings, tmp_path / "checkpoints" / "state")
    for table in TABLES:
        spark.sql(f"DROP TABLE {table.name}")


def session(client_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "00000000000000aa",
        "tenant": "default",
        "client_id": client_id,
        "protocol_level": 5,
        "username": None,
        "keep_alive": 60,
        "clean_start": False,
        "expiry": 4294967295,
        "gateway": "gateway-1",
        "incarnation": "i",
        "connected": True,
        "connected_at": NOW_MS,
        "disconnected_at": None,
        "reason": None,
        "subscriptions": [],
        "will": None,
        "will_at": None,
    } | fields


def subscription(topic_filter: str, **fields: Any) -> dict[str, Any]:
    return {
        "filter": topic_filter,
        "qos": 1,
        "no_local": False,
        "retain_as_published": False,
        "retain_handling": 0,
        "identifier": None,
        "starts": [0, 0],
    } | fields


class TestRetained:
    def test_the_last_message_of_each_topic_is_kept_with_all_it_had(self, log: Log) -> None:
        log.publish("a", b"1")
        log.publish("a", b"2", properties={"content_type": "x", "message_expiry_interval": 90})
        log.publish("b", b"3", partition=1)
        log.publish("a", b"not retained", retain=False)
        log.append(INBOUND, barrier_key(Barrier("g", "i", 1, -1)), b"")
        log.apply()
        assert log.retained() == {"a": b"2", "b": b"3"}
        (row,) = log.rows(
            "SELECT qos, id, client_id, username, protocol_level, properties, origin, "
            "unix_millis(ts), unix_millis(expires_at), log_partition, log_offset "
            "FROM retained WHERE topic = 'a'"
        )
        properties = encode_properties({"content_type": "x", "message_expiry_interval": 90})
        assert row == (
            1,
            "0" * 32,
            "publisher",
            "alice",
            4,
            properties.decode(),
            "local/gateway-1",
            NOW_MS,
            NOW_MS + 90_000,
            0,
            1,
        )

    def test_an_empty_payload_deletes_within_a_batch_and_across_batches(self, log: Log) -> None:
        log.publish("same", b"1")
        log.publish("same", b"")
        log.publish("later", b"1")
        log.publish("back", b"1")
        log.publish("back", b"")
        log.publish("back", b"2")
        log.publish("never was", b"")
        log.apply()
        assert log.retained() == {"later": b"1", "back": b"2"}
        log.publish("later", b"")
        log.apply()
        assert log.retained() == {"back": b"2"}

    def test_a_batch_that_comes_again_changes_nothing(self, log: Log) -> None:
        log.publish("a", b"1")
        log.publish("b", b"1")
        log.apply()
        log.publish("a", b"2")
        log.publish("b", b"")
        log.apply()
        log.state = log.restarted()
        log.repeat(1)
        assert log.retained() == {"a": b"2"}
        log.repeat(0)  # a checkpoint that was restored from a copy, say
        assert log.retained()["a"] == b"2"

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_records_of_others_are_left_out(self, log: Log) -> None:
        log.append(INBOUND, b"no slash", b"x", headers=[("mqtt", b"\1\4\4")])
        log.append(
            INBOUND, b"default/later", b"x", headers=[("mqtt", bytes((NEWEST_READ + 1, 4, 4)))]
        )
        log.append(INBOUND, b"default/\xff", b"x", headers=[("mqtt", b"\1\4\4")])
        log.append(INBOUND, b"default/short", b"x", headers=[("mqtt", b"\4")])
        log.append(SESSIONS, b"s/default/c", b"not json")
        log.append(SESSIONS, b"\xff", b"{}")
        log.append(SESSIONS, b"g/gateway-1", b'{"v":1,"incarnation":"i","marks":[1]}')
        log.append(
            SESSIONS, b"s/default/d", json.dumps(session("d") | {"v": NEWEST_READ + 1}).encode()
        )
        log.append(EVENTS, b"default/c", b"[]")
        log.append(EVENTS, b"default/c", b"\xff")
        log.append(EVENTS, b"default/c", None)
        log.apply()
        counts = "+".join(f"(SELECT count(*) FROM {t.name})" for t in TABLES)
        assert log.rows(f"SELECT {counts}") == [(0,)]

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_a_row_goes_when_its_message_expires(self, log: Log) -> None:
        maintenance = Maintenance(log.spark, log.settings, log.state, log.clock)
        log.publish("short", b"1", properties={"message_expiry_interval": 90})
        log.publish("long", b"1", properties={"message_expiry_interval": 4294967295})
        log.publish("ever", b"1")
        log.apply()
        maintenance.check()
        assert set(log.retained()) == {"short", "long", "ever"}
        log.clock.advance(EXPIRE_SECONDS)
        maintenance.check()
        assert set(log.retained()) == {"short", "long", "ever"}
        log.clock.advance(EXPIRE_SECONDS)
        maintenance.check()
        assert set(log.retained()) == {"long", "ever"}
        assert log.committed() == {0: 3, 1: 0}


class TestOffsets:
    def test_each_commit_says_where_the_log_goes_on(self, log: Log) -> None:
        assert log.committed() == {}
        log.publish("a", b"1")
        log.publish("b", b"1", partition=1)
        log.publish("c", b"1", partition=1, retain=False)
        log.apply()
        assert log.committed() == {0: 1, 1: 2}
        assert log.restarted().next_offsets == {0: 1, 1: 2}

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_without_retained_messages_there_is_a_commit_a_minute(self, log: Log) -> None:
        def commits() -> int:
            path = table_path(log.settings, TABLES[1]) / "_delta_log"
            return len(list(path.glob("*.json")))

        before = commits()
        for _ in range(3):
            log.publish("a", b"1", retain=False)
            log.apply()
        assert commits() == before
        log.clock.advance(NOTE_SECONDS)
        log.publish("a", b"1", retain=False)
        log.apply()
        assert (commits(), log.committed()) == (before + 1, {0: 4, 1: 0})
        log.clock.advance(NOTE_SECONDS)
        log.apply()
        assert commits() == before + 1, "nothing has advanced"
        log.publish("a", b"1", retain=False)
        log.apply()
        log.clock.advance(NOTE_SECONDS)
        log.state.note(log.spark)
        assert (commits(), log.committed()) == (before + 2, {0: 5, 1: 0}), "no batch follows"
        log.clock.advance(NOTE_SECONDS)
        log.state.note(log.spark)
        assert commits() == before + 2
        assert small_files(table_path(log.settings, TABLES[1])) == 0, "no file without rows"

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_joining_files_keeps_them(self, log: Log) -> None:
        for number in range(3):
            log.publish(str(number), b"1")
            log.apply()
        maintenance = Maintenance(log.spark, log.settings, log.state, log.clock)
        retained = log.retained()
        with maintenance._writing(TABLES[1]):
            log.spark.sql("OPTIMIZE retained")
        assert (log.retained(), log.committed()) == (retained, {0: 3, 1: 0})


class TestSessions:
    """Each scenario is one client's; a batch is what they all wrote before they yield."""

    COLUMNS = (
        "SELECT id, connected, reason, subscriptions, will_topic, in_flight_out, in_flight_in, "
        "qos2_unacknowledged, cursor, unix_millis(disconnected_at) FROM sessions "
    )

    def test_sessions_and_subscriptions_are_those_of_the_last_records(self, log: Log) -> None:
        running: list[Iterator[None]] = [
            self._a_session_is_a_row_until_it_ends(log),
            self._progress_counts_for_the_session_it_names(log),
            self._the_last_of_a_batch_counts(log),
            self._subscriptions_are_those_of_the_last_session_record(log),
            self._one_of_two_clients_leaves(log),
            self._subscriptions_with_records_of_their_own_are_those_of_their_session(log),
        ]
        batch_id = -1
        while running := [scenario for scenario in running if _goes_on(scenario)]:
            log.apply()
            batch_id += 1
            if batch_id % 2 == 1:
                log.repeat(batch_id)  # as after a crash
        assert batch_id == 4

    def _a_session_is_a_row_until_it_ends(self, log: Log) -> Iterator[None]:
        query = self.COLUMNS + "WHERE client_id = 'row'"
        will = {"topic": "w", "payload": base64.b64encode(b"x").decode(), "qos": 1}
        subscriptions = [subscription("a/#"), subscription("$share/g/b", qos=2, identifier=7)]
        log.say("s", "row", session("row", will=will, subscriptions=subscriptions))
        yield
        first = ("00000000000000aa", True, None, 2, "w", 0, 0, 0, None, None)
        assert log.rows(query) == [first]
        out = [[1, 1, 0, 5, 0], [2, 2, 0, 6, 0], [3, 2, 1, 1, 1]]
        progress = {"id": "00000000000000aa", "cursor": [9, 4], "out": out, "in": [8]}
        log.say("p", "row", progress | {"settled": False})
        yield
        assert log.rows(query) == [(*first[:5], 3, 1, 3, [9, 4], None)]
        gone = session("row", connected=False, disconnected_at=NOW_MS, reason="bye")
        log.say("s", "row", gone)
        yield
        ended = ("00000000000000aa", False, "bye", 0, None, 3, 1, 3, [9, 4], NOW_MS)
        assert log.rows(query) == [ended]
        log.say("s", "row", None)
        log.say("p", "row", None)
        yield
        assert log.rows(query) == []

    def _progress_counts_for_the_session_it_names(self, log: Log) -> Iterator[None]:
        query = "SELECT id, in_flight_out, cursor FROM sessions WHERE client_id = 'named'"
        old = {"id": "00000000000000aa", "cursor": [1], "out": [[1, 1, 0, 5, 0]], "in": []}
        log.say("s", "named", session("named"))
        log.say("p", "named", old)
        yield
        log.say("s", "named", session("named", id="00000000000000bb"))
        yield
        assert log.rows(query) == [("00000000000000bb", 0, None)]
        log.say("p", "named", old)
        yield
        assert log.rows(query) == [("00000000000000bb", 0, None)]
        log.say("p", "named", old | {"id": "00000000000000bb", "cursor": [2]})
        yield
        assert log.rows(query) == [("00000000000000bb", 1, [2])]

    def _the_last_of_a_batch_counts(self, log: Log) -> Iterator[None]:
        query = (
            "SELECT client_id, id, reason FROM sessions "
            "WHERE client_id IN ('last', 'with/slashes', 'unknown')"
        )
        log.say("s", "last", session("last"))
        log.say("s", "last", None)
        log.say("s", "last", session("last", id="00000000000000bb"))
        log.say("s", "with/slashes", session("with/slashes", connected=False))
        log.say("s", "with/slashes", None)
        log.say("p", "unknown", {"id": "00000000000000cc", "cursor": [], "out": [], "in": []})
        yield
        assert log.rows(query) == [("last", "00000000000000bb", None)]
        log.say("s", "last", session("last", id="00000000000000bb", reason="later"))
        yield
        assert log.rows(query) == [("last", "00000000000000bb", "later")]

    def _subscriptions_are_those_of_the_last_session_record(self, log: Log) -> Iterator[None]:
        query = (
            "SELECT filter, qos, identifier FROM subscriptions "
            "WHERE client_id = 'other' ORDER BY ALL"
        )
        both = [subscription("a", identifier=3), subscription("b")]
        log.say("s", "other", session("other", subscriptions=both))
        yield
        assert log.rows(query) == [("a", 1, 3), ("b", 1, None)]
        log.say("s", "other", session("other", subscriptions=[subscription("b", qos=0)]))
        yield
        assert log.rows(query) == [("b", 0, None)]
        log.say("p", "other", {"id": "00000000000000aa", "cursor": [], "out": [], "in": []})
        yield
        assert log.rows(query) == [("b", 0, None)]

    def _one_of_two_clients_leaves(self, log: Log) -> Iterator[None]:
        query = (
            "SELECT client_id, filter FROM subscriptions "
            "WHERE client_id IN ('stays', 'leaves') ORDER BY ALL"
        )
        for client_id in ("stays", "leaves"):
            log.say("s", client_id, session(client_id, subscriptions=[subscription("a")]))
        yield
        assert log.rows(query) == [("leaves", "a"), ("stays", "a")]
        log.say("s", "leaves", None)
        yield
        assert log.rows(query) == [("stays", "a")]

    def _subscriptions_with_records_of_their_own_are_those_of_their_session(
        self, log: Log
    ) -> Iterator[None]:
        query = (
            "SELECT filter, qos, own_record FROM subscriptions "
            "WHERE client_id = 'own/1' ORDER BY filter, own_record"
        )
        counts = "SELECT id, subscriptions FROM sessions WHERE client_id = 'own/1'"

        def say(topic_filter: str, qos: int | None = 1, session_id: str = "aa") -> None:
            value = None
            if qos is not None:
                record = {"v": 2, "id": session_id, **subscription(topic_filter, qos=qos)}
                value = json.dumps(record).encode()
            log.append(SESSIONS, f"u/default/own/1\0{topic_filter}".encode(), value)

        log.say("s", "own/1", session("own/1", id="aa", subscriptions=[subscription("a")]))
        say("b/+")
        say("c", qos=0)
        say("c", qos=2)
        yield
        assert log.rows(query) == [("a", 1, False), ("b/+", 1, True), ("c", 2, True)]
        assert log.rows(counts) == [("aa", 3)]
        say("b/+", None)
        say("d")
        yield
        assert log.rows(query) == [("a", 1, False), ("c", 2, True), ("d", 1, True)]
        log.say("s", "own/1", session("own/1", id="aa", more=2, connected=False))
        yield
        assert log.rows(query) == [("c", 2, True), ("d", 1, True)]
        assert log.rows(counts) == [("aa", 2)]
        # Another session: the records of the first one mean nothing, and are removed later.
        log.say("s", "own/1", None)
        log.say("s", "own/1", session("own/1", id="bb"))
        say("e", session_id="bb")
        yield
        assert log.rows(query) == [("e", 1, True)]
        say("c", None)
        say("d", None)
        say("e", None, "bb")
        yield
        assert (log.rows(query), log.rows(counts)) == ([], [("bb", 0)])

    def test_an_earlier_batch_that_comes_again_changes_nothing(self, log: Log) -> None:
        log.say("s", "c", session("c", id="00000000000000bb"))
        log.apply()
        log.say("s", "c", session("c", id="00000000000000bb", reason="later"))
        log.apply()
        log.repeat(0)
        assert log.rows("SELECT client_id, id, reason FROM sessions") == [
            ("c", "00000000000000bb", "later")
        ]


def _goes_on(scenario: Iterator[None]) -> bool:
    return next(scenario, scenario) is None


class TestEvents:
    def test_each_event_is_appended_once(self, log: Log) -> None:
        log.tell("client.connected")
        log.tell("session.subscribed", filter="a/#", qos=2)
        log.tell("client.disconnected", reason="keep alive")
        log.tell("later.kind", extra=1)
        log.tell("message.dropped", topic="a", qos=1, reason="queue_full", count=17)
        log.apply()
        log.repeat(0)
        log.state = log.restarted()
        log.repeat(0)
        assert log.rows("SELECT event, filter, qos, reason FROM events ORDER BY log_offset") == [
            ("client.connected", None, None, None),
            ("session.subscribed", "a/#", 2, None),
            ("client.disconnected", None, None, "keep alive"),
            ("later.kind", None, None, None),
        ]
        extra = "SELECT get_json_object(fields, '$.extra') FROM events WHERE event = 'later.kind'"
        assert log.rows(extra) == [("1",)]
        assert log.rows("SELECT topic, qos, reason, count, gateway FROM drops") == [
            ("a", 1, "queue_full", 17, "g1")
        ]

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_each_change_is_a_row_of_its_own_table(self, log: Log) -> None:
        record = AuditRecord(
            ts=1_600_000_000_123,
            tenant="default",
            tenants=("acme", "beta"),
            caller="key:1",
            role="admin",
            credential="key",
            address="127.0.0.1",
            agent="curl/8",
            request_id="r1",
            operation="PUT /rules/{id}",
            target="/rules/hot",
            status=200,
            asked={"sql": "SELECT 'ü\ud800'"},
            before=None,
            after={"version": 2, "actions": []},
        )
        log.append(EVENTS, b"default/", encode_audit(record))
        log.tell(AUDIT_EVENT, caller="file", operation="reload", after={"rules": 3})
        log.tell("client.connected")
        log.apply()
        log.repeat(0)
        first, second = log.rows(
            "SELECT caller, role, operation, target, status, gateway, before, after, "
            "unix_millis(ts), get_json_object(asked, '$.sql') LIKE 'SELECT%' "
            "FROM audit_log ORDER BY log_offset"
        )
        assert first == (
            *("key:1", "admin", "PUT /rules/{id}", "/rules/hot", 200, None, None),
            *('{"version":2,"actions":[]}', 1_600_000_000_123, True),
        )
        assert (second[0], second[5], second[7]) == ("file", "g1", '{"rules":3}')
        assert log.rows("SELECT tenant, tenants FROM audit_log ORDER BY log_offset") == [
            ("default", '["acme","beta"]'),
            ("default", None),
        ]
        for tenant, is_for_all, seen in (
            ("acme", False, ["key:1"]),
            ("beta", False, ["key:1"]),
            ("acme", True, ["key:1"]),
            ("gamma", False, []),
            ("default", False, []),
            ("default", True, ["file", "key:1"]),
        ):
            checked = check(
                "SELECT * FROM audit_log", tenant, is_administrator=True, is_for_all=is_for_all
            )
            condition = checked.given["audit_log"].rows.partition(" WHERE ")[2]
            found = log.rows(f"SELECT caller FROM audit_log WHERE {condition}")
            assert sorted(one[0] for one in found) == seen, (tenant, is_for_all)
        assert log.rows("SELECT event FROM events") == [("client.connected",)]


@pytest.mark.promise
def test_a_batch_cut_short_anywhere_ends_right_when_it_comes_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish("a", b"1")
    log.publish("b", b"1")
    log.say("s", "c", session("c", subscriptions=[subscription("x")]))
    log.tell("client.connected")
    log.tell("message.dropped", topic="a", qos=1, reason="queue_full", count=1)
    log.apply()

    log.publish("a", b"2")
    log.publish("b", b"")
    log.say("s", "c", session("c", subscriptions=[subscription("y")], reason="r"))
    log.tell("client.disconnected", reason="r")
    log.tell("message.dropped", topic="a", qos=1, reason="expired", count=2)
    log.tell(AUDIT_EVENT, operation="reload")

    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    apply = log.apply
    merges = ["merge_retained", "merge_sessions", "merge_subscriptions"]
    steps = [*merges, "event_rows", "drop_rows", "audit_rows"]
    for step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(state_module, step, killed)
            with pytest.raises(KilledError):
                apply()
        apply = partial(log.repeat, 1)
    log.state = log.restarted()
    log.repeat(1)
    assert log.retained() == {"a": b"2"}
    assert log.rows("SELECT client_id, reason FROM sessions") == [("c", "r")]
    assert log.rows("SELECT filter FROM subscriptions") == [("y",)]
    assert log.rows("SELECT event FROM events ORDER BY log_offset") == [
        ("client.connected",),
        ("client.disconnected",),
    ]
    assert log.rows("SELECT reason, count FROM drops ORDER BY log_offset") == [
        ("queue_full", 1),
        ("expired", 2),
    ]
    assert log.rows("SELECT operation FROM audit_log") == [("reload",)]


def test_a_record_that_is_no_text_is_a_row_of_its_table(log: Log) -> None:
    event = {"v": 1, "event": "message.dropped", "ts": NOW_MS, "tenant": "default", "count": 1}
    broken = json.dumps(event | {"detail": "?"}).encode().replace(b"?", b"\xff")
    log.append(EVENTS, b"default/", broken)
    log.apply()
    assert log.rows("SELECT detail, count FROM drops") == [("\ufffd", 1)]
    assert log.rows("SELECT event FROM events") == []


@pytest.mark.campaign("the other tests of this file write the same tables")
def test_after_a_batch_there_is_a_rest_by_how_long_it_took(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (1.0, 0.5, 60.0):
        monkeypatch.setattr(log.state, "_apply", lambda *_: log.clock.advance(seconds))  # noqa: B023
        log.apply()
    assert log.rests == [0.5 * REST, MOST_REST_SECONDS], "none after the first"


def test_what_spark_writes_is_for_its_owner_alone(log: Log, tmp_path: Path) -> None:
    log.publish("a", b"1")
    log.tell("client.connected")
    log.apply()
    written = list((tmp_path / "tables").rglob("*"))
    assert any(path.suffix == ".parquet" for path in written)
    assert [path for path in written if path.stat().st_mode & 0o077] == []


@pytest.mark.campaign("the other tests of this file write the same tables")
def test_after_a_batch_that_could_not_take_all_there_is_no_rest(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.settings = log.settings.model_copy(update={"state_max_records": 1000})
    log.state = log.restarted()
    monkeypatch.setattr(log.state, "_apply", lambda *_: log.clock.advance(0.5))
    for records in (1, 1000, 999, 5):
        log.skip(INBOUND, records)
        log.apply()
    assert log.rests == [0.5 * REST], "after the last"


def test_a_state_that_is_closed_takes_no_batch(log: Log) -> None:
    log.state.close(timeout_seconds=1)
    log.publish("a", b"1")
    with pytest.raises(StateClosedError):
        log.apply()
    assert log.retained() == {}
    log.state = log.restarted()
    log.repeat(0)
    assert log.retained() == {"a": b"1"}


@pytest.mark.campaign("the other tests of this file write the same tables")
def test_maintenance_joins_the_small_files_of_a_table_that_has_many(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.tables.maintenance.MOST_SMALL_FILES", 3)
    maintenance = Maintenance(log.spark, log.settings, log.state, log.clock)
    events, messages = (table_path(log.settings, one) for one in (EVENTS_TABLE, MESSAGES))
    log.publish("a", b"1")
    for _ in range(3):
        log.tell("client.connected")
        log.apply()
        log.spark.sql(
            "INSERT INTO messages SELECT 'id','default','a',X'00',1,false,false,'c',NULL,4,NULL,"
            "'o',current_timestamp(),0,1"
        )
    assert (small_files(events), small_files(messages)) == (3, 3)
    log.clock.advance(OPTIMIZE_SECONDS)
    maintenance.check()
    assert (small_files(events), small_files(messages)) == (1, 1)
    assert log.rows("SELECT count(*) FROM events") == [(3,)]
    # One of each kind: nobody's but history's, the state's, and whose commits say offsets.
    monkeypatch.setattr("streaming.tables.maintenance.TABLES", (MESSAGES, EVENTS_TABLE, RETAINED))
    maintenance.vacuum()
    assert log.rows("SELECT count(*) FROM messages") == [(3,)]
    assert (log.retained(), log.committed()) == ({"a": b"1"}, {0: 1, 1: 0})


class TestRules:
    QUERY = (
        "SELECT id, version, sql, enabled, actions, state, state_version, error, "
        "unix_millis(created_at) FROM rules ORDER BY id"
    )

    @staticmethod
    def actions(path: str, body: str) -> list[dict[str, Any]]:
        """Return actions with what may be secret in two places, and with what is shown as it is."""
        other = {"topic": "a/${b}", "headers": {"x": "y"}, "n": 1.5, "more": {"deep": [1, '"']}}
        args = {"url": "https://x/", "body": body}
        fallback = [{"function": "http", "args": args, "fallback": []}]
        return [
            {"function": "http", "args": {"url": f"https://x/{path}"}, "fallback": fallback},
            {"function": "log", "args": other, "fallback": []},
        ]

    def define(self, log: Log, rule: str, version: int) -> None:
        value = {"id": rule, "tenant": "default", "version": version, "name": "n", "sql": "s"}
        value |= {"description": "", "enable": True, "actions": self.actions("path", "text")}
        value |= {"created_at": NOW_MS, "updated_at": NOW_MS, "made_by": f"key:{version}"}
        log.append(RULES, f"d/default/{rule}".encode(), json.dumps(value).encode())
        log.append(RULES, f"v/default/{rule}/{version}".encode(), json.dumps(value).encode())

    def answer(
        self, log: Log, rule: str, version: int, state: ActivationState, error: str | None
    ) -> None:
        value = encode_activation(Activation("default", rule, state, version, 1, error))
        log.append(RULES, f"a/default/{rule}".encode(), value)

    @pytest.mark.campaign("the other tests of this file write the same tables")
    def test_records_of_another_form_are_left_out(self, log: Log) -> None:
        self.define(log, "good", 1)
        (record,) = [json.loads(one[1]) for one in log._pending if one[0] == b"d/default/good"]
        http = [{"function": "http", "args": {"url": 17}}]
        for name, value in (
            ("text", "text"),
            ("more", record | {"more": 1}),
            ("url", record | {"actions": http}),
            ("character", record | {"name": "\ud800"}),
        ):
            log.append(RULES, f"d/default/{name}".encode(), json.dumps(value).encode())
        large = {"version": 2**70, "created_at": 2**62, "updated_at": 2**70}
        log.append(RULES, b"d/default/large", json.dumps(record | large).encode())
        log.append(RULES, b"d/default/\xff", b"\xff")
        log.append(RULES, b"a/default/good", b"{}")
        log.apply()
        columns = "id, version, state, unix_millis(created_at), unix_millis(updated_at)"
        assert log.rows(f"SELECT {columns} FROM rules ORDER BY id") == [
            ("good", 1, None, NOW_MS, NOW_MS),
            ("large", None, None, None, None),
        ]

    def test_a_rule_is_a_row_with_its_state_until_it_is_deleted(self, log: Log) -> None:
        self.define(log, "r", 1)
        log.append(RULES, b"c", b'{"v":1,"change":1}')
        log.apply()
        actions = json.dumps(self.actions("***", "***"), separators=(",", ":"))
        assert log.rows(self.QUERY) == [("r", 1, "s", True, actions, None, None, None, NOW_MS)]
        self.answer(log, "r", 1, "running", None)
        self.define(log, "q", 1)
        self.answer(log, "q", 1, "failed", "why")
        log.apply()
        self.define(log, "r", 2)
        log.apply()
        expected = [
            ("q", 1, "s", True, actions, "failed", 1, "why", NOW_MS),
            ("r", 2, "s", True, actions, "running", 1, None, NOW_MS),
        ]
        assert log.rows(self.QUERY) == expected
        assert log.rows("SELECT id, made_by FROM rules ORDER BY id") == [
            ("q", "key:1"),
            ("r", "key:2"),
        ]
        log.repeat(1)
        log.repeat(0)
        assert log.rows(self.QUERY) == expected
        log.append(RULES, b"d/default/r", None)
        log.append(RULES, b"a/default/q", None)
        log.apply()
        assert log.rows(self.QUERY) == expected[:1]
        log.repeat(2)
        assert [row[0] for row in log.rows(self.QUERY)] in (["q"], ["q", "r"])
