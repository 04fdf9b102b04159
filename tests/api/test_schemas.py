"""Schemas over REST, without a server."""

import json
from typing import Any

import pytest

from api.log.following import Followed
from api.rules.rerun_log import Begin, decode_begin, encode_begin
from mqlake.errors import InvalidRecord
from mqlake.records.messages import RULES
from mqlake.records.rule_facts import read_fact
from mqlake.records.rules import Kind, rerun_key
from rules.schemas import model
from tests.api.conftest import Api
from tests.api.test_rules import activate, post

pytestmark = pytest.mark.programs

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]})
OTHER = AVRO.replace('"t"', '"u"')
PROTO = 'syntax = "proto3"; package p; message A { B b = 1; } message B { double x = 1; }'


def register(api: Api, name: str = "s", **fields: Any) -> Any:
    body = {"name": name, "type": "avro", "source": AVRO, **fields}
    answer = api.request("POST", "/schemas", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def status(api: Api, method: str, path: str, **body: Any) -> tuple[int, str]:
    answer = api.request(method, path, **({"json": body} if body else {}))
    return answer.status_code, answer.json()["detail"] if answer.content else ""


def test_a_schema_is_registered_changed_and_deleted(api: Api) -> None:
    made = register(api)
    assert (made["version"], made["type"], made["source"]) == (1, "avro", AVRO)
    answer = api.request("PUT", "/schemas/s", json={"type": "avro", "source": OTHER})
    assert (answer.status_code, answer.json()["version"]) == (200, 2)
    assert answer.headers["ETag"] == '"2"'
    same = api.request("PUT", "/schemas/s", json={"type": "avro", "source": OTHER})
    assert same.json()["version"] == 2
    shown = api.get("/schemas/s")
    assert (shown["version"], shown["versions"], shown["rules"]) == (2, [2, 1], [])
    assert [one["version"] for one in api.get("/schemas/s/versions")["items"]] == [2, 1]
    assert api.get("/schemas/s/versions/1")["source"] == AVRO
    assert status(api, "DELETE", "/schemas/s/versions/2")[0] == 409
    assert status(api, "DELETE", "/schemas/s/versions/1")[0] == 204
    assert status(api, "DELETE", "/schemas/s/versions/1")[0] == 404
    assert status(api, "DELETE", "/schemas/s")[0] == 204
    assert status(api, "GET", "/schemas/s")[0] == 404
    said = [read_fact(one.key, one.value) for one in api.log.records if one.log_topic == RULES]
    schemas = [one for one in said if one is not None and one.kind is Kind.SCHEMA]
    assert [(one.version, one.value is None) for one in schemas] == [
        (1, False),
        (2, False),
        (1, True),
        (2, True),
    ]


def test_schemas_are_listed_with_the_one_that_is_built_in(api: Api) -> None:
    register(api, "z")
    register(api, "a", description="first")
    first = api.get("/schemas", limit=2)
    assert [one["name"] for one in first["items"]] == ["a", "sparkplug_b"]
    rest = api.get("/schemas", cursor=first["next_cursor"])
    assert [one["name"] for one in rest["items"]] == ["z"]
    assert api.get("/schemas/sparkplug_b")["type"] == "sparkplug_b"


def test_messages_of_protobuf_are_told(api: Api) -> None:
    made = register(api, type="protobuf", source=PROTO)
    assert (made["message_type"], made["message_types"]) == ("p.A", ["p.A", "p.B"])
    assert register(api, "b", type="protobuf", source=PROTO, message_type="B")["message_type"] == (
        "p.B"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "{"}, "not JSON"),
        ({"source": '"text"'}, "which is not defined"),
        ({"type": "protobuf", "source": "message A {}", "message_type": "B"}, "there are: A"),
        ({"type": "protobuf", "source": 'import "/etc/passwd";'}, "was not found"),
        ({"type": "protobuf", "source": "message A { int32 x = 1 }"}, 'Expected ";"'),
        ({"type": "protobuf", "source": 'edition = "2023"; message A {}'}, "editions"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    api: Api, fields: dict[str, Any], said: str
) -> None:
    body = {"name": "s", "type": "avro", "source": AVRO, **fields}
    code, detail = status(api, "POST", "/schemas", **body)
    assert (code, said in detail) == (422, True), detail


def test_names_are_taken_once(api: Api) -> None:
    register(api)
    body = {"type": "avro", "source": AVRO}
    assert status(api, "POST", "/schemas", name="s", **body)[0] == 409
    assert status(api, "POST", "/schemas", name=model.SPARKPLUG_B, **body)[0] == 409
    assert status(api, "POST", "/schemas", name="a:1", **body)[0] == 422
    assert status(api, "PUT", "/schemas/t", **body)[0] == 404


def test_what_rules_decode_by_is_not_deleted(api: Api) -> None:
    register(api)
    api.request("PUT", "/schemas/s", json={"type": "avro", "source": OTHER})
    post(api, "newest", sql="SELECT payload.t FROM 'a' DECODE 's'", enable=False)
    post(api, "first", sql="SELECT schema_decode('s:1', payload) AS x FROM 'a'")
    code, detail = status(api, "DELETE", "/schemas/s")
    assert (code, detail) == (409, "schema 's' is used by rules: first, newest")
    code, detail = status(api, "DELETE", "/schemas/s/versions/1")
    assert (code, detail) == (409, "schema 's:1' is used by rules: first")
    assert api.get("/schemas/s")["rules"] == ["first", "newest"]
    assert api.get("/rules/newest/explain")["schemas"] == ["s:2"]
    assert api.get("/rules/first")["from"] == ["a"]
    for rule in ("first", "newest"):
        assert api.request("DELETE", f"/rules/{rule}").status_code == 204
    assert status(api, "DELETE", "/schemas/s")[0] == 204


def test_a_rule_that_names_no_schema_there_is_is_refused(api: Api) -> None:
    sql = "SELECT payload.t FROM 'a' DECODE 'sparkplug'"
    answer = api.request("POST", "/rules", json={"sql": sql})
    found = answer.json()
    assert answer.status_code == 422
    assert (found["line"], found["column"]) == (1, 27)
    assert found["hint"] == "did you mean sparkplug_b?"


def test_a_rule_is_compiled_with_the_schemas_of_its_tenant(api: Api) -> None:
    register(api)
    sql = "SELECT payload.t FROM 'a' DECODE 's'"
    asked = {"json": {"sql": sql}, "params": {"tenant": "other"}}
    assert api.request("POST", "/rules", **asked).status_code == 422


def test_where_a_rerun_began_is_kept(api: Api) -> None:
    begin = Begin({0: 7, 1: 9}, {0: 3})
    value = encode_begin(begin)
    assert decode_begin(value) == begin
    api.rules.take([Followed(RULES, 0, rerun_key("default", "r"), value)], is_old=False)
    assert api.rules.rerun_begin("default", "r") == begin
    assert api.rules.rerun_begin("other", "r") is None
    with pytest.raises(InvalidRecord):
        decode_begin(b'{"outputs": 1}')


def test_a_rule_that_does_not_run_has_no_letters_run_again(api: Api) -> None:
    post(api, "r1")
    code, detail = status(api, "POST", "/rules/r1/dead_letters/rerun")
    assert (code, detail) == (409, "rule 'r1' is starting, expected running")
    assert status(api, "POST", "/rules/r2/dead_letters/rerun")[0] == 404
    post(api, "events", sql="SELECT * FROM '$events/client_connected'")
    assert status(api, "POST", "/rules/events/dead_letters/rerun")[0] == 422
    activate(api, "r1", 1)
    body = {"from": "2026-01-01T00:00:00"}
    assert status(api, "POST", "/rules/r1/dead_letters/rerun", **body)[0] == 422
    assert status(api, "GET", "/dead_letters?cursor=WyJhIiwgImIiXQ")[0] == 422
