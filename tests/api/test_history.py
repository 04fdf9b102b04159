"""Retention over REST, and the deletion of a client's history as far as it needs no Spark."""

import json

from mqlake.records.messages import EVENTS
from mqlake.tables.retention import KeepingPolicy, read_policies
from tests.api.conftest import Api


def test_retention_is_replaced_and_read_back(api: Api) -> None:
    assert api.get("/retention") == {"policies": []}
    policy = {"table": "messages", "tenant": "default", "topic_filter": "a/#", "keep_days": 7.0}
    answer = api.request("PUT", "/retention", json={"policies": [policy, {"keep_days": 30}]})
    assert answer.status_code == 200
    whole = {"table": "messages", "tenant": "*", "topic_filter": "#", "keep_days": 30.0}
    assert answer.json() == api.get("/retention") == {"policies": [policy, whole]}
    assert read_policies(api.data_dir) == (
        KeepingPolicy("messages", "default", "a/#", 7.0),
        KeepingPolicy(keep_days=30.0),
    )


def test_what_is_no_policy_is_refused_and_changes_nothing(api: Api) -> None:
    for policy, said in (
        ({"keep_days": 0}, "greater than 0"),
        ({"keep_days": 1, "topic_filter": "a/#/b"}, "policies.0.topic_filter"),
        ({"keep_days": 1, "topic_filter": "$share/g/a"}, "policies.0.topic_filter"),
        ({"keep_days": 1, "table": "sessions"}, "policies.0.table"),
        ({"keep_days": 1, "table": "events", "topic_filter": "a"}, "no topic"),
        ({"keep_days": 1, "tenant": "a/b"}, "policies.0.tenant"),
        ({"keep_days": 1, "more": 1}, "more"),
    ):
        answer = api.request("PUT", "/retention", json={"policies": [policy]})
        assert answer.status_code == 422
        assert said in answer.text
    assert api.get("/retention") == {"policies": []}


def test_a_damaged_file_is_told_not_taken_for_none(api: Api) -> None:
    (api.data_dir / "retention.json").write_text('{"version": 1, "policies": [{"keep": 1}]}')
    answer = api.request("GET", "/retention")
    assert answer.status_code == 503
    assert "retention.json" in answer.json()["detail"]


def test_a_deletion_is_written_down_before_it_begins(api: Api) -> None:
    answer = api.request("DELETE", "/history", params={"client_id": "sensor/1", "tenant": "t"})
    assert answer.status_code == 202
    job = answer.json()
    assert (job["kind"], job["tenant"]) == ("delete_history", "t")
    record = api.log.records[0]
    assert (record.log_topic, record.partition) == (EVENTS, 0)
    event = json.loads(record.value or b"")
    assert event["event"] == "history.deletion_requested"
    assert (event["tenant"], event["client_id"], event["deleted_client_id"]) == (
        *("t", None, "sensor/1"),
    )
    assert event["by"]


def test_a_query_that_is_refused_says_where(api: Api) -> None:
    answer = api.request("POST", "/sql", json={"query": "SELECT 1\nFROM secrets"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["code"], found["line"], found["column"]) == ("invalid_query", 2, 6)
    assert found["detail"] == "there is no table secrets"
    assert "messages" in found["hint"]
    for body in (
        {"query": "SELECT 1", "limit": 0},
        {"query": "SELECT 1", "limit": 100_000_000},
        {"query": "SELECT 1", "format": "xml"},
        {"query": ""},
    ):
        assert api.request("POST", "/sql", json=body).status_code == 422


def test_a_query_without_spark_is_unavailable(api: Api) -> None:
    answer = api.request("POST", "/sql", json={"query": "SELECT 1"})
    assert answer.status_code == 503
    assert "no query application answers" in answer.json()["detail"]
