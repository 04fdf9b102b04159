"""Tenants over the API: records of the log, which every gateway follows."""

import json
from typing import Any

import pytest

from api.tenants.tenants import MaterialisedTenants
from api.wiring.resources import TENANTS
from mqlake.records.messages import GATEWAYS
from mqlake.records.rule_tables import rule_table
from mqlake.records.tenants import TenantLimits, decode_tenant, tenant_key
from tests.api.conftest import Api, take
from tests.api.test_access import bearer, make_key

NO_LIMITS = dict.fromkeys(TenantLimits.model_fields, 0)
ACME = {"state": "active", "description": "Acme Inc."}
MADE = {"created_at": "2020-09-13T12:26:40Z", "changed_by": "api-token"}


def put(api: Api, name: str = "acme", **fields: Any) -> Any:
    answer = api.request("PUT", f"/tenants/{name}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_tenant_is_created_suspended_and_shown(api: Api) -> None:
    made = put(api, **ACME)
    assert made == {
        "name": "acme",
        **ACME,
        **MADE,
        "changed_at": MADE["created_at"],
        "limits": NO_LIMITS,
        "sessions": 0,
        "rules": 0,
    }
    (record,) = api.log.records
    assert (record.log_topic, record.key) == (GATEWAYS, tenant_key("acme"))
    api.clock.advance(60)
    suspended = put(api, **{**ACME, "state": "suspended"})
    assert suspended["created_at"] < suspended["changed_at"]
    assert decode_tenant(api.log.records[-1].value or b"").state == "suspended"
    assert api.get("/tenants")["items"][0] == suspended


def test_a_tenant_has_limits(api: Api) -> None:
    limits = {**NO_LIMITS, "connections": 10}
    assert put(api, limits={"connections": 10})["limits"] == limits
    assert decode_tenant(api.log.records[-1].value or b"").limits.connections == 10


def test_tenants_are_those_that_were_created_or_of_whom_something_is_there(api: Api) -> None:
    api.put_session("c1", tenant="beta")
    api.put_session("c2")
    put(api, **ACME)
    found = api.get("/tenants")["items"]
    assert [(one["name"], one["state"], one["sessions"]) for one in found] == [
        ("acme", "active", 0),
        ("beta", None, 1),
        ("default", None, 1),
    ]
    page: Any = api.get("/tenants", limit=2)
    assert api.get("/tenants", cursor=page["next_cursor"])["items"] == found[2:]


@pytest.mark.parametrize("name", ["Acme", "-a", "a.b", "a" * 64, "a%0A", "a%20b"])
def test_a_name_is_a_label(api: Api, name: str) -> None:
    assert api.request("PUT", f"/tenants/{name}", json={}).status_code == 422
    assert not api.log.records


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "gone"},
        {"description": "x" * 201},
        {"suspended": True},
        {"limits": {"connections": -1}},
    ],
)
def test_what_is_no_tenant_is_refused(api: Api, fields: dict[str, Any]) -> None:
    assert api.request("PUT", "/tenants/acme", json=fields).status_code == 422
    assert not api.log.records


def test_there_are_only_so_many(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.tenants.tenants.MAX_TENANTS", 1)
    put(api)
    put(api, state="suspended")
    assert api.request("PUT", "/tenants/beta", json={}).status_code == 409


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_administrators_alone_create_tenants(api: Api, role: str) -> None:
    key = make_key(api, role)["key"]
    assert api.request("GET", "/tenants", bearer(key)).status_code == 200
    assert api.request("PUT", "/tenants/acme", bearer(key), json={}).status_code == 403


def test_a_change_is_audited_with_what_was_before(api: Api) -> None:
    put(api, **ACME)
    put(api, state="suspended")
    row = json.loads(api.audited.records[-1].value or b"")
    assert (row["before"]["state"], row["after"]["state"]) == ("active", "suspended")


def test_nothing_is_said_before_all_was_read(api: Api) -> None:
    api.services.kept[TENANTS].view.forget()
    assert api.request("GET", "/tenants").status_code == 503
    assert api.request("PUT", "/tenants/acme", json={}).status_code == 503


def test_a_record_of_another_form_is_refused() -> None:
    view = MaterialisedTenants()
    assert take(view, b"gateway-1", b"{}") == []
    (refused,) = take(view, tenant_key("acme"), b"{}")
    assert "tenant" in str(refused)
    assert view.all() == {}


def test_a_tenant_has_no_more_tables_of_rules_than_it_may(api: Api) -> None:
    made = api.request("PUT", "/tenants/acme", json={"limits": {"rule_tables": 2}})
    assert made.status_code == 200, made.text

    def put(rule: str, *tables: str, tenant: str = "acme", method: str = "POST") -> Any:
        asked = {"tenant": tenant, "wait": 0}
        actions = [{"function": "table", "args": {"name": one}} for one in tables]
        body = {"id": rule, "sql": "SELECT * FROM 'a'", "actions": actions}
        if method == "PUT":
            del body["id"]
        path = "/rules" if method == "POST" else f"/rules/{rule}"
        return api.request(method, path, json=body, params=asked)

    assert put("r0", "a").status_code == 202
    assert put("r1", "a", "b").status_code == 202
    refused = put("r2", "b", "c")
    assert refused.status_code == 409
    assert "write 2 tables" in refused.json()["detail"], refused.text
    assert "'c'" in refused.json()["detail"]
    assert put("r2", "c", tenant="beta").status_code == 202, "of another tenant"
    assert put("r0", "d", method="PUT").status_code == 409, "r1 has a and b"
    assert put("r1", "c", method="PUT").status_code == 202, "in the place of b"
    folder = api.data_dir / "tables" / rule_table("acme", "rule_c") / "_delta_log"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.json").write_text("{}")
    assert put("r1", "d", method="PUT").status_code == 409, "a table stays when no rule writes it"
    smaller = api.request("PUT", "/tenants/acme", json={"limits": {"rule_tables": 1}})
    assert smaller.status_code == 200
    assert put("r3", "a").status_code == 202, "nothing is taken away"


def test_a_tenant_has_no_more_rules_than_it_may(api: Api) -> None:
    made = api.request("PUT", "/tenants/acme", json={"limits": {"rules": 2}})
    assert made.status_code == 200, made.text

    def make(number: int, tenant: str = "acme") -> int:
        rule = {"id": f"r{number}", "sql": "SELECT * FROM 'a'"}
        asked = {"tenant": tenant, "wait": 0}
        return api.request("POST", "/rules", json=rule, params=asked).status_code

    assert [make(number) for number in range(3)] == [202, 202, 409]
    assert [make(number, "beta") for number in range(3)] == [202] * 3
    assert api.request("DELETE", "/rules/r0", params={"tenant": "acme"}).status_code == 204
    assert make(3) == 202
    smaller = api.request("PUT", "/tenants/acme", json={"limits": {"rules": 1}})
    assert smaller.status_code == 200
    assert len(api.get("/rules", tenant="acme")["items"]) == 2, "nothing is taken away"
    assert make(4) == 409
