"""Reference tables: from an upload over HTTP to a Delta table that rules and the API read."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from api.log.following import Followed
from api.wiring.resources import REFERENCES
from mqlake.clock import ManualClock
from mqlake.records.messages import RULES
from mqlake.records.references import (
    ReferenceKey,
    decode_reference_state,
    reference_key,
    reference_table_path,
)
from rules.errors import RuleError
from streaming.rules.log import RuleRecord
from streaming.rules.references import ATTEMPTS, FORGOTTEN_SECONDS, References, relation
from streaming.settings.lake import LakeSettings
from tests.api.conftest import AUTHORIZED, Api, api

__all__ = ["api"]  # a fixture

pytestmark = [pytest.mark.promise, pytest.mark.spark]


class KilledError(Exception):
    """The application dies before it says what it has done."""


class MemoryLog:
    """Reads what the API has written, and lets it read what is written here."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read = 0
        self.written: list[tuple[bytes, bytes | None]] = []
        self.fails = False

    def read(self, timeout_seconds: float) -> list[RuleRecord]:
        new = self._api.log.records[self._read :]
        self._read += len(new)
        return [RuleRecord(one.log_topic, one.key, one.value) for one in new]

    def is_caught_up(self) -> bool:
        return self._read == len(self._api.log.records)

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        if self.fails:
            raise KilledError
        for key, value in records:
            self.written.append((key, value))
            followed = Followed(RULES, len(self.written), key, value)
            assert self._api.references.take([followed], is_old=False) == []

    def close(self) -> None:
        pass


class System:
    """The API, the application that writes tables, and what is between them."""

    def __init__(self, api: Api, spark: SparkSession, settings: LakeSettings) -> None:
        self.api = api
        self.spark = spark
        self.settings = settings.model_copy(update={"data_dir": api.data_dir})
        self.clock = ManualClock()
        self.log = MemoryLog(api)
        self.references = self.start()

    def start(self) -> References:
        """Start the application, as after a kill."""
        self.log._read = 0
        references = References(self.spark, self.settings, self.log, self.clock, retry_seconds=0)
        for key, value in self.log.written:
            assert value is not None
            references._take(key, value)
        self.references = references
        return references

    def put(self, name: str, text: str, *, json_: bool = False, **more: Any) -> dict[str, Any]:
        content_type = "application/json" if json_ else "text/csv"
        answer = self.api.client.request(
            "PUT",
            f"/api/v1/references/{name}",
            {**AUTHORIZED, "Content-Type": content_type},
            content=text.encode(),
            params={"wait": 0, **more},
        )
        assert answer.status_code == 202, answer.text
        self.references.step(0)
        found: dict[str, Any] = self.api.get(f"/references/{name}")
        return found

    def rows(self, name: str, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            given = {**more, "cursor": cursor} if cursor else more
            page = self.api.get(f"/references/{name}/rows", **given)
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def versions(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.get(f"/references/{name}/versions")["items"]
        return found


@pytest.fixture
def system(api: Api, spark: SparkSession, streaming_settings: LakeSettings) -> System:
    return System(api, spark, streaming_settings)


def test_rows_come_back_as_they_were_given(system: System) -> None:
    given: list[dict[str, Any]] = [
        {"id": "b\n'q'", "n": -(2**63), "d": 0.1, "ok": True, "z": None},
        {"id": "a", "n": 2**63 - 1, "d": 1e300, "ok": False, "z": " ü\u2028\r"},
        {"id": "", "n": None, "d": None, "ok": None, "z": ""},
    ]

    found = system.put("plain", json.dumps(given), json_=True)

    assert (found["state"], found["version"], found["rows"]) == ("ready", 0, 3)
    assert system.rows("plain") == sorted(given, key=lambda row: str(row["id"]))
    read = relation(system.spark, system.settings, "default", "plain")
    assert read.schema.simpleString() == ("struct<id:string,n:bigint,d:double,ok:boolean,z:string>")
    assert sorted(row["id"] for row in read.collect()) == ["", "a", "b\n'q'"]
    assert system.references.columns("default")["plain"][1] == ("n", "BIGINT")
    assert list((system.api.data_dir / "references").iterdir()) == []


def test_each_upload_is_a_version_to_read_and_go_back_to(system: System) -> None:
    system.put("machines", "id,limit\nm1,7\nm2,8\n", description="first")
    found = system.put("machines", "id,kind\nm1,pump\n", key="kind")
    assert (found["version"], found["key"]) == (1, ["kind"])
    assert [one["name"] for one in found["columns"]] == ["id", "kind"]
    assert system.rows("machines", version=0) == [
        {"id": "m1", "limit": 7},
        {"id": "m2", "limit": 8},
    ]

    path = "/references/machines/versions/0/rollback"
    assert system.api.request("POST", path, params={"wait": 0}).status_code == 202
    system.references.step(0)

    found = system.api.get("/references/machines")
    assert (found["version"], found["key"], found["description"]) == (2, ["id"], "first")
    assert system.rows("machines") == [{"id": "m1", "limit": 7}, {"id": "m2", "limit": 8}]
    assert [
        (one["version"], one["kind"], one["of_version"]) for one in system.versions("machines")
    ] == [
        (2, "rollback", 0),
        (1, "put", None),
        (0, "put", None),
    ]
    missing = system.api.request("POST", "/references/machines/versions/9/rollback")
    assert missing.status_code == 404
    assert system.api.request("GET", "/references/machines/rows?version=9").status_code == 404


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_pages_of_rows_are_of_one_version_and_lose_none(system: System) -> None:
    lines = [f"{n % 7},k{n},{n}" for n in range(50)]
    system.put("paged", "\n".join(["a,b,n", *lines]), key="a,b")

    first = system.api.get("/references/paged/rows", limit=20)
    system.put("paged", "a,b,n\n1,x,1\n", key="a,b")
    rest = system.api.get("/references/paged/rows", limit=100, cursor=first["next_cursor"])

    assert (first["version"], rest["version"]) == (0, 0)
    found = [row["n"] for row in first["items"] + rest["items"]]
    assert found == sorted(range(50), key=lambda n: (n % 7, f"k{n}"))
    bad = system.api.request("GET", "/references/paged/rows?cursor=WyIwIiwgIlsxXSJd")
    assert bad.status_code == 422


@pytest.mark.parametrize("number", [1, 2])
def test_a_change_is_made_once_whenever_the_application_is_killed(
    system: System, number: int
) -> None:
    if number == 2:
        system.put("killed", "id\n0\n")
    system.log.fails = True
    with pytest.raises(KilledError):
        system.put("killed", "id\n1\n2\n")

    system.log.fails = False
    system.start().step(0)

    found = system.api.get("/references/killed")
    assert (found["state"], found["version"], found["rows"]) == ("ready", number - 1, 2)
    assert system.rows("killed") == [{"id": 1}, {"id": 2}]
    assert list((system.api.data_dir / "references").iterdir()) == []

    system.start().step(0)

    assert len(system.versions("killed")) == number


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_a_deleted_table_is_gone_and_another_may_take_its_place(system: System) -> None:
    system.put("gone", "id\n1\n")
    system.put("gone", "id\n2\n")
    assert system.api.request("DELETE", "/references/gone", params={"wait": 0}).status_code == 202
    system.references.step(0)

    assert not reference_table_path(system.api.data_dir, "default", "gone").exists()
    assert not system.spark.catalog.tableExists("reference_gone")
    with pytest.raises(RuleError, match="there is no reference table 'gone'"):
        relation(system.spark, system.settings, "default", "gone")
    assert "gone" not in system.references.columns("default")

    found = system.put("gone", "name\nx\n")

    assert (found["version"], found["rows"]) == (0, 1)
    assert [row.asDict() for row in system.spark.table("reference_gone").collect()] == [
        {"name": "x"}
    ]
    assert len(system.versions("gone")) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_a_table_of_a_deleted_tenant_leaves_no_number(system: System, is_restarted: bool) -> None:
    system.put("numbered", "id\n1\n")
    system.put("numbered", "id\n2\n")
    path = "/references/numbered"
    assert system.api.request("DELETE", path, params={"wait": 0}).status_code == 202
    system.references.step(0)
    written = len(system.log.written)
    system.api.services.kept[REFERENCES].changes.forget("default")
    if is_restarted:
        system.start()
    system.references.step(0)
    assert system.log.written[written:] == [], "nothing is carried out again"
    assert system.api.references.get("default", "numbered") is None
    system.put("numbered", "name\nx\n")
    state = decode_reference_state(system.log.written[-1][1] or b"")
    assert (state.number, state.version, state.rows) == (1, 0, 1)


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_a_change_that_cannot_be_made_says_so_and_leaves_the_table(system: System) -> None:
    system.put("broken", "id\n1\n")
    for path in (system.api.data_dir / "references").iterdir():
        path.unlink()
    answer = system.api.client.request(
        "PUT",
        "/api/v1/references/broken",
        {**AUTHORIZED, "Content-Type": "text/csv"},
        content=b"id\n2\n",
        params={"wait": 0},
    )
    assert answer.status_code == 202
    for path in (system.api.data_dir / "references").iterdir():
        path.unlink()
    system.references.step(0)

    found = system.api.get("/references/broken")
    assert (found["state"], found["error"]) == ("failed", "the upload is gone")
    assert (found["version"], ATTEMPTS) == (0, 3)
    assert system.rows("broken") == [{"id": 1}]
    assert system.put("broken", "id\n3\n")["state"] == "ready"


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_uploads_that_nobody_asked_for_go_after_an_hour(system: System) -> None:
    folder = system.api.data_dir / "references"
    folder.mkdir()
    for name in ("old", "new"):
        (folder / f"{name}.jsonl").write_text("{}\n")
    system.clock.advance(time.time() + FORGOTTEN_SECONDS - system.clock.now_ms() / 1000 - 100)
    system.references.step(0)
    assert len(list(folder.iterdir())) == 2

    system.clock.advance(200)
    system.start().step(0)

    assert list(folder.iterdir()) == []


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_a_record_that_is_none_is_passed_over(system: System) -> None:
    key = reference_key(ReferenceKey("request", "default", "bad"))
    system.references._take(key, b"{}")
    system.references._take(b"r/too/many/parts", b"{}")

    assert system.put("good", "id\n1\n")["state"] == "ready"
    state = decode_reference_state(system.log.written[-1][1] or b"")
    assert (state.reference, state.number) == ("good", 1)


@pytest.mark.campaign("the other tests of this file write tables the same way")
def test_a_running_query_joins_each_batch_with_the_newest_version(
    system: System, tmp_path: Path
) -> None:
    """What `relation` returns once is read anew for each batch of a query."""
    system.put("limits", "id,limit\nm1,7\n")
    incoming = tmp_path / "in"
    incoming.mkdir()
    stream = system.spark.readStream.schema("id STRING, n INT").json(str(incoming))
    joined = stream.join(relation(system.spark, system.settings, "default", "limits"), "id", "left")
    query = (
        joined.writeStream.format("memory")
        .queryName("joined_limits")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def add(number: int) -> None:
        (incoming / f".{number}").write_text(json.dumps({"id": "m1", "n": number}))
        (incoming / f".{number}").rename(incoming / f"{number}.json")
        query.processAllAvailable()

    try:
        add(1)
        system.put("limits", "id,limit\nm1,8\nm2,9\n")
        add(2)
        found = system.spark.table("joined_limits").orderBy("n").collect()
    finally:
        query.stop()

    assert [(row["n"], row["limit"]) for row in found] == [(1, 7), (2, 8)]


def test_other_tenants_have_tables_of_their_own(system: System) -> None:
    system.put("shared", "id\n1\n")
    system.put("shared", "id\nx\ny\n", tenant="acme")  # what it answers is the default tenant's

    assert system.rows("shared") == [{"id": 1}]
    assert system.rows("shared", tenant="acme") == [{"id": "x"}, {"id": "y"}]
    assert [key for key, _ in system.log.written] == [b"t/default/shared", b"t/acme/shared"]
