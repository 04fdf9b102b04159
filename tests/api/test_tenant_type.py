"""A tenant has one type wherever a caller names one."""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from api.routes.messages.live import Asked
from mqlake.records.tenants import TENANT_PATTERN, TenantName
from tests.api.conftest import Api, operations
from tests.cases import case

TENANT = {**TypeAdapter(TenantName).json_schema(), "title": "Tenant"}
NAMES = ("tenant", "tenants")


def fields(schema: Any, known: dict[str, Any], seen: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield each field that a schema has, however deep, with its own schema."""
    if isinstance(schema, list):
        for one in schema:
            yield from fields(one, known, seen)
    elif isinstance(schema, dict):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            yield from fields(known[name], known, seen | {name})
        yield from schema.get("properties", {}).items()
        for one in schema.values():
            yield from fields(one, known, seen)


def types_of(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the types of the texts that a schema takes."""
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from types_of(one)
    elif schema.get("type") == "array":
        yield from types_of(schema["items"])
    elif schema.get("type") != "null" and schema.get("const") != "*":
        yield {name: schema[name] for name in schema if name in ("type", "pattern")}


def check(schema: dict[str, Any]) -> None:
    assert list(types_of(schema)) == [{"type": "string", "pattern": TENANT_PATTERN}]


def test_parameters_and_bodies_have_one_type_of_a_tenant(api: Api) -> None:
    known = api.client.app.openapi()["components"]["schemas"]
    parameters = bodies = 0
    for method, path, operation in operations(api):
        with case(f"{method} {path}"):
            for one in operation.get("parameters", ()):
                if one["name"] in NAMES or (one["in"] == "path" and path.startswith("/tenants/")):
                    check(one["schema"])
                    parameters += 1
            for name, schema in fields(operation.get("requestBody"), known, frozenset()):
                if name in NAMES:
                    check(schema)
                    bodies += 1
    assert parameters > 40
    assert bodies >= 4


def test_subscriptions_of_the_websocket_have_it_too() -> None:
    schema = TypeAdapter(Asked).json_schema()
    found = [one for name, one in fields(schema, schema["$defs"], frozenset()) if name in NAMES]
    assert found
    for one in found:
        check(one)


def test_what_is_no_tenant_is_refused_before_anything_is_done(api: Api) -> None:
    for method, path, operation in operations(api):
        if not any(one["name"] == "tenant" for one in operation.get("parameters", ())):
            continue
        asked = path.replace("{", "").replace("}", "")
        for tenant in ("a%00b", "a%2Fb", "A", "", "a" * 64, "a%0A", "%0Aa", "a%20", "%C5%BF"):
            with case(f"{method} {path}?tenant={tenant}"):
                answer = api.request(method, f"{asked}?tenant={tenant}", json={})
                assert answer.status_code == 422
                assert any("tenant" in one["field"] for one in answer.json()["errors"])
    assert api.log.records == []
