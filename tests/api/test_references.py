"""Reference tables over HTTP, without the tables: what is asked for and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from api.log.following import Followed
from mqlake.records.messages import RULES
from mqlake.records.references import (
    ReferenceKey,
    ReferenceState,
    decode_reference_request,
    encode_reference_state,
    reference_key,
)
from tests.api.conftest import AUTHORIZED, Api, memory_api

CSV = {"Content-Type": "text/csv"}


def put(api: Api, text: str, *, to: str = "machines", wait: float = 0, **more: Any) -> Any:
    return api.client.request(
        "PUT",
        f"/api/v1/references/{to}",
        {**AUTHORIZED, **more.pop("headers", CSV)},
        content=text.encode(),
        params={"wait": wait, **more},
    )


def answer(api: Api, **state: Any) -> None:
    """Let the application say what came of a request."""
    offset = 1_000 + len(api.log.records) + state["number"]
    found = ReferenceState(
        **{"tenant": "default", "reference": "machines", "state": "ready", **state}
    )
    key = reference_key(ReferenceKey("state", found.tenant, found.reference))
    record = Followed(RULES, offset, key, encode_reference_state(found))
    assert api.references.take([record], is_old=False) == []


def test_an_upload_is_on_the_disk_before_it_is_asked_for(api: Api) -> None:
    said = put(api, "id,limit\nm1,7\nm2,\n", description="limits")

    assert said.status_code == 202, said.text
    assert said.json()["state"] == "writing"
    (record,) = api.log.records
    key = reference_key(ReferenceKey("request", "default", "machines"))
    assert (record.log_topic, record.key, record.partition) == (RULES, key, 0)
    request = decode_reference_request(record.value or b"")
    assert (request.kind, request.number, request.rows, request.key) == ("put", 1, 2, ("id",))
    assert request.columns == (("id", "STRING"), ("limit", "BIGINT"))
    assert request.description == "limits"
    kept = (api.data_dir / "references" / str(request.upload)).read_text()
    assert kept == '{"id":"m1","limit":7}\n{"id":"m2","limit":null}\n'


def test_it_is_shown_with_what_the_application_says(api: Api) -> None:
    put(api, "id\n1\n")
    assert api.get("/references/machines")["state"] == "writing"
    assert api.references.columns("default") == {}

    answer(api, number=1, version=0, columns=(("id", "BIGINT"),), key=("id",), rows=1, at=5_000)

    found = api.get("/references/machines")
    assert (found["state"], found["version"], found["rows"]) == ("ready", 0, 1)
    assert found["columns"] == [{"name": "id", "type": "BIGINT"}]
    assert found["table"] == "reference_machines"
    assert found["updated_at"] == "1970-01-01T00:00:05Z"
    assert api.references.columns("default") == {"machines": (("id", "BIGINT"),)}
    assert [one["id"] for one in api.get("/references")["items"]] == ["machines"]


def test_a_change_that_failed_leaves_what_was_there(api: Api) -> None:
    put(api, "id\n1\n")
    answer(api, number=1, version=0, columns=(("id", "BIGINT"),))
    said = put(api, "other\nx\n")
    assert said.status_code == 202
    assert decode_reference_request(api.log.records[-1].value or b"").number == 2

    answer(
        api,
        number=2,
        state="failed",
        error="the disk is full",
        version=0,
        columns=(("id", "BIGINT"),),
    )

    found = api.get("/references/machines")
    assert (found["state"], found["error"], found["version"]) == ("failed", "the disk is full", 0)
    assert api.references.columns("default") == {"machines": (("id", "BIGINT"),)}


def test_a_deleted_table_is_gone_and_its_numbers_go_on(api: Api) -> None:
    put(api, "id\n1\n")
    answer(api, number=1, version=0)

    assert api.request("DELETE", "/references/machines", params={"wait": 0}).status_code == 202
    answer(api, number=2, state="deleted")

    assert api.request("GET", "/references/machines").status_code == 404
    assert api.get("/references")["items"] == []
    put(api, "id\n1\n")
    assert decode_reference_request(api.log.records[-1].value or b"").number == 3


def test_lists_come_a_page_at_a_time(api: Api) -> None:
    for name in ("b", "a", "c"):
        put(api, "id\n1\n", to=name)

    page = api.get("/references", limit=2)
    rest = api.get("/references", limit=2, cursor=page["next_cursor"])

    assert [one["id"] for one in page["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None


def test_what_is_wrong_is_said_with_line_and_column(api: Api) -> None:
    said = put(api, "id,n\na,1\nb,x\n", schema="id STRING, n BIGINT")

    assert said.status_code == 422
    assert said.headers["Content-Type"] == "application/problem+json"
    found = said.json()
    assert (found["line"], found["column"]) == (3, "n")
    assert found["detail"] == "line 3, column 'n': 'x' is no BIGINT"
    assert api.log.records == []


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (422, {"to": "Machines"}),
        (422, {"to": "a__b"}),
        (422, {"to": "a" * 64}),
        (422, {"delimiter": "x"}),
        (422, {"tenant": "a/b"}),
        (422, {"key": "nothing"}),
        (422, {"schema": "id UUID"}),
        (415, {"headers": {"Content-Type": "text/plain"}}),
        (415, {"headers": {}}),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(
    api: Api, status: int, arguments: dict[str, Any]
) -> None:
    assert put(api, "id\n1\n", **arguments).status_code == status
    assert api.log.records == []


def test_an_upload_beyond_the_limit_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.rules.references.MAX_BYTES", 1024)

    assert put(api, "id\n" + "1\n" * 1000).status_code == 413


def test_an_upload_may_be_larger_than_other_bodies(tmp_path: Path) -> None:
    with memory_api(tmp_path, max_body_bytes=1024) as api:
        assert put(api, "\n".join(["id", *map(str, range(1000))])).status_code == 202
        assert api.request("POST", "/rules", json={"sql": "x" * 2000}).status_code == 413


def test_there_may_be_so_many_tables(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.references.changes.MAX_REFERENCES", 1)
    put(api, "id\n1\n")

    assert put(api, "id\n1\n", to="other").status_code == 409
    assert put(api, "id\n2\n").status_code == 202
    assert len(list((api.data_dir / "references").iterdir())) == 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/references/machines"),
        ("GET", "/references/machines/rows"),
        ("GET", "/references/machines/versions"),
        ("POST", "/references/machines/versions/0/rollback"),
        ("DELETE", "/references/machines"),
    ],
)
def test_a_table_that_is_not_there_is_not_found(api: Api, method: str, path: str) -> None:
    assert api.request(method, path).status_code == 404


def test_rows_of_a_table_that_is_not_written_yet_are_not_found(api: Api) -> None:
    put(api, "id\n1\n")

    assert api.request("GET", "/references/machines/rows").status_code == 404
    assert api.get("/references/machines/versions")["items"] == []
    assert api.request("POST", "/references/machines/versions/0/rollback").status_code == 503


def test_until_the_log_is_read_nothing_is_said(api: Api) -> None:
    api.references.forget()

    assert api.request("GET", "/references").status_code == 503


def test_a_rule_that_joins_a_table_that_is_not_there_is_refused(api: Api) -> None:
    sql = "SELECT m.site AS site FROM 'plant/+' JOIN machines AS m ON m.id = clientid"
    columns = (("id", "STRING"), ("site", "STRING"))
    answer(api, number=1, reference="sites", version=0, columns=columns)

    refused = api.request("POST", "/rules", json={"id": "joins", "sql": sql})

    assert refused.status_code == 422
    found = refused.json()
    assert found["detail"].startswith("there is no reference table machines")
    assert (found["line"], found["hint"]) == (1, "there are: sites")
    checked = api.request("POST", "/rules/validate", json={"sql": sql}).json()
    assert not checked["valid"]
    assert checked["errors"][0]["hint"] == "there are: sites"

    answer(api, number=1, version=0, columns=columns)

    assert api.request("POST", "/rules", json={"id": "joins", "sql": sql}).status_code == 202
