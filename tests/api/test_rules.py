import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from api.jobs.jobs import TooManyJobs
from api.log.following import Followed
from mqlake.records.messages import METRICS, RULES
from mqlake.records.rules import (
    Activation,
    ActivationState,
    LeftUnread,
    OffsetRange,
    RulesKey,
    Span,
    encode_activation,
    rules_key,
)
from rules.model import MAX_VERSIONS
from tests.api.conftest import Api

SQL = "SELECT payload.t AS t FROM 'plant/+/temp' WHERE payload.t > 50"
REPUBLISH = {"function": "republish", "args": {"topic": "alarms/${t}", "qos": 1}}


def put(api: Api, rule_id: str, **fields: Any) -> Any:
    answer = api.request("PUT", f"/rules/{rule_id}", json={"sql": SQL, **fields})
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def post(api: Api, rule_id: str | None = None, **fields: Any) -> Any:
    answer = api.request("POST", "/rules", json={"id": rule_id, "sql": SQL, **fields})
    assert answer.status_code in (201, 202), answer.text
    return answer.json()


def activate(
    api: Api,
    rule_id: str,
    version: int,
    state: ActivationState = "running",
    error: str = "",
    missed: tuple[int, int] | None = None,
    unread: LeftUnread | None = None,
) -> None:
    """Say what the engine would."""
    span = Span(
        version, ("plant/+/temp",), "NULL", (), None, {"mqlake.inbound": OffsetRange((7, 9))}
    )
    spans = (replace(span, missed=None if missed is None else {"mqlake.inbound": missed}),)
    value = encode_activation(
        Activation("default", rule_id, state, version, 1, error or None, spans, unread=unread)
    )
    key = rules_key(RulesKey("activation", "default", rule_id))
    api.rules.take([Followed(RULES, len(api.log.records), key, value)], is_old=False)
    api.log.append(RULES, key, value, what="activation")


def written(api: Api) -> list[tuple[str, int | None]]:
    """Return the keys of definitions and versions, with the version of what they hold."""
    return [
        (one.key.decode(), json.loads(one.value)["version"] if one.value else None)
        for one in api.log.records
        if one.log_topic == RULES and not one.key.startswith(b"a/")
    ]


def test_what_a_version_has_not_read_is_shown(api: Api) -> None:
    post(api, "r1")
    activate(api, "r1", 1)
    assert api.get("/rules/r1")["unread"] is None
    offsets = {"mqlake.inbound": {0: (12, 40), 3: (7, 9)}}
    activate(api, "r1", 2, unread=LeftUnread(1, 5, 1_700_000_000_000, "why", offsets))
    told = {
        "version": 1,
        "at": "2023-11-14T22:13:20Z",
        "reason": "why",
        "count": 30,
        "offsets": {"mqlake.inbound": {"0": [12, 40], "3": [7, 9]}},
    }
    assert api.get("/rules/r1")["unread"] == told
    assert [one["unread"] for one in api.get("/rules")["items"]] == [told]


def test_a_rule_is_made_shown_and_deleted(api: Api) -> None:
    made = post(api, "r1", name="hot", actions=[REPUBLISH])
    assert made["state"] == "starting"
    assert (made["version"], made["from"], made["enable"]) == (1, ["plant/+/temp"], True)
    assert written(api) == [("v/default/r1/1", 1), ("d/default/r1", 1)]
    activate(api, "r1", 1)
    shown = api.get("/rules/r1")
    assert shown == {**made, "state": "running"}
    assert shown["created_at"] == "2020-09-13T12:26:40Z"
    assert api.request("GET", "/rules/r1").headers["ETag"] == '"1"'
    assert api.request("DELETE", "/rules/r1").status_code == 204
    assert api.request("GET", "/rules/r1").status_code == 404
    assert api.request("DELETE", "/rules/r1").status_code == 404


def test_an_identifier_is_made_up_when_none_is_given(api: Api) -> None:
    names = {post(api)["id"] for _ in range(3)}
    assert len(names) == 3
    assert [item["id"] for item in api.get("/rules")["items"]] == sorted(names)


def test_a_rule_is_made_once(api: Api) -> None:
    post(api, "r1")
    answer = api.request("POST", "/rules", json={"id": "r1", "sql": SQL})
    assert answer.status_code == 409
    assert "PUT" in answer.json()["detail"]


def test_an_answer_waits_for_the_engine(api: Api) -> None:
    said = threading.Timer(0.05, activate, (api, "r1", 1))
    said.start()
    answer = api.request("POST", "/rules", json={"id": "r1", "sql": SQL}, params={"wait": 20})
    said.join()
    assert (answer.status_code, answer.json()["state"]) == (201, "running")
    answer = api.request("PUT", "/rules/r1", json={"sql": SQL, "enable": False})
    assert (answer.status_code, answer.json()["state"]) == (202, "starting")


def test_each_change_is_a_version_and_no_change_is_none(api: Api) -> None:
    post(api, "r1", name="first")
    assert put(api, "r1", name="second")["version"] == 2
    assert put(api, "r1", name="second")["version"] == 2
    assert put(api, "r1", enable=False)["version"] == 3
    assert [key for key, _ in written(api)] == [
        *("v/default/r1/1", "d/default/r1", "v/default/r1/2", "d/default/r1"),
        *("v/default/r1/3", "d/default/r1"),
    ]
    versions = api.get("/rules/r1/versions")["items"]
    assert [(one["version"], one["name"]) for one in versions] == [
        (3, ""),
        (2, "second"),
        (1, "first"),
    ]
    assert api.get("/rules/r1/versions/2")["name"] == "second"
    assert api.request("GET", "/rules/r1/versions/9").status_code == 404


@pytest.mark.parametrize("state", ["paused", "failed"])
def test_a_rule_that_was_given_up_is_started_by_any_put(api: Api, state: ActivationState) -> None:
    post(api, "r1")
    activate(api, "r1", 1, state, "it fails")
    shown = api.get("/rules/r1")
    assert (shown["state"], shown["error"]) == (state, "it fails")
    assert put(api, "r1")["version"] == 2
    assert api.get("/rules/r1")["error"] is None


def test_a_paused_rule_goes_on_from_now_on(api: Api) -> None:
    post(api, "r1", name="kept")
    activate(api, "r1", 1, "paused", "it fails")
    answer = api.request("POST", "/rules/r1/resume")
    assert answer.status_code == 202, "the engine has not answered"
    found = answer.json()
    assert found["job"] is None
    assert (found["rule"]["version"], found["rule"]["name"]) == (2, "kept")
    assert api.request("POST", "/rules/r1/resume").status_code == 409, "it is not paused"
    assert api.request("POST", "/rules/none/resume").status_code == 404


def test_a_paused_rule_goes_on_from_where_it_paused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a job that takes what lies between, and nothing that live evaluation has."""
    post(api, "r1")
    activate(api, "r1", 1, "paused", "it fails")
    await_answer = api.rules.await_answer

    def answered(tenant: str, rule_id: str, version: int, seconds: float) -> Any:
        activate(api, rule_id, version, missed=(3, 9))
        return await_answer(tenant, rule_id, version, seconds)

    monkeypatch.setattr(api.rules, "await_answer", answered)
    asked: Any = {"json": {"from": "pause", "rate": 7}}
    answer = api.request("POST", "/rules/r1/resume", **asked)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["rule"]["state"], found["job"]["kind"]) == ("running", "backfill")
    job = api.services.runs.jobs.get(found["job"]["id"])
    assert job is not None
    assert job.request == {"version": 2, "from_ms": None, "missed": True, "rate": 7}
    asked = {"json": {"missed": True}}
    activate(api, "r1", 2)
    answer = api.request("POST", "/rules/r1/backfill", **asked)
    assert answer.status_code == 409
    assert "had not stopped" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT count(*) AS n FROM 'a' GROUP BY tumble(timestamp, '1 minute')", "memory"),
        ("SELECT clientid FROM '$events/client_connected'", "does not read messages"),
    ],
)
def test_a_rule_without_backfill_goes_on_from_now_on_alone(api: Api, sql: str, why: str) -> None:
    post(api, "r1", sql=sql)
    activate(api, "r1", 1, "paused", "it fails")
    answer = api.request("POST", "/rules/r1/resume", json={"from": "pause"})
    assert answer.status_code == 409
    assert why in answer.json()["detail"]
    assert api.get("/rules/r1")["state"] == "paused", "nothing has happened"
    assert api.request("POST", "/rules/r1/resume", json={"from": "now"}).status_code == 202


def test_two_who_change_the_same_version_are_told(api: Api) -> None:
    post(api, "r1")
    put(api, "r1", name="second", version=1)
    late = {"sql": SQL, "name": "third"}
    answer = api.request("PUT", "/rules/r1", json={**late, "version": 1})
    assert answer.status_code == 409
    for path, method in (("/rules/r1", "PUT"), ("/rules/r1", "DELETE")):
        answer = api.client.request(
            method,
            f"/api/v1{path}",
            {"Authorization": "Bearer s3cret", "If-Match": '"1"'},
            **({"json": late} if method == "PUT" else {}),
        )
        assert answer.status_code == 412
    assert api.get("/rules/r1")["name"] == "second"


def test_a_difference_reads_as_the_file_would(api: Api) -> None:
    post(api, "r1", sql="SELECT *\nFROM 'a/#'")
    put(api, "r1", sql="SELECT *\nFROM 'b/#'")
    diff = api.get("/rules/r1/versions/1/diff/2")["diff"]
    assert diff.splitlines()[:2] == ["--- r1 version 1", "+++ r1 version 2"]
    assert "-  FROM 'a/#'" in diff
    assert "+  FROM 'b/#'" in diff
    assert api.get("/rules/r1/versions/2/diff/2")["diff"] == ""


def test_a_rollback_is_a_new_version_with_old_content(api: Api) -> None:
    post(api, "r1", name="first")
    put(api, "r1", name="second")
    answer = api.request("POST", "/rules/r1/versions/1/rollback")
    assert answer.status_code == 202
    assert (answer.json()["version"], answer.json()["name"]) == (3, "first")


def test_a_rule_made_anew_goes_on_counting(api: Api) -> None:
    post(api, "r1")
    put(api, "r1", name="second")
    assert api.request("DELETE", "/rules/r1").status_code == 204
    assert written(api)[-2:] == [("d/default/r1", None), ("v/default/r1/1", None)]
    assert api.request("GET", "/rules/r1/versions").status_code == 404
    assert post(api, "r1")["version"] == 3


def test_old_versions_are_forgotten(api: Api) -> None:
    post(api, "r1")
    for number in range(MAX_VERSIONS + 1):
        put(api, "r1", name=f"name {number}")
    versions = [one["version"] for one in api.get("/rules/r1/versions")["items"]]
    assert versions == list(range(MAX_VERSIONS + 2, 2, -1))
    assert ("v/default/r1/1", None) in written(api)


def test_rules_are_listed_a_page_at_a_time_and_filtered(api: Api) -> None:
    for number in range(5):
        post(api, f"r{number}", enable=number != 2)
    post(api, "other", sql="SELECT * FROM 'x'")
    activate(api, "r3", 1)
    first = api.get("/rules", limit=4)
    assert [item["id"] for item in first["items"]] == ["other", "r0", "r1", "r2"]
    second = api.get("/rules", limit=4, cursor=first["next_cursor"])
    assert [item["id"] for item in second["items"]] == ["r3", "r4"]
    assert second["next_cursor"] is None

    def found(**asked: Any) -> list[str]:
        return [item["id"] for item in api.get("/rules", **asked)["items"]]

    assert found(enable=False) == ["r2"]
    assert found(state="running") == ["r3"]
    assert found(like_id="the") == ["other"]
    assert found(**{"from": "x"}) == ["other"]
    assert found(tenant="another") == []


def test_an_error_in_sql_says_where(api: Api) -> None:
    answer = api.request("POST", "/rules", json={"sql": "SELECT uper(topic)\nFROM 'a'"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["line"], problem["fragment"]) == (1, "uper(topic)")
    assert "upper" in problem["hint"]
    assert written(api) == []


def test_an_error_in_an_action_says_which(api: Api) -> None:
    action = {"function": "republish", "args": {"topik": "x"}}
    answer = api.request("POST", "/rules", json={"sql": SQL, "actions": [action]})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("actions[0]")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sql": ""},
        {"sql": SQL, "id": "a/b"},
        {"sql": SQL, "more": 1},
        {"sql": SQL, "enable": 7},
    ],
)
def test_a_definition_of_another_form_is_refused(api: Api, fields: dict[str, Any]) -> None:
    assert api.request("POST", "/rules", json=fields).status_code == 422
    assert written(api) == []


def test_validate_finds_all_errors_and_warns(api: Api) -> None:
    def validate(**fields: Any) -> Any:
        answer = api.request("POST", "/rules/validate", json={"sql": SQL, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    good = validate(actions=[REPUBLISH])
    assert (good["valid"], good["errors"], good["warnings"]) == (True, [], [])
    assert good["compiled"]["from"] == ["plant/+/temp"]
    assert good["compiled"]["columns"] == ["t"]
    assert good["compiled"]["conditions"][0]["fields"] == ["payload.t"]
    bad = validate(sql="SELECT FROM", actions=[{"function": "mail"}])
    assert not bad["valid"]
    assert bad["compiled"] is None
    assert len(bad["errors"]) == 2
    loop = {"function": "republish", "args": {"topic": "plant/a/temp"}}
    (warning,) = validate(actions=[loop])["warnings"]
    assert "loop" in warning
    assert "no actions" in validate()["warnings"][0]
    covered = validate(sql="SELECT * FROM 'a/#', 'a/b', '$SYS/x'", actions=[REPUBLISH])
    assert [one[:8] for one in covered["warnings"]] == ["no messa", "'a/b' is"]


def test_explain_shows_spark_sql_and_offsets(api: Api) -> None:
    post(api, "r1")
    activate(api, "r1", 1)
    shown = api.get("/rules/r1/explain")
    assert "payload_json" in shown["expression"]
    assert (shown["query"], shown["sources"]) == ("rules", ["mqlake.inbound"])
    assert shown["spans"] == [
        {
            "version": 1,
            "sources": {"mqlake.inbound": {"from": [7, 9], "to": None}},
            "run": None,
        }
    ]


def count(api: Api, run: str, **counters: Any) -> None:
    key = f"{run}/rules/default/r1".encode()
    value = json.dumps(counters).encode()
    api.metrics.take([Followed(METRICS, len(api.log.records), key, value)], is_old=False)


def test_a_job_too_many_is_to_be_asked_for_later(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    post(api, "r1", actions=[REPUBLISH])

    def refuse(*_: object) -> None:
        raise TooManyJobs("20 jobs wait already: try again later")

    monkeypatch.setattr(api.services.runs.jobs, "start", refuse)
    answer = api.request("POST", "/rules/r1/dry_run", json={})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert answer.headers["Retry-After"] == "10"


def test_metrics_are_summed_over_runs_and_reset(api: Api) -> None:
    post(api, "r1", actions=[REPUBLISH])
    zero = api.get("/rules/r1/metrics")
    assert (zero["matched"], zero["actions"][0]["success"], zero["reset_at"]) == (0, 0, None)
    count(
        api,
        "engine/1",
        matched=10,
        passed=6,
        no_result=3,
        failed=1,
        outputs=7,
        evaluation_ns=3_999_999,
    )
    api.clock.advance(10)
    count(api, "engine/2", matched=20, passed=20, no_result=0, failed=0, outputs=20)
    action = {"function": "republish", "failed": 1, "retried": 2, "dropped": 0}
    first = {**action, "success": 4, "queued": 9, "latency_ms_sum": 40, "latency": {"1": 4}}
    last = {**action, "success": 6, "queued": 2, "latency_ms_sum": 60, "latency": {"1": 6}}
    count(api, "rules/1", actions={"0": first})
    count(api, "rules/2", actions={"0": last})
    found = api.get("/rules/r1/metrics")
    assert [found[name] for name in ("matched", "passed", "no_result", "failed", "outputs")] == [
        *(30, 26, 3, 1, 27)
    ]
    assert found["evaluation_ms"] == 3
    (shown,) = found["actions"]
    assert (shown["success"], shown["failed"], shown["queued"]) == (10, 2, 2)
    assert (shown["latency_ms_mean"], shown["latency"]) == (10.0, {"1": 10})

    answer = api.request("PUT", "/rules/r1/metrics/reset")
    assert (answer.status_code, answer.json()["matched"]) == (200, 0)
    assert answer.json()["reset_at"] is not None
    record = api.log.records[-1]
    assert (record.log_topic, record.key) == (METRICS, b"api/reset/rules/default/r1")
    count(api, "engine/2", matched=25, passed=21, no_result=4, failed=0, outputs=21)
    found = api.get("/rules/r1/metrics")
    assert (found["matched"], found["passed"], found["no_result"]) == (5, 1, 4)
    assert found["actions"][0]["success"] == 0
    assert found["actions"][0]["queued"] == 2


def test_metrics_of_all_rules_have_the_pages_of_the_rules(api: Api) -> None:
    for name in ("r1", "r2", "r3"):
        post(api, name)
    count(api, "engine/1", matched=10)
    page = api.get("/rule_metrics", limit=2)
    assert [(one["id"], one["matched"]) for one in page["items"]] == [("r1", 10), ("r2", 0)]
    assert page["items"][0] == api.get("/rules/r1/metrics")
    assert page["next_cursor"] == api.get("/rules", limit=2)["next_cursor"]
    rest = api.get("/rule_metrics", cursor=page["next_cursor"])
    assert [one["id"] for one in rest["items"]] == ["r3"]


def test_a_deleted_rule_leaves_no_metrics(api: Api) -> None:
    post(api, "r1", actions=[REPUBLISH])
    count(api, "engine/1", matched=10)
    count(api, "rules/1", actions={})
    api.request("PUT", "/rules/r1/metrics/reset")
    count(api, "engine/2", matched=5)
    assert api.request("DELETE", "/rules/r1").status_code == 204
    gone = [one for one in api.log.records if one.log_topic == METRICS and one.value is None]
    assert {one.key for one in gone} == {
        f"{run}/rules/default/r1".encode()
        for run in ("engine/1", "engine/2", "rules/1", "api/reset")
    }
    post(api, "r1", actions=[REPUBLISH])
    found = api.get("/rules/r1/metrics")
    assert (found["matched"], found["reset_at"]) == (0, None)


def test_rates_are_of_the_last_seconds(api: Api) -> None:
    post(api, "r1")
    for number in range(10):
        count(api, "engine/1", matched=number * 50)
        api.clock.advance(5)
    rates = api.get("/rules/r1/metrics")["matched_per_second"]
    assert rates["highest"] == 10.0
    assert rates["last_5_minutes"] == pytest.approx(9.0, abs=0.5)


def test_sources_and_actions_are_described(api: Api) -> None:
    sources = api.get("/rule_events")
    assert {"$events/client_connected", "$events/message_dropped"} < {
        one["event"] for one in sources
    }
    assert "payload" in {column["name"] for column in sources[0]["columns"]}
    assert "topic" in api.get("/rule_actions")["republish"]["properties"]


def test_nothing_is_answered_before_all_rules_are_read(api: Api) -> None:
    api.rules.forget()
    for method, path in (("GET", "/rules"), ("GET", "/rules/r1"), ("DELETE", "/rules/r1")):
        answer = api.request(method, path)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
    assert api.request("POST", "/rules", json={"sql": SQL}).status_code == 503


def test_what_the_follower_brings_late_does_not_undo_what_is_newer(api: Api) -> None:
    post(api, "r1", name="first")
    put(api, "r1", name="second")
    records = [
        Followed(RULES, offset, one.key, one.value) for offset, one in enumerate(api.log.records)
    ]
    assert api.rules.take(records[:2], is_old=False) == []
    assert api.get("/rules/r1")["name"] == "second"


def test_a_malformed_record_is_reported_and_changes_nothing(api: Api) -> None:
    post(api, "r1")
    records = [
        Followed(RULES, 100, b"d/default/r1", b'{"sql":1}'),
        Followed(RULES, 101, b"a/default/r1", b"[]"),
        Followed(RULES, 102, b"unknown", b"x"),
    ]
    assert len(api.rules.take(records, is_old=False)) == 2
    assert api.get("/rules/r1")["version"] == 1


def test_without_a_token_nothing_is_shown(api: Api) -> None:
    for path in ("/rules", "/rules/x", "/jobs", "/rule_events"):
        assert api.client.get(f"/api/v1{path}").status_code == 401


SECRET_HOOK = {
    "function": "http",
    "args": {"url": "https://a.example/T0PATH", "headers": {"Authorization": "Bearer T0PSECRET"}},
}


@pytest.mark.parametrize(
    "path",
    [
        "/rules",
        "/rules?from=plant/%2B/temp",
        "/rules/r1",
        "/rules/r1/versions",
        "/rules/r1/versions/1",
        "/rules/r1/versions/1/diff/2",
        "/rules/r1/explain",
    ],
)
def test_who_may_not_change_rules_sees_no_secret_of_their_actions(api: Api, path: str) -> None:
    post(api, "r1", actions=[{**REPUBLISH, "fallback": [SECRET_HOOK]}])
    put(api, "r1", actions=[SECRET_HOOK])
    shown = {}
    for role in ("viewer", "editor"):
        token = api.request("POST", "/keys", json={"role": role, "description": "x"}).json()["key"]
        answer = api.request("GET", path, {"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        shown[role] = answer.text
    assert "T0P" not in shown["viewer"]
    if not path.endswith("explain"):
        assert "https://a.example/***" in shown["viewer"]
        assert "T0PSECRET" in shown["editor"], "who sends a rule back must not send the mask"
