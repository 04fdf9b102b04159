"""A tenant is deleted with all that it has, by steps that may be done again."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import pytest
from deltalake import DeltaTable

from api.jobs.jobs import Job
from api.log.following import Followed
from api.rules.rerun_log import Begin, encode_begin
from api.wiring import tenant_deletion
from api.wiring.tenant_deletion import DELETE_TENANT, TABLES, deletion_work
from launcher.testing.systems import await_condition
from mqlake.errors import OperationalError
from mqlake.records.messages import CONTROL_KEY_PREFIX, EVENTS, GATEWAYS, INBOUND, RULES
from mqlake.records.references import (
    KeyKind,
    ReferenceKey,
    ReferenceRequest,
    ReferenceState,
    encode_reference_request,
    encode_reference_state,
    reference_key,
)
from mqlake.records.rule_tables import rule_table
from mqlake.records.rules import rerun_key
from tests.api.conftest import Api
from tests.api.test_access import bearer, make_key
from tests.api.test_jobs import await_end
from tests.api.test_retained import put

HEAT = rule_table("acme", "rule_heat")


class Spark:
    """Has rows of `acme` once in each table."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left = {*(one.name for one in TABLES), HEAT}
        self.is_away = False

    @contextmanager
    def session(self, _settings: Mapping[str, str], _cancelled: Any) -> Iterator["Spark"]:
        if self.is_away:
            raise OperationalError("Spark is away")
        yield self

    def rows(self, statement: str, _seconds: float, **_more: Any) -> list[dict[str, Any]]:
        self.asked.append(statement)
        table = statement.split()[2]
        if not statement.startswith("DELETE"):
            return []
        assert statement.endswith("WHERE tenant = 'acme'")
        count = int(table in self.left)
        self.left.discard(table)
        return [{"num_affected_rows": count}]


@pytest.fixture
def spark(api: Api, monkeypatch: pytest.MonkeyPatch) -> Spark:
    found = Spark()
    parts: Any = {"spark": found}
    api.put_in("runs", tenants=replace(api.services.runs.tenants, **parts))
    others = ("rules", "rule_heat", rule_table("beta", "rule_heat"), "audit_log", "ref_x")
    for name in (HEAT, *others):
        log = api.data_dir / "tables" / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").touch()
    monkeypatch.setattr(tenant_deletion, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(tenant_deletion, "POLL_SECONDS", 0.0)
    return found


@pytest.fixture
def furnished(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Tenants `acme` and `beta` with the same things; a gateway and a table that obey."""
    for tenant in ("acme", "beta"):
        named = {"tenant": tenant}
        assert api.request("PUT", f"/tenants/{tenant}", json={}).status_code == 200
        rule = {"id": "hot", "sql": "SELECT payload.t AS t FROM 'a/+'"}
        made = api.request("POST", "/rules", json=rule, params={**named, "wait": 0})
        assert made.status_code in (201, 202)
        schema = {"name": "s", "type": "avro"}
        source = json.dumps({"type": "record", "name": "R", "fields": []})
        made = api.request("POST", "/schemas", json={**schema, "source": source}, params=named)
        assert made.status_code == 201
        api.put_session("one", **named)
        api.put_session("two", connected=False, **named)
        put(api.data_dir, "a/1", **named)
    api.hear("gateway-1")
    append = api.log.append

    def obey(log_topic: str, key: bytes, value: bytes | None, **more: Any) -> int:
        offset = append(log_topic, key, value, **more)
        if key == CONTROL_KEY_PREFIX + b"disconnect":
            asked = json.loads(value or b"")
            assert asked["end_session"]
            api.put(f"s/{asked['tenant']}/{asked['client_id']}", None)
        if log_topic == INBOUND and not value:
            table = DeltaTable(api.data_dir / "tables" / "retained")
            table.delete("tenant = 'acme' AND topic = 'a/1'")
        return offset

    monkeypatch.setattr(api.log, "append", obey)
    return api


def run(api: Api, job: Job) -> dict[str, Any]:
    return deletion_work(api.services.runs.tenants, "acme", "ann")(job)


def new_job() -> Job:
    return Job("j", DELETE_TENANT, "acme", "", 0, request={"by": "ann"})


def seen(api: Api, tenant: str) -> dict[str, int]:
    paths = ("/rules", "/schemas", "/clients", "/retained")
    return {path: len(api.get(path, tenant=tenant)["items"]) for path in paths}


def test_all_of_a_tenant_goes_and_nothing_of_another(furnished: Api, spark: Spark) -> None:
    before = seen(furnished, "beta")
    result = run(furnished, new_job())
    assert result == {
        "rules": 1,
        "schemas": 1,
        "references": 0,
        "sessions": 2,
        "retained": 1,
        "keys_and_accounts": 0,
        "rows": 6,
    }
    # Everybody has the schema of Sparkplug B.
    assert seen(furnished, "acme") == {"/rules": 0, "/schemas": 1, "/clients": 0, "/retained": 0}
    assert seen(furnished, "beta") == before
    assert [one["name"] for one in furnished.get("/tenants")["items"]] == ["beta", "default"]
    assert not spark.left
    vacuumed = {one.split()[1] for one in spark.asked if one.startswith("VACUUM")}
    assert vacuumed == {*(one.name for one in TABLES), HEAT}
    told = json.loads(furnished.log.records[-1].value or b"")
    assert (told["event"], told["tenant"], told["deleted_tenant"], told["by"]) == (
        *("tenant.deleted", "default", "acme", "ann"),
    )


def latest(api: Api) -> dict[tuple[str, bytes], bytes | None]:
    """Return what compaction leaves of what was written."""
    return {(one.log_topic, one.key): one.value for one in api.log.records}


def test_no_key_of_the_log_names_it_any_more(furnished: Api, spark: Spark) -> None:
    """Its rules' versions, what was counted of them, its tables and its jobs go as well."""
    for tenant in ("acme", "beta"):
        named = {"tenant": tenant}
        rule = {"id": "gone", "sql": "SELECT payload.t AS t FROM 'a/+'"}
        furnished.request("POST", "/rules", json=rule, params={**named, "wait": 0})
        furnished.request("DELETE", "/rules/gone", params=named)
        furnished.request("PUT", "/rules/hot/metrics/reset", params=named)
        furnished.rules.take(
            [Followed(RULES, 10**6, rerun_key(tenant, "hot"), encode_begin(Begin({0: 0}, {0: 0})))],
            is_old=False,
        )
        furnished.references.take(deleted_reference(tenant), is_old=False)
        finished = furnished.services.runs.jobs.start("dry_run", tenant, "hot", lambda _: {})
        await_end(finished)
    asked = run(furnished, new_job())
    assert asked["rules"] == 1

    def left() -> list[bytes]:
        return [key for (_, key), value in latest(furnished).items() if value and b"acme" in key]

    await_condition(lambda: left() == [], "jobs are erased, too")
    kept = {key for (topic, key), value in latest(furnished).items() if value and topic == RULES}
    assert {b"d/beta/hot", b"v/beta/hot/1", b"v/beta/gone/1"} <= kept
    assert (RULES, rerun_key("acme", "hot")) in latest(furnished)
    for kind in ("request", "state"):
        key = reference_key(ReferenceKey(kind, "acme", "machines"))
        assert (RULES, key) in latest(furnished)
    jobs = furnished.services.runs.jobs.all()
    assert [one.tenant for one in jobs if one.kind == "dry_run"] == ["beta"]
    made = furnished.request(
        "POST", "/rules", json={"id": "hot", "sql": rule["sql"]}, params={"tenant": "acme"}
    )
    assert made.json()["version"] == 1, "as if there had been none"


def deleted_reference(tenant: str) -> list[Followed]:
    """Return the records of a reference table that was deleted."""
    request = ReferenceRequest(tenant, "machines", 2, "delete", 0)
    state = ReferenceState(tenant, "machines", 2, "deleted")
    values = {
        "request": encode_reference_request(request),
        "state": encode_reference_state(state),
    }
    return [
        Followed(RULES, 10**6, reference_key(ReferenceKey(kind, tenant, "machines")), values[kind])
        for kind in get_args(KeyKind)
    ]


def test_it_goes_on_with_the_step_at_which_it_was(furnished: Api, spark: Spark) -> None:
    job = new_job()
    spark.is_away = True
    with pytest.raises(OperationalError):
        run(furnished, job)
    assert furnished.get("/tenants")["items"][0]["state"] == "suspended"
    assert job.place["done"][-1] == "revoking its keys and accounts"
    again = Job("j", DELETE_TENANT, "acme", "", 0, request=job.request, place=job.place)
    spark.is_away = False
    written = len(furnished.log.records)
    assert run(furnished, again)["sessions"] == 2, "counted before"
    topics = [one.log_topic for one in furnished.log.records[written:]]
    assert set(topics[:-2]) == {RULES}, "the numbers of its rules' versions"
    assert topics[-2:] == [GATEWAYS, EVENTS], "that it is gone, and that it is done"


@pytest.mark.parametrize("stop", range(7))
def test_each_step_may_be_done_again(furnished: Api, spark: Spark, stop: int) -> None:
    job = new_job()
    run(furnished, job)
    furnished.request("PUT", "/tenants/acme", json={})
    again = Job("j", DELETE_TENANT, "acme", "", 0, place={"done": job.place["done"][:stop]})
    run(furnished, again)
    assert "acme" not in [one["name"] for one in furnished.get("/tenants")["items"]]


def test_keys_for_it_alone_are_revoked(furnished: Api, spark: Spark) -> None:
    mine = make_key(furnished, tenants=["acme"])
    both = make_key(furnished, tenants=["acme", "beta"])
    every = make_key(furnished)
    run(furnished, new_job())
    for key, status in ((mine, 401), (both, 200), (every, 200)):
        assert furnished.request("GET", "/session", bearer(key["key"])).status_code == status
    assert furnished.get(f"/keys/{both['id']}")["tenants"] == ["beta"]
    gone = [one.key for one in furnished.log.records if one.value is None]
    assert f"k/{mine['id']}".encode() in gone


def test_without_a_gateway_it_waits_for_one(furnished: Api, spark: Spark) -> None:
    furnished.clock.advance(600)
    with pytest.raises(OperationalError, match="no gateway is alive"):
        run(furnished, new_job())


def test_it_is_a_job_that_administrators_of_all_tenants_look_after(
    furnished: Api, spark: Spark
) -> None:
    assert furnished.request("DELETE", "/tenants/default").status_code == 409
    assert furnished.request("DELETE", "/tenants/nobody").status_code == 404
    spark.is_away = True
    for client_id in ("one", "two"):  # this thread alone may write the cache
        furnished.put(f"s/acme/{client_id}", None)
    job = furnished.request("DELETE", "/tenants/acme").json()
    assert (job["kind"], job["tenant"]) == (DELETE_TENANT, "acme")

    def state() -> str:
        found: str = furnished.get(f"/jobs/{job['id']}")["state"]
        return found

    await_condition(lambda: state() == "failed", "it has failed")
    for more in ({"role": "editor"}, {"role": "admin", "tenants": ["acme"]}):
        key = bearer(make_key(furnished, **more)["key"])
        for method, path in (("DELETE", ""), ("POST", "/resume")):
            answer = furnished.request(method, f"/jobs/{job['id']}{path}", key)
            assert answer.status_code == 403
    spark.is_away = False
    assert furnished.request("POST", f"/jobs/{job['id']}/resume").status_code == 202
    await_condition(lambda: state() == "succeeded", "it is done")


def test_a_tenant_that_is_being_deleted_is_not_changed(
    furnished: Api, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked: Callable[..., bool] = lambda *_: True  # noqa: E731
    monkeypatch.setattr("api.routes.clients.tenants.is_being_deleted", is_asked)
    for method in ("PUT", "DELETE"):
        assert furnished.request(method, "/tenants/acme", json={}).status_code == 409
