"""Two tenants of a running system: rules, their actions, queries, traces and replays stay apart."""

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest

from launcher.testing.systems import LocalSystem, await_condition
from mqlake.api_client import ApiClient
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.log_topics import COMPACTED_LOG_TOPICS
from tests.integration.test_rules_api import Rest

pytestmark = [pytest.mark.promise, pytest.mark.system]

TENANTS = ("doors-a", "doors-b", "default")
TRICKS = (
    "SELECT * FROM messages",
    "SELECT * FROM messages WHERE tenant = 'doors-a'",
    "SELECT * FROM messages WHERE 1 = 1 OR tenant = 'doors-a'",
    "SELECT * FROM messages m JOIN messages n ON m.topic = n.topic OR true",
    "SELECT * FROM messages UNION ALL SELECT * FROM messages",
    "WITH messages AS (SELECT * FROM messages) SELECT * FROM messages",
    "SELECT (SELECT max(payload_text) FROM messages WHERE tenant = 'doors-a') AS x",
    "SELECT * FROM messages WHERE topic IN (SELECT topic FROM messages WHERE tenant <> 'doors-b')",
    "SELECT * FROM (VALUES (1)) AS t(x) LEFT JOIN messages ON true",
    "SELECT * FROM spark_catalog.default.messages",
    "SELECT * FROM `default`.`messages`",
    "SELECT * FROM delta.`tables/messages`",
    "SELECT * FROM messages VERSION AS OF 1",
    "SELECT * FROM outputs",
    "SELECT * FROM retained",
    "SELECT * FROM events",
    "SELECT * FROM sessions",
    "SELECT * FROM usage",
    "WITH `select` AS (SELECT 1 AS z) SELECT b.* FROM SELECT a, default.messages AS b",
    (
        "SELECT 1 FROM messages WHERE CAST(payload_bytes AS STRING) = topic"
        " AND CAST(CASE WHEN topic LIKE '%of-%' THEN concat('P:', topic) END AS INT) > 5"
    ),
)


@pytest.fixture(scope="module")
def rest(system: LocalSystem) -> Rest:
    return Rest(system)


@pytest.fixture(scope="module")
def published(rest: Rest) -> dict[str, str]:
    """A rule of one name in two tenants, and a message to one topic in three; by tenant its id."""
    rule: dict[str, Any] = {"id": "doors", "sql": "SELECT payload.x AS x FROM 'doors/in'"}
    for tenant in TENANTS[:2]:
        action = {"function": "republish", "args": {"topic": "doors/out"}}
        rest.make(f"/rules?tenant={tenant}", {**rule, "actions": [action]})
    identifiers = {}
    for tenant in TENANTS:
        message = {"topic_name": "doors/in", "payload": {"x": f"of-{tenant}"}, "retain": True}
        status, made = rest.ask("POST", f"/publish?tenant={tenant}", message)
        assert status == 200, made
        identifiers[tenant] = made["message_id"]
    for tenant in TENANTS:
        count = 1 if tenant == "default" else 2
        await_condition(partial(has_rows, rest, tenant, count), f"rows of {tenant}")
    return identifiers


def query(rest: Rest, tenant: str, text: str) -> Any:
    return rest.ask("POST", f"/sql?tenant={tenant}", {"query": text})[1]


def rows(rest: Rest, tenant: str) -> list[list[str]]:
    text = "SELECT topic, payload_text FROM messages WHERE topic LIKE 'doors/%' ORDER BY topic"
    found: list[list[str]] = query(rest, tenant, text).get("rows", [])
    return found


def is_answered(rest: Rest, tenant: str, text: str, expected: list[list[Any]]) -> bool:
    found: bool = query(rest, tenant, text).get("rows") == expected
    return found


def has_rows(rest: Rest, tenant: str, count: int) -> bool:
    return len(rows(rest, tenant)) >= count


def test_a_rule_takes_and_makes_messages_of_its_own_tenant(
    rest: Rest, published: dict[str, str]
) -> None:
    for tenant in TENANTS:
        mine = json.dumps({"x": f"of-{tenant}"}, separators=(",", ":"))
        expected = [["doors/in", mine], ["doors/out", mine]]
        assert rows(rest, tenant) == expected[: 1 if tenant == "default" else 2]


def test_no_query_reads_another_tenants_rows(rest: Rest, published: dict[str, str]) -> None:
    for text in TRICKS:
        told = json.dumps(query(rest, "doors-b", text))
        assert "of-doors-a" not in told, text
        assert "of-default" not in told, text


def test_what_a_tenant_uses_is_in_sql(rest: Rest, published: dict[str, str]) -> None:
    counted = "kind LIKE 'rule%' AND kind <> 'rule_evaluation_ms'"
    text = f"SELECT kind, name, value FROM usage WHERE {counted} ORDER BY kind"
    kinds = (("rule_evaluations", 1), ("rule_failures", 0), ("rule_outputs", 1))
    expected = [[kind, "doors", value] for kind, value in kinds]
    for tenant in TENANTS[:2]:
        await_condition(partial(is_answered, rest, tenant, text, expected), "its usage")
    told = query(rest, "default", text)["rows"]
    assert "doors" not in [name for _, name, _ in told]
    stored = "SELECT value FROM usage WHERE kind = 'stored_rows' AND name = 'messages'"
    for tenant in TENANTS[:2]:  # one that came in, and one that the rule made
        await_condition(partial(is_answered, rest, tenant, stored, [[2]]), "what it has stored")


def test_a_tenant_whose_rules_cost_too_much_takes_nothing_from_another(rest: Rest) -> None:
    limits = {"rule_ms_per_second": 1}
    assert rest.ask("PUT", "/tenants/costs-a", {"limits": limits})[0] == 200
    hashes = ", ".join(f"sha512(repeat(topic, {8000 - n})) AS h{n}" for n in range(100))
    for tenant, rule, sql in (
        ("costs-a", "costly", f"SELECT {hashes} FROM 'costs/in'"),
        ("costs-b", "cheap", "SELECT payload.n AS n FROM 'costs/in'"),
    ):
        action = {"function": "republish", "args": {"topic": "costs/out"}}
        made = {"id": rule, "sql": sql, "actions": [action]}
        rest.make(f"/rules?tenant={tenant}", made)
    sent = 0

    def is_paused() -> bool:
        nonlocal sent
        sent += 1
        for tenant in ("costs-a", "costs-b"):
            message = {"topic_name": "costs/in", "payload": {"n": sent}}
            assert rest.ask("POST", f"/publish?tenant={tenant}", message)[0] == 200
        return bool(rest.get("/rules/costly?tenant=costs-a")["state"] == "paused")

    await_condition(is_paused, "more than 60 ms of a minute were taken")
    paused = rest.get("/rules/costly?tenant=costs-a")
    assert "the rules of tenant 'costs-a' took" in paused["error"], paused
    assert "1 are allowed (rule_ms_per_second)" in paused["error"], paused
    taken = partial(rest.get, "/rules/costly/metrics?tenant=costs-a")
    await_condition(lambda: taken()["evaluation_ms"] > 60, "the API has heard of it, too")
    assert rest.get("/rules/cheap?tenant=costs-b")["state"] == "running"
    made_of = partial(rest.get, "/rules/cheap/metrics?tenant=costs-b")
    await_condition(lambda: made_of()["actions"][0]["success"] == sent, "all outputs of the other")
    assert rest.ask("PUT", "/tenants/costs-a", {})[0] == 200
    status, made = rest.ask("POST", "/rules/costly/resume?tenant=costs-a", {"from": "now"})
    assert (status, made["rule"]["state"]) == (200, "running"), made


def test_a_message_is_traced_by_its_own_tenant_alone(rest: Rest, published: dict[str, str]) -> None:
    message_id = published["doors-a"]
    assert rest.ask("GET", f"/messages/{message_id}/trace?tenant=doors-a")[0] == 200
    status, told = rest.ask("GET", f"/messages/{message_id}/trace?tenant=doors-b")
    assert status == 404
    assert "of-doors-a" not in json.dumps(told)


def test_retained_messages_and_rules_are_listed_for_their_own_tenant(
    rest: Rest, published: dict[str, str]
) -> None:
    for path in ("/retained", "/rules", "/rules/doors/metrics"):
        assert "of-doors-a" not in json.dumps(rest.get(f"{path}?tenant=doors-b"))
    assert "doors" not in [one["id"] for one in rest.get("/rules?tenant=default")["items"]]


def test_live_messages_and_replays_stay_in_their_tenant(
    system: LocalSystem, rest: Rest, published: dict[str, str]
) -> None:
    seen: dict[str, list[str]] = {"doors-a": [], "doors-b": []}
    last = "doors/again/doors/in"

    def read(tenant: str) -> None:
        events = ApiClient(system.data_dir).events(
            "/live/messages", topic_filter="#", tenant=tenant
        )
        for name, data in events:
            if name == "message":
                seen[tenant].append(f"{data['topic_name']} {data['payload']}")
                if data["topic_name"] == last and data["tenant"] == tenant:
                    return

    def are_open() -> bool:
        for tenant in seen:
            rest.ask("POST", f"/publish?tenant={tenant}", {"topic_name": "doors/open"})
        return all(seen.values())

    readers = [threading.Thread(target=read, args=(tenant,)) for tenant in seen]
    for reader in readers:
        reader.start()
    await_condition(are_open, "both streams are open")
    for tenant in seen:
        text = "SELECT * FROM messages WHERE topic = 'doors/in'"
        done = rest.run(f"/replay?tenant={tenant}", {"query": text, "prefix": "doors/again/"})
        assert done["sent"] == 1, done
    for reader in readers:
        reader.join(180)
        assert not reader.is_alive()
    for tenant, other in (("doors-a", "doors-b"), ("doors-b", "doors-a")):
        assert f'{last} {{"x":"of-{tenant}"}}' in seen[tenant]
        assert not [one for one in seen[tenant] if f"of-{other}" in one or "default" in one]


def test_a_key_for_one_tenant_gets_nothing_of_another(
    rest: Rest, published: dict[str, str]
) -> None:
    asked = {"role": "editor", "description": "doors", "tenants": ["doors-b"]}
    key = rest.ask("POST", "/keys", asked)[1]["key"]
    bound = rest.as_caller(key)
    assert has_rows(bound, "doors-b", 2)
    jobs = bound.get("/jobs")["items"]
    assert {one["tenant"] for one in jobs} == {"doors-b"}, "of the replay"
    for path in (
        "/clients",
        "/retained",
        "/rules",
        "/topics",
        "/live/messages",
        "/live/outputs",
        f"/messages/{published['doors-a']}/trace",
    ):
        assert bound.ask("GET", f"{path}?tenant=doors-a&topic_filter=doors/in")[0] == 403
    assert bound.ask("POST", "/sql?tenant=doors-a", {"query": "SELECT 1"})[0] == 403
    assert bound.ask("GET", "/gateways")[0] == 403


def test_no_log_shows_what_tenants_send_or_keep_secret(
    system: LocalSystem, rest: Rest, published: dict[str, str]
) -> None:
    """The engine, the lake and the runner say what fails, of whichever tenant, in one log each."""
    hidden, sent = "hidden-of-costs-c", "sent-by-costs-c"
    assert rest.ask("PUT", "/tenants/costs-c", {})[0] == 200
    asked = {"role": "editor", "description": "costs", "tenants": ["costs-c"]}
    key = rest.ask("POST", "/keys", asked)[1]["key"]
    bound = rest.as_caller(key)
    headers = {"Authorization": f"Bearer {hidden}"}
    for rule, sql in (
        ("fails", "SELECT 12 / payload.z AS x FROM 'costs/hidden'"),
        ("refused", "SELECT * FROM 'costs/hidden'"),
    ):
        http = {"url": f"http://127.0.0.1:9/{hidden}", "headers": headers, "body": "${payload}"}
        made = {"id": rule, "sql": sql, "actions": [{"function": "http", "args": http}]}
        bound.make("/rules?tenant=costs-c", made)
    message = {"topic_name": "costs/hidden", "payload": {"z": 0, "x": sent}}
    assert bound.ask("POST", "/publish?tenant=costs-c", message)[0] == 200

    def stages() -> list[str]:
        return sorted(one["stage"] for one in bound.get("/dead_letters?tenant=costs-c")["items"])

    await_condition(lambda: stages() == ["action", "evaluate"], "both failures are rows")
    words = [hidden, sent, key, *(f"of-{tenant}" for tenant in TENANTS[:2])]
    logs = [path for path in (system.data_dir / "logs").iterdir() if path.is_file()]
    assert {"router.log", "lake.log", "rules.log", "api.log"} <= {path.name for path in logs}
    shown = {
        (path.name, word) for path in logs for word in words if word.encode() in path.read_bytes()
    }
    assert not shown


def keys_of(system: LocalSystem, tenant: str) -> set[bytes]:
    """Return the keys of all compacted log topics that name a tenant and have a value."""

    async def read() -> set[bytes]:
        reader = KafkaLogReader(system.state().bootstrap_servers)
        try:
            return {
                key
                for log_topic in COMPACTED_LOG_TOPICS
                for key in await reader.read_compacted(log_topic, 60)
                if tenant.encode() in key
            }
        finally:
            await reader.close()

    return asyncio.run(read())


@pytest.mark.campaign("tests/api/test_tenant_deletion.py holds what is deleted, and when")
def test_a_tenant_is_deleted_with_all_that_it_has(
    system: LocalSystem, rest: Rest, published: dict[str, str]
) -> None:
    assert {b"d/doors-a/doors", b"v/doors-a/doors/1"} <= keys_of(system, "doors-a")
    before = rows(rest, "doors-b")
    assert rest.ask("PUT", "/tenants/doors-a", {})[0] == 200
    status, job = rest.ask("DELETE", "/tenants/doors-a")
    assert status == 202, job
    path = f"/jobs/{job['id']}"
    await_condition(
        lambda: rest.get(path)["state"] not in ("queued", "running"),
        "it is deleted",
        timeout_seconds=500,  # a dozen of tables, each gone through twice and vacuumed
    )
    done = rest.get(path)
    assert done["state"] == "succeeded", done
    assert (done["result"]["rules"], done["result"]["retained"]) == (1, 1)
    assert done["result"]["rows"] >= 3
    for relation in ("messages", "events", "drops", "dead_letters", "retained"):
        assert query(rest, "doors-a", f"SELECT * FROM {relation}")["rows"] == []
    for listed in ("/rules", "/retained", "/clients"):
        assert rest.get(f"{listed}?tenant=doors-a")["items"] == []
    assert "doors-a" not in [one["name"] for one in rest.get("/tenants")["items"]]
    after = rows(rest, "doors-b")  # with what of it was on its way to the table before
    assert [one for one in before if one not in after] == []
    assert len(rest.get("/retained?tenant=doors-b")["items"]) == 1
    # The job that did it, and the engine's note of where the rule counted, go by themselves.
    later = {b"a/doors-a/doors", f"doors-a/{job['id']}".encode()}
    await_condition(lambda: keys_of(system, "doors-a") <= later, "no key of the log names it")
    # Rows that are gone for good are not waited for: history goes on for others.
    changed = {"sql": "SELECT payload.x AS y FROM 'doors/in'"}
    assert rest.ask("PUT", "/rules/doors?tenant=doors-b", changed)[1]["state"] == "running"
    assert rest.run("/rules/doors/backfill?tenant=doors-b", {})["outputs"] >= 1
    text = "SELECT caller, status FROM audit_log WHERE operation = 'DELETE /tenants/{name}'"
    await_condition(
        lambda: query(rest, "default", text).get("rows") == [["api-token", 202]],
        "the audit log has it",
    )
