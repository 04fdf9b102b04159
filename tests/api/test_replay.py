"""Replays: which messages, in which order and when, to whom; as far as it needs no Spark."""

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.jobs.jobs import Job
from api.messages.messages import MessageMaker
from api.replay.job import Replay
from api.replay.order import COLUMNS, Place, ReplayOrder, ordered_query
from api.replay.rights import check_rights
from api.replay.rows import MessageLimits
from api.replay.targets import OneClient, Published, ReplayError, ReplayTarget
from api.replay.work import replay_work
from api.spark.connect import Cancelled, SparkConnect
from api.sql.checking import CheckedQuery
from api.sql.results import Format, Result, ResultColumn
from api.sql.running import QueryLimits, QueryRunner
from mqlake.clock import ManualClock
from mqlake.records.access import Account, access_key, encode_access
from mqlake.records.messages import INBOUND, decode_message, delivery_topic
from tests.api.conftest import Api, MemoryAppender, take
from tests.api.sql.for_spark import NoFiles
from tests.api.test_access import make_key
from tests.api.test_jobs import await_end
from tests.cases import case

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
QUERY = "SELECT * FROM messages WHERE topic LIKE 'plant/%'"


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "topic": "plant/1",
        "payload_bytes": b"%d" % number,
        "qos": 1,
        "retain": False,
        "properties": None,
        "client_id": "sensor",
        "id": f"{number:032x}",
        "ts": NOW + timedelta(seconds=number),
        "log_partition": 0,
        "log_offset": number,
        **fields,
    }


class StoredRunner(QueryRunner):
    """Answers every query with rows that are there."""

    def __init__(self, folder: Path, rows: Sequence[dict[str, Any]], most: int = 1_000) -> None:
        super().__init__(SparkConnect(folder), NoFiles(), folder / "sql", 1)
        self._path = folder / "rows" / "part-0.parquet"
        self._path.parent.mkdir()
        columns = {f"c{at}": [one[name] for one in rows] for at, name in enumerate(COLUMNS)}
        pq.write_table(pa.table(columns), self._path)
        self._shown = min(len(rows), most)
        self._has_more = len(rows) > most
        self.asked: list[CheckedQuery] = []

    @contextmanager
    def run(
        self,
        query: CheckedQuery,
        form: Format,
        limits: QueryLimits,
        is_cancelled: Callable[[], bool] = lambda: False,
        *,
        caller: str = "",
    ) -> Iterator[Result]:
        assert caller, "its queries are the caller's"
        self.asked.append(query)
        columns = tuple(ResultColumn(name, "", is_json=False) for name in COLUMNS)
        yield Result(columns, (self._path,), self._shown, self._has_more)


class Waits(threading.Event):
    """Lets time pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.is_set()


def order(**fields: Any) -> ReplayOrder:
    request = {
        "query": QUERY,
        "prefix": "",
        "client_id": None,
        "speed": None,
        "rate": 50_000,
        "limit": None,
        "keep_retain": False,
        "username": "ann",
        **fields,
    }
    return ReplayOrder.from_request("default", request)


def published(log: MemoryAppender, *, keep_retain: bool = False) -> Published:
    maker = MessageMaker("local", 0, ManualClock())
    return Published(log, maker, "default", "ann", "j0b", keep_retain=keep_retain)


def replay(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    target: ReplayTarget,
    asked: ReplayOrder,
    job: Job,
    may_go_on: Callable[[], None] = lambda: None,
    **more: Any,
) -> tuple[dict[str, Any], Waits]:
    waits = Waits()
    job.cancelling = waits
    limits = QueryLimits(1_000, 10.0, 1_000_000)
    runner = StoredRunner(folder, rows, **more)
    work = Replay(
        job,
        asked,
        runner,
        limits,
        target,
        MessageLimits(1_000, 4),
        may_go_on,
        monotonic=lambda: waits.now,
    )
    return work.run(), waits


@pytest.fixture
def job() -> Job:
    return Job("j0b", "replay", "default", "", 1_790_000_000_000)


def test_messages_are_published_anew_and_say_what_they_are(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    stored = row(7, retain=True, properties='{"content_type":"a","user_property":[["k","v"]]}')
    result, _ = replay(tmp_path, [stored], published(log), order(prefix="again/"), job)
    assert result == {"sent": 1, "refused": 0, "refused_because": None}
    (record,) = log.records
    assert (record.log_topic, record.partition) == (INBOUND, -1)
    message = decode_message(record.key, record.value, record.headers, 0)
    assert (message.topic_name, message.payload, message.qos) == ("again/plant/1", b"7", 1)
    assert (message.client_id, message.username, message.retain) == ("mqlake-api", "ann", False)
    assert message.message_id.hex() != stored["id"]
    assert message.properties == {
        "content_type": "a",
        "user_property": [
            ("k", "v"),
            ("mqlake-replay", "j0b"),
            ("mqlake-replay-id", stored["id"]),
            ("mqlake-replay-time", "2026-09-01T12:00:07.000Z"),
        ],
    }


def test_retain_is_kept_when_asked_for(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    target = published(log, keep_retain=True)
    replay(tmp_path, [row(1, retain=True)], target, order(keep_retain=True), job)
    message = decode_message(log.records[0].key, b"", log.records[0].headers, 0)
    assert message.retain


def test_the_time_between_messages_is_kept_by_the_speed(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    rows = [row(0), row(1), row(1, log_offset=2), row(11)]
    _, waits = replay(tmp_path, rows, published(log), order(speed=10.0), job)
    assert [one.value for one in log.records] == [b"0", b"1", b"1", b"11"]
    assert sum(waits.waited) == pytest.approx(1.1, abs=0.01)
    assert [one for one in waits.waited if one > 0.05] == pytest.approx([0.1, 1.0], abs=0.01)


def test_the_place_is_behind_what_was_sent(tmp_path: Path, job: Job) -> None:
    replay(tmp_path, [row(1), row(2)], published(MemoryAppender()), order(), job)
    at_us = round((NOW.timestamp() + 2) * 1_000_000)
    assert job.place["after"] == [at_us, 0, 2]
    assert job.place["counts"] == {"sent": 2, "refused": 0}
    assert job.progress == 1.0


def test_a_job_that_is_resumed_asks_for_what_is_behind_its_place() -> None:
    query = ordered_query(order(), 1_790_000_000_000, Place(5, 1, 77))
    assert query.question is None  # it is another one than the caller's
    assert "ts <= timestamp_millis(1790000000000)" in query.sql
    assert "(ts, log_partition, log_offset) > (timestamp_micros(5), 1, CAST(77 AS BIGINT))" in (
        query.sql
    )
    assert query.sql.endswith("ORDER BY ts, log_partition, log_offset")
    assert "WHERE tenant = " in query.given["messages"].rows


def test_what_cannot_be_published_is_counted_and_left_out(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    rows = [
        row(1, topic="a/+"),
        row(2, topic="$SYS/x"),
        row(3, payload_bytes=bytes(1_001)),
        row(4, properties="{"),
        row(5, qos=7),
        row(6),
    ]
    result, _ = replay(tmp_path, rows, published(log), order(), job)
    assert (result["sent"], result["refused"]) == (1, 5)
    assert "wildcard" in result["refused_because"] or "a/+" in result["refused_because"]
    assert [one.value for one in log.records] == [b"6"]


def test_no_topic_gets_more_levels_than_clients_may_use(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    rows = [row(1, topic="a/b/c"), row(2, topic="a/b/c/d")]
    result, _ = replay(tmp_path, rows, published(log), order(prefix="again/"), job)
    assert (result["sent"], result["refused"]) == (1, 1)
    assert "topic name has 5 levels, expected at most 4" in result["refused_because"]
    assert [one.value for one in log.records] == [b"1"]


def test_more_than_the_limit_is_refused_unless_it_was_given(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    rows = [row(number) for number in range(4)]
    with pytest.raises(ReplayError, match="more than 2 messages"):
        replay(tmp_path, rows, published(log), order(), job, most=2)
    assert log.records == []
    (tmp_path / "given").mkdir()
    replay(tmp_path / "given", rows, published(log), order(limit=2), job, most=2)
    assert [one.value for one in log.records] == [b"0", b"1"]


def test_a_cancelled_job_sends_no_more(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()

    class Cancelling(Published):
        def send(self, messages: Sequence[Any]) -> None:
            super().send(messages)
            job.cancelling.set()

    maker = MessageMaker("local", 0, ManualClock())
    target = Cancelling(log, maker, "default", "ann", "j0b", keep_retain=False)
    rows = [row(number) for number in range(5)]
    with pytest.raises(Cancelled):
        replay(tmp_path, rows, target, order(rate=10), job)
    assert [one.value for one in log.records] == [b"0"]
    assert job.place["counts"]["sent"] == 1


# Rights of the caller who began it


def test_rights_are_asked_at_each_step(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    steps = 0

    def check() -> None:
        nonlocal steps
        steps += 1
        if steps > 3:
            raise ReplayError("gone")

    rows = [row(number) for number in range(5)]
    with pytest.raises(ReplayError, match="gone"):
        replay(tmp_path, rows, published(log), order(rate=10), job, check)
    assert [one.value for one in log.records] == [b"0", b"1"], "the first step is the query"
    assert job.place["counts"]["sent"] == 2


def test_rights_are_asked_while_it_waits_for_the_next_message(tmp_path: Path, job: Job) -> None:
    log = MemoryAppender()
    asked_at: list[float] = []
    rows = [row(0), row(3_600)]

    def check() -> None:
        asked_at.append(job.cancelling.now)  # type: ignore[attr-defined]

    replay(tmp_path, rows, published(log), order(speed=1.0), job, check)
    assert len(log.records) == 2
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert sum(pauses) > 3_500
    assert max(pauses) <= 10.0


def account(api: Api, name: str = "ann", **fields: Any) -> None:
    found = Account(**{"role": "editor", "verifier": "", "created_at": 0, **fields})
    take(api.access, access_key("account", name), encode_access(found))


def test_who_may_not_begin_a_replay_may_not_go_on_with_one(api: Api) -> None:
    callers = api.services.access.authenticator.callers
    may: dict[str, Any] = {"created_by": "root", "password_changed_at": 0}
    whole, some = order(), order(topic_filters=["plant/#", "lab/1"])
    cases: tuple[tuple[ReplayOrder, dict[str, Any], str | None], ...] = (
        (whole, {}, None),
        (whole, {"role": "admin", "tenants": ("default", "acme")}, None),
        (whole, {"role": "viewer"}, "ann, who is viewer now"),
        (whole, {"tenants": ("acme",)}, "not for the tenant default any more"),
        (whole, {"topic_filters": ("#",)}, "for some topics alone now"),
        (some, {}, None),
        (some, {"topic_filters": ("plant/#", "lab/+")}, None),
        (some, {"topic_filters": ("plant/#",)}, "no right to 'lab/1' any more"),
        (some, {"topic_filters": ()}, "no right to 'plant/#' any more"),
    )
    for asked, fields, why in cases:
        with case(str(fields)):
            account(api, **may, **fields)
            if why is None:
                check_rights(callers, asked)
                continue
            with pytest.raises(ReplayError, match=why):
                check_rights(callers, asked)
    take(api.access, access_key("account", "ann"), None)
    with pytest.raises(ReplayError, match="begun by ann, who may not use the API any more"):
        check_rights(callers, whole)
    check_rights(callers, order(username="api-token"))


def test_a_key_that_is_revoked_or_over_ends_its_replay(api: Api) -> None:
    callers = api.services.access.authenticator.callers
    made = make_key(api, "editor")
    asked = order(username=f"key:{made['id']}")
    check_rights(callers, asked)
    assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
    with pytest.raises(ReplayError, match="may not use the API any more"):
        check_rights(callers, asked)
    ends = datetime.fromtimestamp(api.clock.now_ms() / 1000 + 60, UTC).isoformat()
    asked = order(username=f"key:{make_key(api, 'editor', expires_at=ends)['id']}")
    check_rights(callers, asked)
    api.clock.advance(60)
    with pytest.raises(ReplayError, match="may not use the API any more"):
        check_rights(callers, asked)


def test_a_job_says_whose_rights_are_gone(api: Api, tmp_path: Path) -> None:
    rows = [row(number) for number in range(3)]
    runner = StoredRunner(tmp_path, rows)
    parts = replace(api.services.runs.replays, queries=runner)
    made = make_key(api, "editor")
    asked = order(username=f"key:{made['id']}")
    assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
    job = api.services.runs.jobs.start("replay", "default", "", replay_work(parts, asked))
    await_end(job)
    shown = api.get(f"/jobs/{job.id}")
    assert shown["state"] == "failed"
    assert shown["error"].endswith(f"begun by {asked.username}, who may not use the API any more")
    assert all(one.log_topic != INBOUND for one in api.log.records)


# To one client


def test_a_client_gets_them_from_its_gateway_as_they_were(
    api: Api, tmp_path: Path, job: Job
) -> None:
    api.put_session("alice", gateway="gateway-2")
    cache = api.services.gateways.sessions
    target = OneClient(api.log, cache, api.gateways, "default", "alice")
    (tmp_path / "replay").mkdir()
    replay(tmp_path / "replay", [row(1), row(2)], target, order(client_id="alice"), job)
    (record,) = api.log.records
    assert record.log_topic == delivery_topic("gateway-2")
    assert record.key == b"\0control/deliver"
    asked = json.loads(record.value or b"")
    assert (asked["tenant"], asked["client_id"]) == ("default", "alice")
    assert [b64decode(one["payload"]) for one in asked["messages"]] == [b"1", b"2"]
    assert asked["messages"][0]["received_at"] == round((NOW.timestamp() + 1) * 1000)
    assert asked["messages"][0]["from_client_id"] == "sensor"


def test_a_replay_ends_when_its_client_connects_anew(api: Api) -> None:
    api.put_session("alice")
    cache = api.services.gateways.sessions
    target = OneClient(api.log, cache, api.gateways, "default", "alice")
    api.put_session("alice", connected_at=1_600_000_000_001)
    with pytest.raises(ReplayError, match="connected again"):
        target.send([])
    api.put_session("alice", connected=False, disconnected_at=1_600_000_000_002)
    with pytest.raises(ReplayError, match="not connected"):
        target.send([])


def test_for_a_client_without_a_stored_session_every_gateway_is_asked(api: Api) -> None:
    cache = api.services.gateways.sessions
    target = OneClient(api.log, cache, api.gateways, "default", "bob")
    with pytest.raises(ReplayError, match="no gateway"):
        target.send([])
    api.hear("gateway-1")
    api.hear("gateway-2")
    target.send([])
    assert [one.log_topic for one in api.log.records] == [
        *map(delivery_topic, ("gateway-1", "gateway-2"))
    ]


# Over REST


def test_a_replay_is_a_job_that_keeps_what_was_asked_for(api: Api) -> None:
    body = {"query": QUERY, "prefix": "again/", "speed": 2.0}
    answer = api.request("POST", "/replay", json=body)
    assert answer.status_code == 202, answer.text
    view = answer.json()
    assert (view["kind"], view["rule_id"], view["tenant"]) == ("replay", "", "default")
    kept = json.loads(api.log.records[0].value or b"")["request"]
    assert (kept["prefix"], kept["speed"], kept["rate"]) == ("again/", 2.0, 1000)
    assert ReplayOrder.from_request("default", kept).prefix == "again/"


def test_what_makes_no_replay_is_refused(api: Api) -> None:
    for body, said in (
        ({"query": "DELETE FROM messages"}, "expected one SELECT"),
        ({"query": QUERY, "prefix": "a/#"}, "prefix"),
        ({"query": QUERY, "prefix": "$SYS/"}, "prefix"),
        ({"query": QUERY, "speed": 0}, "speed"),
        ({"query": QUERY, "rate": 0}, "rate"),
        ({"query": QUERY, "limit": 1_000_001}, "limit"),
        ({"query": QUERY, "client_id": "alice", "prefix": "a/"}, "no prefix"),
    ):
        answer = api.request("POST", "/replay", json=body)
        assert answer.status_code == 422, answer.text
        assert said in answer.text
    api.put_session("alice", connected=False, disconnected_at=1_600_000_000_000)
    answer = api.request("POST", "/replay", json={"query": QUERY, "client_id": "alice"})
    assert answer.status_code == 409
    assert "not connected" in answer.json()["detail"]
