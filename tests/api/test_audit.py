"""Each change, and each login, is a record of the log before it is answered."""

import json
from typing import Any

import pytest

from api.entrance.authentication import COOKIE, CSRF_HEADER
from api.log.audit_log import AuditLog
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.audit import AUDIT_EVENT, MAX_STATE
from mqlake.records.messages import EVENTS
from mqlake.records.versions import RECORD_VERSION
from tests.api.conftest import Api, MemoryAppender, operations
from tests.api.test_access import bearer, make_key

CHANGES_NOTHING = {
    *("POST /sql", "POST /rules/validate", "POST /rule_test", "POST /rights/plan"),
    "POST /sql/start",
    # Each is a row of the table `messages`.
    *("POST /publish", "POST /publish/bulk"),
}
RULE = {
    "id": "hot",
    "sql": "SELECT payload.t AS t FROM 'plant/+'",
    "actions": [
        {
            "function": "http",
            "args": {"url": "https://example.org/x", "headers": {"Authorization": "Bearer hush"}},
        }
    ],
}


def rows(api: Api) -> list[dict[str, Any]]:
    found = []
    for one in api.audited.records:
        assert (one.log_topic, one.key) == (EVENTS, b"default/")
        found.append(json.loads(one.value or b""))
    return found


def last(api: Api) -> dict[str, Any]:
    return rows(api)[-1]


def test_each_operation_that_changes_something_leaves_a_row(api: Api) -> None:
    """A new operation is one of these, or it is named above."""
    changing = 0
    for method, path, operation in operations(api):
        name = f"{method} {path}"
        is_changing = method != "GET" and name not in CHANGES_NOTHING
        is_login = path == "/login"
        assert operation.get("x-audited", False) == is_changing, name
        before = len(api.audited.records)
        body: dict[str, Any] = {"username": "ann", "password": "x"} if is_login else {}
        if path not in ("/live/messages", "/live/outputs", "/live/metrics"):
            api.request(method, path.replace("{", "").replace("}", ""), json=body)
        found = rows(api)[before:]
        assert [one["operation"] for one in found] == ([name] if is_changing else []), name
        if is_changing:
            changing += 1
            (row,) = found
            assert row["caller"] == ("ann" if is_login else "api-token")
            assert isinstance(row["status"], int)
    assert changing >= 38


def test_a_row_says_who_what_and_from_where(api: Api) -> None:
    headers = {
        "User-Agent": "curl/8",
        "X-Request-ID": "r1",
        **bearer(make_key(api, "admin")["key"]),
    }
    made = api.request("POST", "/bans", headers, json={"users": ["mallory"], "reason": "floods"})
    row = last(api)
    assert {name: row[name] for name in row if name not in ("caller", "asked")} == {
        "v": RECORD_VERSION,
        "event": AUDIT_EVENT,
        "ts": 1_600_000_000_000,
        "tenant": "default",
        "tenants": [],
        "role": "admin",
        "credential": "key",
        "address": "127.0.0.1",
        "agent": "curl/8",
        "request_id": "r1",
        "operation": "POST /bans",
        "target": "/bans",
        "status": 201,
        "gateway": None,
        "detail": None,
        "before": None,
        "after": None,
    }
    assert row["caller"].startswith("key:")
    assert row["asked"] == {"users": ["mallory"], "reason": "floods"}
    api.request("DELETE", f"/bans/{made.json()['id']}", headers)
    row = last(api)
    assert (row["operation"], row["target"]) == ("DELETE /bans/{id}", f"/bans/{made.json()['id']}")
    assert (row["before"]["users"], row["after"]) == (["mallory"], None)


def test_what_was_there_before_and_after_is_told_without_secrets(api: Api) -> None:
    assert api.request("POST", "/rules", json=RULE, params={"wait": 0}).status_code in (201, 202)
    assert last(api)["asked"]["actions"] == ["http"]
    changed = {**RULE, "sql": "SELECT 1 AS one FROM 'plant/+'"}
    del changed["id"]
    assert api.request("PUT", "/rules/hot", json=changed, params={"wait": 0}).status_code < 300
    row = last(api)
    assert (row["before"]["version"], row["after"]["version"]) == (1, 2)
    assert "payload.t" in row["before"]["sql"]
    assert row["after"]["sql"] == changed["sql"]
    api.request("DELETE", "/rules/hot")
    assert (last(api)["before"]["version"], last(api)["after"]) == (2, None)
    assert "hush" not in json.dumps(rows(api))


def test_passwords_and_keys_are_in_no_row(api: Api) -> None:
    account = {"name": "ann", "role": "viewer", "password": "correct horse"}
    assert api.request("POST", "/accounts", json=account).status_code == 201
    assert last(api)["asked"] == {"name": "ann", "role": "viewer", "password": "**********"}
    api.request("PUT", "/accounts/ann", json={"role": "admin", "password": "battery staple"})
    row = last(api)
    assert (row["before"]["role"], row["after"]["role"]) == ("viewer", "admin")
    assert row["before"]["password_changed_at"] < row["after"]["password_changed_at"]
    key = make_key(api)["key"]
    api.request("POST", "/login", {}, json={"username": "ann", "password": "battery staple"})
    api.request("POST", "/login", {}, json={"token": key})
    text = json.dumps(rows(api))
    assert all(secret not in text for secret in ("horse", "staple", key))


def test_logins_are_told_those_that_fail_too(api: Api) -> None:
    api.request(
        "POST", "/accounts", json={"name": "ann", "role": "viewer", "password": "correct horse"}
    )
    before = len(rows(api))
    for password in ("guessed it", "correct horse"):
        asked = {"username": "ann", "password": password}
        answer = api.request("POST", "/login", {}, json=asked)
    told = [
        (one["operation"], one["caller"], one["role"], one["credential"], one["status"])
        for one in rows(api)[before:]
    ]
    assert told == [
        ("POST /login", "ann", None, "password", 401),
        ("POST /login", "ann", "viewer", "password", 200),
    ]
    # By the cookie of that login.
    csrf = {
        "Cookie": f"{COOKIE}={answer.cookies[COOKIE]}",
        CSRF_HEADER: answer.json()["csrf_token"],
    }
    assert api.request("POST", "/rules", csrf, json=RULE).status_code == 403
    assert (last(api)["credential"], last(api)["status"]) == ("session", 403)
    assert api.request("POST", "/logout", csrf).status_code == 204
    assert (last(api)["operation"], last(api)["caller"]) == ("POST /logout", "ann")


def test_strangers_and_those_who_guess_too_often_leave_no_rows(api: Api) -> None:
    assert (
        api.request("POST", "/bans", bearer("nobody's"), json={"users": ["a"]}).status_code == 401
    )
    assert api.request("POST", "/bans", {}, json={"users": ["a"]}).status_code == 401
    codes = [
        api.request("POST", "/login", {}, json={"username": "a", "password": "x"}).status_code
        for _ in range(12)
    ]
    assert codes.count(401) == 10
    assert [one["status"] for one in rows(api)] == [401] * 10


def test_nobody_hides_a_change_in_another_tenant(api: Api) -> None:
    api.request("PUT", "/rights", json={"rules": []}, params={"tenant": "hidden"})
    assert last(api)["tenants"] == []
    api.request("DELETE", "/rules/x", params={"tenant": "other"})
    assert (last(api)["tenant"], last(api)["target"]) == ("other", "/rules/x?tenant=other")
    assert last(api)["tenants"] == ["other"]


def test_a_large_state_is_left_out(api: Api) -> None:
    rules = [{"effect": "allow", "actions": ["publish"], "topics": ["x" * 1000]}]
    api.request("PUT", "/rights", json={"rules": rules * 100})
    row = last(api)
    assert row["asked"]["left_out"].endswith("characters of JSON")
    assert len(api.audited.records[-1].value or b"") < MAX_STATE


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"users": ["\\ud800"]}', b"1"])
def test_a_body_that_is_none_is_no_matter(api: Api, body: bytes) -> None:
    answer = api.request("POST", "/bans", content=body)
    assert answer.status_code == 422
    assert (last(api)["operation"], last(api)["status"]) == ("POST /bans", 422)


def test_a_row_that_the_log_does_not_take_is_in_the_log_of_the_process(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryAppender):
        def append(self, *_: Any, **__: Any) -> int:
            raise LogError("it is away", definite=True)

    api.put_in(audit_log=AuditLog(Away(), ManualClock()))
    assert api.request("POST", "/bans", json={"users": ["a"]}).status_code == 201
    (record,) = [one for one in caplog.records if one.message == "not in the audit log"]
    fields: dict[str, Any] = record.__dict__["fields"]
    assert json.loads(fields["record"])["operation"] == "POST /bans"
