"""Rights over the API: planned, applied as a version, exported; every gateway follows the log."""

from typing import Any

import pytest

from api.tenants.rights import KEPT_VERSIONS, MaterialisedRights
from api.wiring import resources
from mqlake.records.messages import GATEWAYS, RIGHTS_KEY
from mqlake.rights.applied import decode_rights, rights_version_key
from mqlake.rights.files import parse_rights
from tests.api.conftest import Api, take
from tests.api.test_access import bearer, make_key

RULE = {"effect": "allow", "actions": ["publish"], "topics": ["plant/%u/#"], "roles": ["pumps"]}
RIGHTS: dict[str, Any] = {"roles": {"pumps": ["p1", "p2"]}, "rules": [RULE]}


def apply(api: Api, **body: Any) -> Any:
    answer = api.request("PUT", "/rights", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_nothing_was_applied_at_first(api: Api) -> None:
    found = api.get("/rights")
    assert (found["version"], found["applied_by"], found["rules"]) == (0, None, [])
    assert api.get("/rights/versions")["items"] == []
    assert parse_rights(api.request("GET", "/rights/export").text).rules == ()


def test_rights_are_planned_and_applied(api: Api) -> None:
    plan = api.request("POST", "/rights/plan", json=RIGHTS).json()
    assert (plan["version"], plan["changes"]) == (0, True)
    assert '+topics = ["plant/%u/#"]' in plan["diff"].splitlines()
    assert not api.log.records
    applied = apply(api, **RIGHTS, version=0)
    said = {
        "version": 1,
        "applied_at": "2020-09-13T12:26:40Z",
        "applied_by": "api-token",
        "rule_count": 1,
    }
    assert applied == {**said, **RIGHTS}
    assert api.get("/rights") == api.get("/rights/versions/1") == applied
    kept, current = api.log.records
    assert [(one.log_topic, one.key) for one in (kept, current)] == [
        (GATEWAYS, rights_version_key(1)),
        (GATEWAYS, RIGHTS_KEY),
    ]
    rights = decode_rights(current.value or b"")
    assert (kept.value, rights.version, rights.by) == (current.value, 1, "api-token")
    export = api.request("GET", "/rights/export")
    assert export.headers["content-type"].startswith("application/toml")
    assert parse_rights(export.text) == rights.content


def test_what_is_so_already_makes_no_version(api: Api) -> None:
    apply(api, **RIGHTS)
    assert apply(api, **RIGHTS)["version"] == 1
    plan = api.request("POST", "/rights/plan", json=RIGHTS).json()
    assert (plan["version"], plan["changes"], plan["diff"]) == (1, False, "")
    assert len(api.log.records) == 2


def test_nobody_overwrites_others_unseen(api: Api) -> None:
    apply(api, **RIGHTS, version=0)
    answer = api.request("PUT", "/rights", json={"rules": [], "version": 0})
    assert (answer.status_code, answer.json()["code"]) == (409, "version_conflict")
    assert api.get("/rights")["version"] == 1
    assert apply(api, rules=[], version=1)["version"] == 2


def test_the_last_versions_are_kept(api: Api) -> None:
    count = KEPT_VERSIONS + 2
    for number in range(count):
        apply(api, rules=[{**RULE, "topics": [str(number)], "roles": None}])
    versions = [one["version"] for one in api.get("/rights/versions")["items"]]
    assert versions == list(range(count, count - KEPT_VERSIONS, -1))
    assert api.request("GET", "/rights/versions/2").status_code == 404
    assert api.get("/rights/versions/3")["rules"][0]["topics"] == ["2"]
    gone = [one.key for one in api.log.records if one.value is None]
    assert gone == [rights_version_key(1), rights_version_key(2)]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "body.rules", "required"),
        ({"rules": [RULE]}, "body", "rule 1 is for the role 'pumps', which [roles] lacks"),
        ({"rules": [{**RULE, "roles": None, "topics": ["a/#/b"]}]}, "body.rules.0.topics.0", "#"),
        ({"rules": [{**RULE, "effect": "perhaps"}]}, "body.rules.0.effect", "'allow' or 'deny'"),
        ({"rules": [{"effect": "allow", "actions": ["publish"]}]}, "body.rules.0", "topics is mis"),
        ({"rules": [], "rights": []}, "body.rights", "there is no such field"),
        ({"rules": [], "roles": {"a b": []}}, "body.roles.a b.[key]", "match pattern"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", "/rights"), ("POST", "/rights/plan")])
def test_a_fault_is_told_with_its_place(
    api: Api, method: str, path: str, body: dict[str, Any], field: str, words: str
) -> None:
    answer = api.request(method, path, json=body)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert words in error["problem"]
    assert not api.log.records


def test_what_the_log_does_not_take_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.tenants.rights.MAX_BYTES", 150)
    answer = api.request("PUT", "/rights", json=RIGHTS)
    assert answer.status_code == 422
    assert "expected at most 150" in answer.json()["detail"]
    assert not api.log.records


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_rights_are_for_administrators(api: Api, role: str) -> None:
    key = bearer(make_key(api, role)["key"])
    for method, path in (
        ("GET", "/rights"),
        ("GET", "/rights/export"),
        ("GET", "/rights/versions"),
        ("GET", "/rights/versions/1"),
        ("POST", "/rights/plan"),
        ("PUT", "/rights"),
    ):
        assert api.request(method, path, key, json={"rules": []}).status_code == 403


def test_part_of_the_versions_is_shown_to_nobody(api: Api) -> None:
    api.services.kept[resources.RIGHTS].view.forget()
    for method, path in (("GET", "/rights"), ("PUT", "/rights"), ("POST", "/rights/plan")):
        assert api.request(method, path, json={"rules": []}).status_code == 503


def test_what_another_process_of_the_api_says_counts(api: Api) -> None:
    apply(api, **RIGHTS)
    kept, current = api.log.records
    view = MaterialisedRights()
    take(view, kept.key, kept.value)
    assert (view.current, view.versions()) == (None, []), "its rights were never in force"
    take(view, current.key, current.value)
    assert take(view, b"gateway-1", b"{}") == []
    assert view.current is not None
    assert [one.version for one in view.versions()] == [1]
    take(view, kept.key, None)
    assert view.versions() == []
