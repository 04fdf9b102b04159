"""Each operation that is about a tenant, asked for another one: nothing is told, nothing changed.

The operations come from the OpenAPI document: a new one is tried, too.
"""

import json
import re
from typing import Any

import pytest

from tests.api.conftest import Api, subscription
from tests.mqlake.log_lines import lines_with

SECRET = "acmehush"
"""Stands in all that `acme` has, and in no name by which it is asked for."""
NAMES = {
    "id": "valve",
    "name": "valve",
    "client_id": "valve",
    "topic": "valve",
    "version": "1",
    "other": "1",
}
BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"sql": "SELECT payload.x AS x FROM 'a/b'"},
    {"type": "avro", "source": '{"type": "record", "name": "R", "fields": []}'},
    {"topic": "valve", "payload": "x"},
    {"target": "client", "client_id": "valve", "sql": "SELECT * FROM messages"},
)


@pytest.fixture
def furnished(api: Api) -> Api:
    """An API whose tenant `acme` has something of each kind that needs no engine."""
    api.put_session(
        "valve",
        tenant="acme",
        username=SECRET,
        subscriptions=[subscription(f"{SECRET}/#")],
        will={
            "topic": SECRET,
            "payload": "",
            "qos": 0,
            "retain": False,
            "delay": 0,
            "properties": {},
        },
    )
    acme = {"tenant": "acme"}
    rule = {"id": "valve", "sql": f"SELECT payload.{SECRET} AS x FROM '{SECRET}/+'"}
    made = api.request("POST", "/rules", json=rule, params={**acme, "wait": 0})
    assert made.status_code in (201, 202), made.text
    field = {"name": SECRET, "type": "double"}
    source = json.dumps({"type": "record", "name": "R", "fields": [field]})
    schema = {"type": "avro", "source": source}
    made = api.request("POST", "/schemas", json={"name": "valve", **schema}, params=acme)
    assert made.status_code == 201, made.text
    return api


def operations(api: Api) -> list[tuple[str, str]]:
    """Return method and path of each operation that is about a tenant."""
    return [
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in api.client.app.openapi()["paths"].items()
        for method, operation in methods.items()
        if any(one["name"] == "tenant" for one in operation.get("parameters", ()))
        and not path.startswith("/api/v1/live/")
    ]


def ask(api: Api, method: str, path: str, tenant: str, body: dict[str, Any] | None = None) -> Any:
    named = re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], path)
    return api.request(method, named, json=body, params={"tenant": tenant, "wait": 0})


def seen(api: Api, tenant: str) -> dict[str, str]:
    """Return what each question about a tenant tells, where it is answered."""
    asked = {path: ask(api, "GET", path, tenant) for how, path in operations(api) if how == "GET"}
    return {path: answer.text for path, answer in asked.items() if answer.status_code == 200}


def test_no_operation_tells_another_tenant_anything(furnished: Api) -> None:
    told = {path for path, text in seen(furnished, "acme").items() if SECRET in text}
    assert told >= {
        *("/clients", "/clients/{client_id}", "/clients/{client_id}/subscriptions"),
        *("/subscriptions", "/rules", "/rules/{id}", "/schemas/{name}"),
    }, "else this test would see nothing"
    with lines_with(lambda line: SECRET in line) as lines:
        for method, path in operations(furnished):
            for body in BODIES if method in ("POST", "PUT", "PATCH") else (None,):
                answer = ask(furnished, method, path, "beta", body)
                assert SECRET not in answer.text, f"{method} {path}"
                assert answer.status_code != 500, f"{method} {path}"
    assert lines.count, "else nothing was looked at"
    assert not lines.found, "what is asked for another tenant writes nothing of this one"


def test_no_operation_changes_anything_of_another_tenant(furnished: Api) -> None:
    before = seen(furnished, "acme")
    for method, path in operations(furnished):
        for body in BODIES if method in ("POST", "PUT", "PATCH") else (None,):
            if method != "GET":
                ask(furnished, method, path, "beta", body)
    assert seen(furnished, "acme") == before
    written = [one.key for one in furnished.log.records if b"beta" in one.key]
    assert written, "else nothing was changed"
