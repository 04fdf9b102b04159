"""What queries can name, over HTTP."""

from typing import Any

from mqlake.tables.catalogue import TABLES
from tests.api.conftest import Api
from tests.api.test_references import answer
from tests.api.test_rules import post, put


def relation(api: Api, name: str) -> dict[str, Any]:
    return next(one for one in api.get("/sql/relations")["items"] if one["name"] == name)


def test_tables_are_listed_as_queries_see_them(api: Api) -> None:
    found = api.get("/sql/relations")["items"]
    assert [one["name"] for one in found] == sorted(["usage", *(one.name for one in TABLES)])
    columns = {one["name"]: one["type"] for one in relation(api, "messages")["columns"]}
    assert (columns["payload"], columns["payload_text"], columns["ts"]) == (
        *("variant", "string", "timestamp"),
    )


def test_tables_of_rules_have_the_columns_of_all_their_rules(api: Api) -> None:
    table = {"function": "table", "args": {"name": "readings"}}
    post(api, "r1", sql="SELECT payload.t AS reading.t, clientid FROM 'a'", actions=[table])
    log = {"function": "log", "args": {"topic": "out"}, "fallback": [table]}
    post(api, "r2", sql="SELECT qos FROM 'b'", actions=[log])
    columns = relation(api, "rule_readings")["columns"]
    assert [one["name"] for one in columns[-3:]] == ["reading", "clientid", "qos"]
    assert columns[0]["name"] == "output_id"
    assert columns[-1]["type"] is None
    put(api, "r1", sql="SELECT qos FROM 'a'")
    assert len(relation(api, "rule_readings")["columns"]) == len(columns) - 2


def test_reference_tables_are_listed(api: Api) -> None:
    answer(api, number=1, version=0, columns=(("id", "BIGINT"),), rows=1)
    (column,) = relation(api, "reference_machines")["columns"]
    assert (column["name"], column["type"]) == ("id", "bigint")


def test_relations_come_in_pages(api: Api) -> None:
    page = api.get("/sql/relations", limit=2)
    rest = api.get("/sql/relations", cursor=page["next_cursor"])
    assert len(page["items"]) == 2
    assert len(page["items"] + rest["items"]) == len(TABLES) + 1, "and usage"
