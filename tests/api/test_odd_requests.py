"""Requests that are well-formed and mean nothing: the answer says so, and is no mistake of ours."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from tests.api.conftest import AUTHORIZED, Api

HALF = "\ud800"
"""Half a surrogate pair: JSON can name it, and it is no character."""
RULE = {"id": "one", "sql": "SELECT * FROM 'a'"}


def cursor(*parts: str) -> str:
    return urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/publish", {"topic": HALF, "payload": "x"}),
        ("POST", "/publish", {"topic": "a", "payload": HALF}),
        ("POST", "/publish", {"topic": "a", "payload": "x", "response_topic": HALF}),
        (
            "POST",
            "/rules",
            {**RULE, "actions": [{"function": "republish", "args": {"topic": HALF}}]},
        ),
        ("POST", "/rules", {**RULE, "description": HALF}),
        ("POST", "/rules", {"id": "one", "sql": f"SELECT '{HALF}' FROM 'a'"}),
        ("POST", "/rule_test", {"sql": RULE["sql"], "context": {"payload": HALF}}),
        ("POST", "/rule_test", {"sql": RULE["sql"], "context": {"clientid": HALF}}),
        ("PUT", "/retention", {"policies": [{"keep_days": 1, "tenant": HALF}]}),
        ("POST", "/sql", {"query": f"SELECT '{HALF}'"}),
        ("POST", "/sql", {"query": f"SELECT {'a.' * 2_000}a FROM messages"}),
        ("POST", "/keys", {"role": "viewer", "description": HALF}),
        ("POST", "/login", {"username": HALF, "password": HALF}),
    ],
)
def test_texts_that_are_none_are_refused(
    api: Api, method: str, path: str, body: dict[str, Any]
) -> None:
    headers = {**AUTHORIZED, "Content-Type": "application/json"}
    answer = api.request(method, path, headers, content=json.dumps(body))
    assert answer.status_code in (401, 422), answer.text  # 401: nobody's password
    assert answer.headers["content-type"] == "application/problem+json"
    if answer.status_code == 422:
        assert api.log.records == []


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        *((path, (HALF,)) for path in ("/clients", "/rules", "/keys", "/references", "/schemas")),
        ("/subscriptions", (HALF, HALF)),
        ("/jobs", (HALF, "x")),
        ("/dead_letters", ("1", HALF, "a", "1", "1", "1", "a")),
        ("/dead_letters", ("--5", "a", "a", "1", "1", "1", "a")),
        ("/dead_letters", ("9" * 30, "a", "a", "1", "1", "1", "a")),
        ("/dead_letters", ("1", "a", "a", "9" * 30, "1", "1", "a")),
        ("/dead_letters", ("1", "a", "a", "9" * 10, "1", "1", "a")),
        ("/dead_letters", ("1", "a", "a", "1", "\u0661", "1", "a")),
    ],
)
def test_cursors_that_no_page_gave_are_refused(api: Api, path: str, parts: tuple[str, ...]) -> None:
    answer = api.request("GET", path, params={"cursor": cursor(*parts)})
    assert answer.status_code == 422
    assert "the cursor is not one" in answer.json()["detail"]


@pytest.mark.parametrize("etag", ['"' + "9" * 5_000 + '"', '"\u0661"', '""', "1"])
def test_versions_that_are_none_are_refused(api: Api, etag: str) -> None:
    headers = {**AUTHORIZED, "If-Match": etag}
    answer = api.client.request(
        "DELETE",
        "/api/v1/rules/one",
        {name: value.encode() for name, value in headers.items()},  # type: ignore[misc]
    )
    assert answer.status_code in (404, 422)
