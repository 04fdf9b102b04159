"""Rules of a key for some topics: those that stay within its rights, and no others."""

from typing import Any

import pytest

from tests.api.conftest import Api
from tests.api.test_access import bearer, make_key

FILTERS = ["plant/+/temperature", "lab/#"]


def key_for(api: Api, role: str = "editor", **more: Any) -> dict[str, str]:
    return bearer(make_key(api, role, topic_filters=FILTERS, **more)["key"])


def rule(
    source: str = "lab/#", topic: str = "lab/out", rule_id: str = "r", **fields: Any
) -> dict[str, Any]:
    action = {"function": "republish", "args": {"topic": topic}}
    return {
        "id": rule_id,
        "sql": f"SELECT * FROM '{source}'",
        "actions": [action],
        **fields,
    }


def content(**asked: Any) -> dict[str, Any]:
    return {name: value for name, value in rule(**asked).items() if name != "id"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"source": "#"}, "may not read '#'"),
        ({"source": "plant/#"}, "may not read 'plant/#'"),
        ({"source": "$events/client_connected"}, "may not read '$events/client_connected'"),
        ({"source": "lab/a', 'plant/1/pressure"}, "may not read 'plant/1/pressure'"),
        ({"topic": "other"}, "may not publish to 'other'"),
        ({"topic": "$SYS2/a"}, "may not publish to '$SYS2/a'"),
        ({"actions": [{"function": "console", "args": {}}]}, "may republish, not console"),
        ({"actions": [{"function": "table", "args": {"name": "t"}}]}, "not table"),
    ],
)
def test_a_rule_that_is_not_within_ones_rights_is_refused(
    api: Api, asked: dict[str, Any], why: str
) -> None:
    key = key_for(api)
    before = len(api.log.records)
    answer = api.request("POST", "/rules", key, json=rule(**asked))
    assert answer.status_code == 403, answer.text
    assert why in answer.json()["detail"]
    assert api.request("POST", "/rules", key, json=rule()).status_code == 202
    changed = api.request("PUT", "/rules/r", key, json=content(**asked))
    assert changed.status_code == 403
    assert why in changed.json()["detail"]
    assert len(api.log.records) == before + 2, "the version and definition of the rule that is"


def test_a_key_for_some_topics_looks_after_its_rules_and_sees_no_others(api: Api) -> None:
    made = make_key(api, "editor", topic_filters=FILTERS)
    key = bearer(made["key"])
    shown = api.request("POST", "/rules", key, json=rule(topic="lab/${t}")).json()
    assert shown["made_by"] == f"key:{made['id']}"
    assert api.request("POST", "/rules", json=rule("#", rule_id="all")).status_code == 202
    listed = api.request("GET", "/rules", key).json()["items"]
    assert [one["id"] for one in listed] == ["r"]
    listed = api.request("GET", "/rule_metrics", key).json()["items"]
    assert [one["id"] for one in listed] == ["r"]
    for method, path in (
        ("GET", "/rules/ID"),
        ("DELETE", "/rules/ID"),
        ("GET", "/rules/ID/metrics"),
        ("GET", "/rules/ID/explain"),
        ("GET", "/rules/ID/versions"),
        ("GET", "/rules/ID/versions/1"),
    ):
        answer = api.request(method, path.replace("ID", "all"), key)
        assert answer.status_code == 404, path
    assert api.request("PUT", "/rules/all", key, json=content()).status_code == 404
    for path in ("", "/metrics", "/explain", "/versions", "/versions/1"):
        assert api.request("GET", f"/rules/r{path}", key).status_code == 200, path
    assert api.request("DELETE", "/rules/r", key).status_code == 204


def test_versions_beyond_ones_rights_are_neither_shown_nor_taken_back(api: Api) -> None:
    key = key_for(api)
    assert api.request("POST", "/rules", json=rule("#")).status_code == 202
    assert api.request("PUT", "/rules/r", json=content(source="lab/a")).status_code == 202
    listed = api.request("GET", "/rules/r/versions", key).json()["items"]
    assert [one["version"] for one in listed] == [2]
    assert api.request("GET", "/rules/r/versions/1", key).status_code == 404
    assert api.request("GET", "/rules/r/versions/1/diff/2", key).status_code == 404
    assert api.request("POST", "/rules/r/versions/1/rollback", key).status_code == 404
    assert api.request("POST", "/rules/r/versions/2/rollback", key).status_code == 202
    assert api.request("POST", "/rules/r/versions/1/rollback").status_code == 202


def test_a_rule_is_whose_who_has_changed_it_last(api: Api) -> None:
    made = make_key(api, "editor", topic_filters=FILTERS)
    api.request("POST", "/rules", bearer(made["key"]), json=rule())
    taken = api.request("PUT", "/rules/r", json=content()).json()
    assert (taken["version"], taken["made_by"]) == (2, "api-token")
    again = api.request("PUT", "/rules/r", json=content()).json()
    assert (again["version"], again["made_by"]) == (2, "api-token"), "nothing is new"
    one = api.request("GET", "/rules/r/versions/1").json()
    assert one["made_by"] == f"key:{made['id']}"


def test_who_is_for_some_topics_tries_no_tables_that_are_not_his(api: Api) -> None:
    key = key_for(api)
    joined = "SELECT a.topic FROM 'lab/#' AS a JOIN sites AS s ON a.topic = s.topic"
    for path, body in (
        ("/rules", {"sql": joined, "id": "j"}),
        ("/rule_test", {"sql": joined, "context": {"topic": "lab/a"}}),
    ):
        assert api.request("POST", path, key, json=body).status_code == 422
    valid = api.request("POST", "/rules/validate", key, json={"sql": joined}).json()
    assert not valid["valid"]


def test_a_viewer_for_some_topics_is_shown_rules_and_makes_none(api: Api) -> None:
    api.request("POST", "/rules", json=rule())
    viewer = key_for(api, "viewer")
    assert [one["id"] for one in api.request("GET", "/rules", viewer).json()["items"]] == ["r"]
    assert api.request("POST", "/rules", viewer, json=rule(rule_id="x")).status_code == 403
